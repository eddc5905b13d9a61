"""Which jobs retention removes, and what its worker does to their files, on a real store."""

from __future__ import annotations

import os
import random
from collections.abc import Iterator
from contextlib import closing
from pathlib import Path

import pytest

import places
from unidle.clock import RealClock
from unidle.control.queries.find import find_job
from unidle.control.retention import archive
from unidle.control.retention.archive import pack, runs_of, unpack
from unidle.control.retention.policy import AT_ONCE, EVERY_NS, SCAN_EVERY_NS, Retention, beyond
from unidle.control.retention.worker import Done, FilesFreed, RetentionWorker, RunPacked
from unidle.engine.local.logs import LogReader
from unidle.engine.local.ranks.supervisor.rotated_log import RotatedLog
from unidle.errors import BadInput, LeaseLost, StoreDamaged
from unidle.events import types as ev
from unidle.fleet import Fleet
from unidle.fleet.policies import RetentionPolicy
from unidle.store.archives import ArchiveShelf
from unidle.store.open import open_store
from unidle.store.protocol import Lease
from unidle.store.sql import SqlStore
from unidle.view.snapshot import decode, encode
from unidle.view.state import View
from view.telling import Telling
from waiting import wait_until

S = 10**9


def ended(count: int, *kept: str, **spec: object) -> Telling:
    """Jobs j-0, j-1, ... that ended 10 s after one another, and one that runs."""
    telling = Telling(2)
    for k in range(count):
        job = f"j-{k}"
        telling.at(10 * k + 1).submit(job, **spec).place(job, "n0/0").end(job, 0, "succeeded")
        telling.at(10 * k + 9).done(job, "succeeded")
    telling.submit("runs").place("runs", "n0/1")
    if kept:
        telling.tell(ev.KeepSet(kept, True, "me"))
    return telling


def chosen(
    view: View, policy: RetentionPolicy, at_s: float = 0, busy: tuple[str, ...] = (), **sizes: int
) -> list[str]:
    last_ns = max(view.stored.values())
    known = {name.replace("_", "-"): size for name, size in sizes.items()}
    return [job for job, _ in beyond(view, policy, known, last_ns + int(at_s * S), busy.__contains__)]


def test_jobs_leave_by_age_those_that_ended_first_before_others() -> None:
    view = ended(4).view
    assert chosen(view, RetentionPolicy(age_ns=20 * S)) == ["j-0", "j-1"]
    assert chosen(view, RetentionPolicy(age_ns=20 * S), at_s=1000) == ["j-0", "j-1", "j-2", "j-3"]
    assert chosen(view, RetentionPolicy(), at_s=10**6) == []


def test_jobs_leave_by_number_and_by_size_until_the_rest_is_within_the_limit() -> None:
    view = ended(4).view
    assert chosen(view, RetentionPolicy(jobs=1)) == ["j-0", "j-1", "j-2"]
    assert chosen(view, RetentionPolicy(size_bytes=100), j_0=60, j_1=60, j_2=50, j_3=50) == ["j-0", "j-1"]
    assert chosen(view, RetentionPolicy(size_bytes=100), j_1=60, j_2=50, j_3=50) == ["j-1"], (
        "j-0 frees nothing"
    )


def test_what_is_kept_or_in_use_counts_and_stays() -> None:
    view = ended(4, "j-0").view
    assert chosen(view, RetentionPolicy(jobs=1)) == ["j-1", "j-2", "j-3"]
    assert chosen(view, RetentionPolicy(jobs=2), busy=("j-1",)) == ["j-2", "j-3"]
    assert chosen(view, RetentionPolicy(age_ns=1), at_s=10) == ["j-1", "j-2", "j-3"]
    view = ended(2, keep=True).view
    assert chosen(view, RetentionPolicy(jobs=0)) == []
    assert "runs" not in view.stored


def test_what_was_removed_is_said_with_date_and_limit_and_no_job_is_kept_again() -> None:
    some = ended(3, "j-1")
    some.tell(ev.KeepSet(("j-1",), False, "me"))
    before = some.ledger("n0/0")
    some.tell(ev.JobsRemoved(("j-0", "j-1"), "retention", "age 30d"))
    some.tell(ev.JobsRemoved(("j-1", "j-2"), "ann"))
    for view in (some.view, decode(encode(some.view))):
        assert view is not None
        assert list(view.stored) == [] and view.keep == set()
        for job, words in (
            ("j-0", r"retention on \d{4}-\d\d-\d\d \(age 30d\)"),
            ("j-1", "retention"),
            ("j-2", "ann on"),
        ):
            with pytest.raises(BadInput, match=f"the job was removed by {words}"):
                find_job(view, job)
        with pytest.raises(BadInput, match="removed by ann") as last:
            find_job(view, "j-")
        assert last.value.value == "j-2"
    assert some.ledger("n0/0") == before, "its time stays in the ledger"


