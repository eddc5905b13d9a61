"""Ended jobs leave the view for the store: every look at them gives what it gave before."""

from __future__ import annotations

import random
from collections.abc import Iterator
from contextlib import closing
from copy import deepcopy
from pathlib import Path
from typing import Any

import pytest

from sim.worlds import unsealed
from unidle.control.queries.find import find_job, last_ended, listed, newest_job
from unidle.errors import BadInput, StoreDamaged
from unidle.events import types as ev
from unidle.store.memory import MemoryStore
from unidle.store.open import open_store
from unidle.store.protocol import Lease, NewEvent, Store, ViewRow
from unidle.store.tools import check
from unidle.view import source, waiting_records
from unidle.view.fold import FOLD_VERSION, fold
from unidle.view.snapshot import load_view, renewed_view
from unidle.view.source import save_snapshot
from unidle.view.state import View
from view.telling import WHY, Telling


class Recorded(Telling):
    """Its events are written to a store, and :meth:`keep` saves a snapshot."""

    def __init__(self, store: Store, *devices: int) -> None:
        self.store, self.lease = store, store.acquire("test")
        super().__init__(*devices)

    def tell(self, event: ev.Event) -> Recorded:
        super().tell(event)
        kind, body = ev.encode(event)
        self.store.append(self.lease, [NewEvent(self.view.time_ns, "test", self.view.seq, kind, body)])
        return self

    def run(self, job: str, state: str = "succeeded") -> Recorded:
        self.submit(job, name=job.split("-")[0]).place(job, "n0/0").steps(job, 0, 1)
        self.end(job, 0 if state == "succeeded" else 1, "succeeded" if state == "succeeded" else "failed")
        self.done(job, state)
        return self

    def rest(self) -> Recorded:
        for job in list(self.view.jobs.open):
            self.view.jobs.rest(job)
        return self

    def keep(self, seal_at: int = 1) -> None:
        save_snapshot(self.store, self.lease, self.view, seal_at=seal_at)


