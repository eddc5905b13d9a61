"""Profiles beside the log: whole or missing, never torn, and only from who belongs to the store's holder."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from contextlib import closing

import pytest

from unidle.errors import LeaseLost, StoreError
from unidle.store.open import open_store
from unidle.store.profiles import ProfileKey, ProfileRow, ProfileShelf
from unidle.store.tools import check


def row(start_ns: int, rank: int = 0, *, job: str = "j", attempt: int = 1, body: bytes = b"p") -> ProfileRow:
    return ProfileRow(job, start_ns, attempt, rank, start_ns + 10, 1, body)


@pytest.fixture
def shelf(durable):
    """A shelf over a connection of its own, beside the controller's."""
    controller = durable.open()
    lease = controller.acquire("unidle up")
    return ProfileShelf(durable.open(create=False), lease.token)


def test_rows_come_back_by_job_and_overlap(shelf):
    shelf.add([row(0), row(10), row(20, 3), row(30), row(0, job="other")])
    assert list(shelf.rows("j", 10, 25)) == [row(10), row(20, 3)]
    assert list(shelf.rows("j", 9, 31)) == [row(0), row(10), row(20, 3), row(30)]
    assert list(shelf.rows("none", 0, 100)) == []
    assert shelf.held() == {"j": (4, 0), "other": (1, 0)}


def test_a_row_that_comes_twice_stays_as_it_was(shelf):
    shelf.add([row(0, body=b"first")])
    shelf.add([row(0, body=b"second"), row(10)])
    assert [found.body for found in shelf.rows("j", 0, 100)] == [b"first", b"p"]


def test_rows_are_replaced_together(shelf):
    shelf.add([row(0), row(10), row(20)])
    merged = ProfileRow("j", 0, 1, 0, 20, 2, b"merged")
    shelf.replace([ProfileKey("j", 0, 1, 0), ProfileKey("j", 10, 1, 0)], [merged])
    assert list(shelf.rows("j", 0, 100)) == [merged, row(20)]
    assert shelf.drop_before(25) == 1
    assert list(shelf.rows("j", 0, 100)) == [row(20)]


def test_the_profiler_of_a_controller_that_lost_the_store_writes_nothing(durable):
    first = durable.open()
    lease = first.acquire("unidle up")
    mine = ProfileShelf(durable.open(create=False), lease.token)
    mine.add([row(0)])
    first.release(lease)
    second = durable.open(create=False)
    theirs = ProfileShelf(durable.open(create=False), second.acquire("unidle up").token)
    for change in (lambda: mine.add([row(10)]), lambda: mine.drop_before(100), lambda: mine.replace([], [])):
        with pytest.raises(LeaseLost):
            change()
    theirs.add([row(20)])
    assert list(theirs.rows("j", 0, 100)) == [row(0), row(20)]


def test_the_controller_appends_while_profiles_are_written(durable, event):
    controller = durable.open()
    lease = controller.acquire("unidle up")
    shelf = ProfileShelf(durable.open(create=False), lease.token)
    for n in range(1, 20):
        controller.append(lease, [event(n)])
        shelf.add([row(n)])
    assert controller.last()[0] == 19 and len(list(shelf.rows("j", 0, 100))) == 19
    assert check(controller).ok


def test_who_only_reads_cannot_write(durable):
    durable.open().acquire("unidle up")
    reader = durable.open(create=False, read_only=True)
    assert list(ProfileShelf(reader).rows("j", 0, 10)) == []
    with pytest.raises(StoreError):
        ProfileShelf(reader, reader.token()).add([row(0)])


@pytest.mark.parametrize("change", ["body = ?", "end_ns = 77", "looks = 9", "crc = 0"])
def test_a_damaged_row_is_passed_over_and_told(shelf, durable, change):
    shelf.add([row(0), row(10)])
    shelf._db.execute(
        f"UPDATE unidle_profiles SET {change} WHERE start_ns = 0", (b"x",) if "?" in change else ()
    )
    assert list(shelf.rows("j", 0, 100)) == [row(10)] and shelf.damaged == 1
    report = check(durable.open(create=False))
    assert report.problem_count == 1 and "profile of 'j' attempt 1 rank 0 from 0" in report.problems[0]


WRITER = """
import sys
from unidle.store.open import open_store
from unidle.store.profiles import ProfileRow, ProfileShelf
shelf = ProfileShelf(open_store(sys.argv[1], create=False), int(sys.argv[2]))
for n in range(10**9):
    shelf.add([ProfileRow("j", n * 10, 1, rank, n * 10 + 10, 1, bytes([n % 251]) * 20_000) for rank in range(4)])
    print(n, flush=True)
"""


def test_a_writer_that_is_killed_leaves_whole_windows(durable):
    controller = durable.open()
    lease = controller.acquire("unidle up")
    for _ in range(3):
        process = subprocess.Popen(
            [sys.executable, "-c", WRITER, durable.address, str(lease.token)], stdout=subprocess.PIPE
        )
        told = b"".join(process.stdout.readline() for _ in range(4))
        os.kill(process.pid, signal.SIGKILL)
        told += process.stdout.read()
        process.wait()
        process.stdout.close()
        last = int(told.split()[-1])
        with closing(open_store(durable.address, create=False, read_only=True)) as store:
            starts = [info.start_ns for info in ProfileShelf(store).infos_between("j", 0, 10**18)]
            whole = list(ProfileShelf(store).rows("j", 0, 10**18))
        assert len(starts) == len(whole) and len(starts) % 4 == 0 and max(starts) >= last * 10
        assert {len(found.body) for found in whole} == {20_000}
    assert check(controller).ok