# -- archives ----------------------------------------------------------------------------------------


@pytest.fixture
def place(tmp_path: Path) -> Path:
    return tmp_path / "s.db"


@pytest.fixture
def store(place: Path) -> Iterator[SqlStore]:
    with closing(open_store(str(place), create=True)) as opened:
        yield opened


@pytest.fixture
def lease(store: SqlStore) -> Lease:
    return store.acquire("test")


@pytest.fixture
def worker(place: Path, lease: Lease) -> Iterator[RetentionWorker]:
    with closing(RetentionWorker(str(place), Path(f"{place}.d"), lease.token)) as made:
        yield made


def talk(place: Path, job: str, lines: int = 3000) -> Path:
    """The run directory of a job whose log was rotated: only its last lines are there."""
    rank = Path(f"{place}.d/runs/{job}/1/rank0")
    rank.mkdir(parents=True)
    log = RotatedLog(str(rank / "log"), 4096, 3, S)
    for k in range(lines):
        log.write(b"line %d\n" % k, S + k * 10**8)
    log.close()
    (rank / "journal.jsonl").write_text("{}\n")
    (rank / "lock").touch()
    return rank


def read(rank: Path) -> tuple[bytes, int, list[int | None]]:
    """What is kept of the log, how many lines were dropped, and the times of its parts."""
    reader, found, times = LogReader(str(rank)), b"", []
    while chunk := reader.read():
        found += chunk
        times.append(reader.time_ns)
    reader.close()
    return found, reader.lost_lines, times


def test_an_archive_has_the_output_its_times_and_how_many_lines_were_dropped(
    tmp_path: Path, place: Path
) -> None:
    rank = talk(place, "a-1")
    before = read(rank)
    assert before[1] > 1000 and before[0].endswith(b"line 2999\n")
    unpack(iter(list(pack(rank.parents[1]))), tmp_path / "copy")
    copy = tmp_path / "copy" / "1" / "rank0"
    assert read(copy) == before
    assert (copy / "journal.jsonl").read_text() == "{}\n" and not (copy / "lock").exists()


def test_an_archive_in_many_parts_is_read_from_the_store_and_only_once_it_is_complete(
    monkeypatch: pytest.MonkeyPatch, place: Path, store: SqlStore, lease: Lease
) -> None:
    monkeypatch.setattr(archive, "PART_BYTES", 16)
    rank = talk(place, "a-1")
    (rank / "noise").write_bytes(random.Random(1).randbytes(5 << 20))  # nothing in it can be compressed
    before, shelf = read(rank), ArchiveShelf(store, lease.token)
    parts = list(pack(rank.parents[1]))
    assert len(parts) > 3
    size = shelf.write("a-1", parts)
    assert shelf.sizes() == {"a-1": size} == {"a-1": shelf.size("a-1")} and not list(store.faults())
    assert read(runs_of(store, place.parent, "a-1") / "a-1" / "1" / "rank0") == before

    def broken() -> Iterator[bytes]:
        yield from parts[:2]
        raise OSError(5, "the disk is gone")

    with pytest.raises(OSError, match="the disk is gone"):
        shelf.write("a-1", broken())
    assert not shelf.has("a-1") and shelf.jobs() == {"a-1"}, "parts without an end"
    shelf.write("a-1", parts)
    store.database.execute("UPDATE unidle_archives SET body = ? WHERE part = 1", (b"x",))
    with pytest.raises(StoreDamaged, match="part of an archive"):
        list(shelf.read("a-1"))
    assert any("a-1, part 1" in fault for fault in store.faults())
    with pytest.raises(LeaseLost):
        ArchiveShelf(store, lease.token - 1).drop_jobs(["a-1"])


def packed(worker: RetentionWorker) -> RunPacked:
    found: list[object] = []
    wait_until(lambda: found.extend(worker.results()) or any(isinstance(one, RunPacked) for one in found), 60)
    return next(one for one in found if isinstance(one, RunPacked))


def test_a_job_that_is_read_is_compressed_when_its_reader_is_gone(
    place: Path, store: SqlStore, worker: RetentionWorker
) -> None:
    from unidle.engine.local.ranks.rundir import lock_for_reading

    rank = talk(place, "a-1")
    before = read(rank)
    lock = lock_for_reading(rank.parents[1])
    assert lock is not None
    worker.pack("a-1")
    assert packed(worker).again and rank.exists()
    os.close(lock)
    worker.pack("a-1")
    assert not packed(worker).again and not rank.parents[1].exists()
    assert read(runs_of(store, place.parent, "a-1") / "a-1" / "1" / "rank0") == before
    worker.pack("a-1")  # as after kill -9 between the last part and the deletion
    assert not packed(worker).again and ArchiveShelf(store).has("a-1")
    worker.remove(("a-1",))
    wait_until(lambda: any(isinstance(one, FilesFreed) for one in worker.results()), 60)
    assert ArchiveShelf(store).jobs() == set()


