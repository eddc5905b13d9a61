"""Archives of jobs in each kind of store: whole or not there, and only from the store's holder."""

from __future__ import annotations

import pytest

from unidle.errors import LeaseLost, StoreDamaged
from unidle.store.archives import ArchiveShelf
from unidle.store.tools import check

PARTS = [b"first" * 1000, b"second", b"third"]


@pytest.fixture
def shelf(durable):
    """A shelf over a connection of its own, as the thread of retention has it."""
    lease = durable.open().acquire("unidle up")
    return ArchiveShelf(durable.open(create=False), lease.token)


def test_parts_come_back_and_a_second_writing_replaces_the_first(shelf, durable):
    assert shelf.write("j", iter(PARTS)) == sum(map(len, PARTS))
    shelf.write("other", [b"x"])
    reader = ArchiveShelf(durable.open(create=False, read_only=True))
    assert list(reader.read("j")) == PARTS and reader.has("j") and not reader.has("none")
    assert reader.sizes() == {"j": 5011, "other": 1} and reader.size("j") == 5011 and reader.size("none") == 0
    shelf.write("j", [b"new"])
    assert list(reader.read("j")) == [b"new"]
    shelf.drop_jobs(["j"])
    assert reader.jobs() == {"other"} and check(durable.open(create=False)).ok


def test_a_writing_that_broke_off_is_no_archive_until_it_is_done_again(shelf):
    def broken():
        yield from PARTS
        raise OSError(28, "No space left on device")

    with pytest.raises(OSError, match="No space"):
        shelf.write("j", broken())
    assert not shelf.has("j") and shelf.sizes() == {} and shelf.jobs() == {"j"}
    shelf.write("j", PARTS)
    assert list(shelf.read("j")) == PARTS


def test_a_controller_that_lost_the_store_writes_and_drops_nothing(durable):
    first = durable.open()
    lease = first.acquire("unidle up")
    mine = ArchiveShelf(durable.open(create=False), lease.token)
    mine.write("j", PARTS)
    first.release(lease)
    durable.open(create=False).acquire("unidle up")
    for change in (lambda: mine.write("k", PARTS), lambda: mine.drop_jobs(["j"])):
        with pytest.raises(LeaseLost):
            change()
    assert list(mine.read("j")) == PARTS and mine.jobs() == {"j"}


@pytest.mark.parametrize("change", ["body = ?", "n_bytes = 77", "crc = 0", "part = 9"])
def test_a_damaged_part_is_found(shelf, durable, change):
    shelf.write("j", PARTS)
    shelf._db.execute(f"UPDATE unidle_archives SET {change} WHERE part = 1", (b"y",) if "?" in change else ())
    with pytest.raises(StoreDamaged, match="j, part 1"):
        list(shelf.read("j"))
    report = check(durable.open(create=False))
    assert report.problem_count == 1 and "j, part 1" in report.problems[0]