@pytest.fixture(params=["memory", "sqlite"])
def told(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[Recorded]:
    store = (
        MemoryStore() if request.param == "memory" else open_store(str(tmp_path / "store.db"), create=True)
    )
    with closing(store):
        yield Recorded(store, 2)


def test_a_snapshot_leaves_ended_jobs_to_the_store(told):
    told.run("a-1").run("a-2", "failed").submit("b-1")
    told.keep()
    assert told.view.jobs.shelved == 2
    assert len(told.store.load_snapshot(FOLD_VERSION).body) > 0
    assert [one.key for one in told.store.view_rows(FOLD_VERSION, "ended job", told.view.seq)] == [
        "a-1",
        "a-2",
    ]
    for view in (told.view, load_view(told.store), deepcopy(load_view(told.store))):
        assert list(view.jobs) == ["a-1", "a-2", "b-1"]
        assert list(reversed(view.jobs)) == ["b-1", "a-2", "a-1"]
        assert len(view.jobs) == 3
        assert "a-2" in view.jobs
        assert "a-3" not in view.jobs
        assert 7 not in view.jobs
        assert view.jobs["a-2"].state == "failed"
        assert view.jobs.get("a-3") is None
        with pytest.raises(KeyError):
            view.jobs["a-3"]
        assert [job.id for job in view.jobs.values()] == ["a-1", "a-2", "b-1"]


def test_what_follows_a_snapshot_may_name_jobs_that_it_left_out(told):
    told.run("a-1").run("a-2")
    told.keep()
    told.submit("a-1")  # the same request twice
    told.tell(ev.JobsRemoved(("a-1",), "ann"))
    told.run("b-1")
    for view in (told.view, load_view(told.store)):
        assert [job.id for job in listed(view)] == ["a-2", "b-1"]
        assert [job.id for job in last_ended(view, 10)] == ["a-2", "b-1"]
        assert find_job(view, "a").id == "a-2"
        assert find_job(view, "a-1", removed=True).state == "succeeded"
        assert newest_job(view).id == "b-1"
        assert view.jobs["b-1"].order == 2


def test_removals_leave_the_view_for_the_store_in_their_order(told):
    for job in ("a-1", "a-2", "a-3", "a-4"):
        told.run(job)
    told.tell(ev.JobsRemoved(("a-2", "a-1"), "ann"))
    told.keep()
    earlier = load_view(told.store)
    told.tell(ev.JobsRemoved(("a-4", "a-1"), "retention", "older than 10 min"))
    for kept in (False, True):
        if kept:
            told.keep()
        for view in (told.view, load_view(told.store)):
            assert view.removed.shelved == (3 if kept else 2)
            assert list(view.removed) == ["a-2", "a-1", "a-4"]
            assert list(reversed(view.removed)) == ["a-4", "a-1", "a-2"]
            assert len(view.removed) == 3
            assert [(view.removed[job].by, view.removed[job].why) for job in ("a-1", "a-4")] == [
                ("ann", ""),
                ("retention", "older than 10 min"),
            ]
            assert "a-3" not in view.removed
            assert 7 not in view.removed
            assert [job.id for job in listed(view)] == [job.id for job in last_ended(view, 5)] == ["a-3"]
            with pytest.raises(BadInput, match="the job was removed by ann"):
                find_job(view, "a-2")
    assert list(earlier.removed) == ["a-2", "a-1"]
    fold(earlier, told.store.read(after=earlier.seq))
    assert unsealed(earlier) == unsealed(fold(View(), told.store.read()))


def test_a_reader_of_an_earlier_snapshot_sees_what_it_read(told):
    told.run("a-1").submit("b-1")
    told.keep()
    earlier = load_view(told.store)
    told.place("b-1", "n0/1").steps("b-1", 0, 1).end("b-1", 0, "succeeded").done("b-1", "succeeded")
    told.run("c-1")
    told.keep()
    assert told.view.jobs.shelved == 3
    assert {job: earlier.jobs[job].state for job in earlier.jobs} == {"a-1": "succeeded", "b-1": "queued"}
    fold(earlier, told.store.read(after=earlier.seq))
    assert [earlier.jobs[job].state for job in earlier.jobs] == ["succeeded"] * 3
    assert unsealed(earlier) == unsealed(fold(View(), told.store.read()))


@pytest.mark.parametrize("seed", range(5))
def test_any_snapshots_give_the_view_that_the_whole_log_gives(seed):
    dice, told = random.Random(seed), Recorded(MemoryStore(), 2)
    waiting = []
    for number in range(40):
        if dice.random() < 0.6:
            told.run(f"a-{number}", dice.choice(["succeeded", "failed"]))
        else:
            told.submit(f"w-{number}")
            waiting.append(f"w-{number}")
        if waiting and dice.random() < 0.3:
            job = waiting.pop(dice.randrange(len(waiting)))
            told.place(job, "n0/1").steps(job, 0, 1).end(job, 0, "succeeded").done(job, "succeeded")
        if told.view.stored and dice.random() < 0.2:
            told.tell(ev.JobsRemoved((dice.choice(list(told.view.stored)),), "ann"))
        if dice.random() < 0.5:
            told.rest()
        if dice.random() < 0.3:
            told.keep(seal_at=dice.choice([1, 10**6]))
        if dice.random() < 0.1:
            told.view = renewed_view(told.store)
    whole = fold(View(), told.store.read())
    for view in (told.view, load_view(told.store)):
        assert list(view.jobs) == list(whole.jobs)
        assert list(reversed(view.jobs)) == list(reversed(whole.jobs))
        assert list(view.removed) == list(whole.removed)
        assert unsealed(view) == unsealed(whole)


class Counted(MemoryStore):
    """Counts how often rows are read."""

    looked_up = walked = 0

    def view_row(self, *of: Any) -> bytes | None:
        self.looked_up += 1
        return super().view_row(*of)

    def view_rows(self, *of: Any, **more: Any) -> Iterator[ViewRow]:
        self.walked += 1
        return super().view_rows(*of, **more)


def test_a_reader_reads_no_ended_job_but_those_that_it_looks_at() -> None:
    store = Counted()
    told = Recorded(store, 2)
    for job in ("a-1", "a-2", "a-3"):
        told.run(job)
    told.tell(ev.JobsRemoved(("a-3",), "ann")).submit("b-1")
    told.keep()
    store.looked_up = store.walked = 0
    view = load_view(store)
    assert newest_job(view).id == "b-1"
    assert len(view.jobs) == 4
    assert (store.looked_up, store.walked) == (0, 0)
    assert [job.id for job in last_ended(view, 10)] == ["a-1", "a-2"]
    assert store.walked == 0
    assert [job.id for job in listed(view)] == ["a-1", "a-2", "b-1"]
    assert store.walked == 1


def test_a_writer_makes_a_damaged_record_again(tmp_path):
    path = str(tmp_path / "store.db")
    with closing(open_store(path, create=True)) as store:
        told = Recorded(store, 2)
        told.run("a-1").run("a-2")
        told.keep()
        with store.transaction():
            store.database.execute("UPDATE unidle_view_rows SET body = ? WHERE key = 'a-1'", (b"other",))
        with pytest.raises(StoreDamaged, match="ended job a-1: its record is damaged"):
            load_view(store).jobs["a-1"]
        view = renewed_view(store)
        assert view.jobs["a-1"].state == "succeeded"
        save_snapshot(store, told.lease, view, seal_at=1)
        assert load_view(store).jobs["a-1"].state == "succeeded"
        assert store.has_view_rows(FOLD_VERSION, "ended job", view.seq, 2)


def test_an_ended_job_that_is_missing_from_the_store_is_told(tmp_path):
    with closing(open_store(str(tmp_path / "store.db"), create=True)) as store:
        told = Recorded(store, 2)
        told.run("a-1").run("a-2").tell(ev.JobsRemoved(("a-2",), "ann"))
        told.keep()
        with store.transaction():
            store.database.execute("DELETE FROM unidle_view_rows WHERE key = 'a-1'")
            store.database.execute("DELETE FROM unidle_view_rows WHERE key = 'a-2' AND part = 'removed job'")
        for view in (told.view, load_view(store)):
            with pytest.raises(StoreDamaged, match="1 ended job is missing"):
                list(view.jobs)
            with pytest.raises(StoreDamaged, match="1 removed job is missing"):
                list(view.removed)
        assert list(renewed_view(store).removed) == ["a-2"]
        assert [job.state for job in renewed_view(store).jobs.values()] == ["succeeded"] * 2


def test_a_snapshot_that_was_not_kept_takes_nothing_from_the_view(told):
    told.run("a-1")
    with pytest.raises(Exception, match=r"lease|writer|held"):
        save_snapshot(told.store, Lease(99, "other"), told.view, seal_at=10**6)
    assert told.view.jobs.shelved == 0
    assert told.view.jobs["a-1"].because == WHY


def wait(told: Recorded, *jobs: str) -> Recorded:
    for job in jobs:
        told.submit(job, name=job)
    return told.rest()


def waiting_rows(told: Recorded) -> list[str]:
    return sorted(told.store.view_row_keys(FOLD_VERSION, "waiting job"))


def test_a_snapshot_leaves_waiting_jobs_to_the_store(told):
    wait(told, "w-1", "w-2").run("a-1")
    told.keep()
    assert waiting_rows(told) == [f"{job} {told.view.seq}" for job in ("w-1", "w-2")]
    for view in (told.view, load_view(told.store), deepcopy(load_view(told.store))):
        assert list(view.jobs.resting) == list(view.jobs.open) == ["w-1", "w-2"]
        assert view.jobs["w-2"].spec.name == "w-2"
        assert list(view.jobs.resting) == ["w-1"]
        assert [job.id for job in view.jobs.open.values()] == ["w-1", "w-2"]
        assert list(view.jobs) == ["w-1", "w-2", "a-1"]


def test_a_waiting_job_that_changed_is_written_again_and_its_former_row_stays_a_while(told):
    wait(told, "w-1", "w-2").keep()
    earlier, first = load_view(told.store), told.view.seq
    told.tell(ev.JobJudged("w-1", WHY)).rest().keep()
    assert waiting_rows(told) == [f"w-1 {first}", f"w-1 {first + 1}", f"w-2 {first}"]
    assert earlier.jobs["w-1"].verdict is None
    assert load_view(told.store).jobs["w-1"].verdict == WHY
    view = renewed_view(told.store)
    assert view.jobs.records.outdated([]) == [f"w-1 {first}"]
    save_snapshot(told.store, told.lease, view)
    assert waiting_rows(told) == [f"w-1 {first + 1}", f"w-2 {first}"]
    assert load_view(told.store).jobs["w-2"].verdict is None


def test_rows_of_jobs_that_wait_no_more_are_dropped_once_they_are_many(told, monkeypatch):
    monkeypatch.setattr(waiting_records, "_STALE", 2)
    wait(told, *(f"w-{number}" for number in range(6))).keep()
    for number in range(5):
        told.tell(ev.JobJudged(f"w-{number}", WHY))
    told.keep()
    assert [key.split()[0] for key in waiting_rows(told)] == ["w-3", "w-4", "w-5"]
    assert [job.verdict for job in load_view(told.store).jobs.values()] == [WHY] * 5 + [None]


@pytest.mark.parametrize(
    "spoil", ["DELETE FROM unidle_view_rows WHERE key LIKE 'w-2 %'", "UPDATE unidle_view_rows SET body = 'x' WHERE key LIKE 'w-2 %'"]
)  # fmt: skip
def test_a_writer_makes_the_record_of_a_waiting_job_again(tmp_path, spoil):
    with closing(open_store(str(tmp_path / "store.db"), create=True)) as store:
        told = wait(Recorded(store, 2), "w-1", "w-2", "w-3")
        told.keep()
        with store.transaction():
            store.database.execute(spoil)
        with pytest.raises(StoreDamaged, match=r"waiting job w-2( \d+)?: its record is (missing|damaged)"):
            load_view(store).jobs["w-2"]
        assert load_view(store).jobs["w-1"].spec.name == "w-1"
        view = renewed_view(store)
        for job in list(view.jobs.open):
            view.jobs.rest(job)
        save_snapshot(store, told.lease, view)
        assert check(store).ok
        assert [job.spec.name for job in load_view(store).jobs.values()] == ["w-1", "w-2", "w-3"]


def test_who_reads_all_waiting_jobs_reads_their_rows_at_once():
    store = Counted()
    told = wait(Recorded(store, 2), *(f"w-{number}" for number in range(100)))
    told.keep()
    view = load_view(store)
    store.looked_up = store.walked = 0
    assert [job.spec.name for job in view.jobs.values()] == [f"w-{number}" for number in range(100)]
    assert (store.looked_up, store.walked) == (0, 1)


def test_waiting_jobs_stay_in_memory_if_their_rows_were_not_kept(told):
    wait(told, "w-1")
    with pytest.raises(Exception, match=r"lease|writer|held"):
        save_snapshot(told.store, Lease(99, "other"), told.view)
    told.submit("w-2", name="w-2").keep()
    for view in (told.view, load_view(told.store)):
        assert [job.spec.name for job in view.jobs.values()] == ["w-1", "w-2"]


def test_ended_jobs_are_sealed_once_they_are_many(told, monkeypatch):
    monkeypatch.setattr(source, "SEAL_AT_JOBS", 3)
    told.run("a-1").run("a-2")
    told.keep(seal_at=1_000)
    assert (told.view.jobs.shelved, len(told.store.segments(FOLD_VERSION))) == (0, 0)
    told.run("a-3")
    told.keep(seal_at=2)
    assert (told.view.jobs.shelved, len(told.store.segments(FOLD_VERSION))) == (3, 1)