def test_each_step_removes_few_jobs_and_a_reader_keeps_its_job(place: Path, worker: RetentionWorker) -> None:
    from unidle.engine.local.ranks.rundir import lock_for_reading

    telling, clock = ended(3 * AT_ONCE), RealClock()
    telling.fleet(Fleet(nodes=telling.view.fleet.nodes, retention=RetentionPolicy(jobs=1)))
    for job in telling.view.stored:
        talk(place, job, 1)
    lock = lock_for_reading(Path(f"{place}.d/runs/j-0"))
    assert lock is not None
    retention, now = Retention(Path(f"{place}.d"), worker, clock), 10**15
    steps = []
    while True:
        events = retention.look(telling.view, now)
        assert not retention.look(telling.view, now + EVERY_NS - 1), "one step in that time"
        if not events:
            break
        steps.append([job for event in events for job in event.jobs])
        for event in events:
            assert (event.by, event.why) == ("retention", "jobs 1")
            telling.tell(event)
        retention.act(events)
        now += EVERY_NS
    assert all(len(step) <= AT_ONCE for step in steps)
    assert [job for step in steps for job in step] == [f"j-{k}" for k in range(1, 3 * AT_ONCE)]
    assert list(telling.view.stored) == ["j-0"]
    runs = Path(f"{place}.d/runs")
    wait_until(lambda: [path.name for path in runs.iterdir()] == ["j-0"], 60)
    os.close(lock)


def test_a_job_that_ends_while_the_worker_lists_the_files_is_compressed(
    place: Path, worker: RetentionWorker
) -> None:
    telling, now = ended(1), 10**15
    telling.fleet(Fleet(nodes=telling.view.fleet.nodes, retention=RetentionPolicy(compress_ns=0)))
    retention, results = Retention(Path(f"{place}.d"), worker, RealClock()), worker.results
    retention.look(telling.view, now)
    listed: list[Done] = []
    wait_until(lambda: listed.extend(results()) or listed, 60, "the list, without the job")
    run = talk(place, "j-0", 1).parents[1]
    retention.ended(telling.view, "j-0")
    worker.results = lambda: listed  # type: ignore[method-assign]
    retention.look(telling.view, now := now + EVERY_NS)
    worker.results = results  # type: ignore[method-assign]
    wait_until(lambda: not run.exists(), 60, "its compression")
    assert now < 10**15 + SCAN_EVERY_NS


@pytest.fixture
def stuck(place: Path) -> Iterator[Path]:
    """The log of a job, which cannot be deleted."""
    log = talk(place, "j-0") / "log"
    try:
        places.set_immutable(log, True)
    except OSError as error:
        pytest.skip(f"no file can be made undeletable here: {error.strerror}")
    yield log
    places.set_immutable(log, False)


def test_a_file_that_cannot_be_deleted_is_reported_once_with_the_remedy(
    place: Path, worker: RetentionWorker, stuck: Path
) -> None:
    telling, said, tries = ended(1), [], []
    telling.fleet(Fleet(nodes=telling.view.fleet.nodes, retention=RetentionPolicy(jobs=0)))
    retention = Retention(Path(f"{place}.d"), worker, RealClock(), said.append)
    freed = worker.results

    def counted() -> list[Done]:
        done = freed()
        tries.extend(one for one in done if isinstance(one, FilesFreed))
        return done

    worker.results = counted  # type: ignore[method-assign]
    now = 10**15

    def step() -> int:
        nonlocal now
        now += EVERY_NS
        for event in (events := retention.look(telling.view, now)):
            telling.tell(event)
        retention.act(events)
        return len(tries)

    for wanted in (1, 2, 3):
        now += SCAN_EVERY_NS
        wait_until(lambda wanted=wanted: step() >= wanted, 60, "another try")  # type: ignore[misc]
        text = (
            f"retention: {stuck} cannot be deleted: Operation not permitted; check its owner, mode and disk; "
            "it is tried again every hour, and `unidle prune` tries it now"
        )
        assert said == [text]


def test_a_run_directory_that_cannot_be_compressed_or_deleted_is_reported(
    place: Path, store: SqlStore, worker: RetentionWorker, stuck: Path
) -> None:
    worker.pack("j-0")
    assert packed(worker).problems == (f"{stuck} cannot be deleted: Operation not permitted",)
    assert ArchiveShelf(store).has("j-0")
    talk(place, "j-1")
    store.database.execute("DROP TABLE unidle_archives")
    worker.pack("j-1")
    [problem] = packed(worker).problems
    assert problem.startswith("j-1 cannot be compressed: ")
