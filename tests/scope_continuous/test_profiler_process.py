"""The controller and its profiler: two processes, of which either may be killed at any moment."""

from __future__ import annotations

import os
import signal
import sys
import time
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, closing, contextmanager
from dataclasses import dataclass, replace
from pathlib import Path

import pytest

from sim.worlds import fleet_of
from unidle.control.gangs import profiler as of_profiler
from unidle.control.session import ControllerSession, take_up
from unidle.engine.local.ranks import process_tree
from unidle.events import types as ev
from unidle.fleet.policies import ProfilePolicy
from unidle.jobs import JobSpec
from unidle.ledger.current import check_batches
from unidle.ledger.query import summary
from unidle.scope.continuous import process as of_process
from unidle.scope.continuous import windows
from unidle.store.open import open_store
from unidle.store.profiles import ProfileShelf
from unidle.store.tools import check
from unidle.view.snapshot import load_view
from unidle.view.source import ledger_source

PROFILER = (sys.executable, str(Path(__file__).with_name("profiler.py")))
POLICY = ProfilePolicy(on=True, hz=50, look_ns=300_000_000, every_ns=1_000_000_000, most_ppm=1_000_000)
SILENT = "import time\nwhile True: time.sleep(0.01)"  # a loop that prints nothing


@dataclass
class World:
    """A store that is driven within the test's process."""

    address: str
    session: ControllerSession
    events: list[ev.Event]

    def run(self, until: Callable[[], object], what: str) -> None:
        """Turn until it holds."""
        deadline = time.monotonic() + 40
        self.session.controller.run(lambda: bool(until()) or time.monotonic() > deadline)
        assert until(), f"{what}: {[type(event).__name__ for event in self.events[-20:]]} {self.events[-1]}"

    def seen(self, kind: type) -> list[ev.Event]:
        return [event for event in self.events if isinstance(event, kind)]

    @property
    def profiler(self) -> of_profiler.Profiler:
        found = self.session.controller._services.profiler
        assert found is not None
        return found

    def submit(self, job: str, script: str = SILENT, ranks: int = 2) -> None:
        self.session.controller.submit(job, JobSpec((sys.executable, "-c", script), name=job, ranks=ranks))

    def end(self, job: str) -> None:
        self.session.controller.cancel(job, "test")
        self.session.controller.kill(job)
        self.run(lambda: self.session.controller.view.jobs[job].terminal, f"{job} to end")


@pytest.fixture
def world(tmp_path, monkeypatch) -> Callable[..., AbstractContextManager[World]]:
    """A function that takes a store up, as a context."""
    monkeypatch.setattr(of_process, "COMMAND", PROFILER)
    monkeypatch.setattr(of_process, "FIRST_PAUSE_S", 0.05)

    @contextmanager
    def made(**more: object) -> Iterator[World]:
        address = str(tmp_path / "s.db")
        fleet = replace(fleet_of(4), profile=replace(POLICY, **more))
        events: list[ev.Event] = []
        with closing(open_store(address, create=True)) as store:
            opened = take_up(
                store,
                fleet,
                tmp_path,
                "test",
                watcher=lambda event, _: events.append(event),
                profile_to=address,
            )
            with opened as session:
                yield World(address, session, events)

    return made


def rows_of(address: str, job: str) -> list:
    with closing(open_store(address, create=False, read_only=True)) as store:
        assert check(store).ok
        return list(ProfileShelf(store).rows(job, 0, 2**62))


def test_running_ranks_are_looked_at_and_the_ledger_shows_what_was_found(world):
    with world() as w:
        w.submit("j")
        w.run(lambda: len(w.seen(ev.BudgetMeasured)) >= 2, "two looks")
        address = w.address
        with closing(open_store(address, create=False, read_only=True)) as store:
            source = ledger_source(store, load_view(store))
            assert not check_batches(source.batches(source.extent()))
            answer = summary(source, source.extent(), ["leaf", "how"])
        w.end("j")
    rows = rows_of(address, "j")
    assert {(row.attempt, row.rank) for row in rows} == {(1, 0), (1, 1)}
    for row in rows:
        profile = windows.unpacked(row.body)
        assert [p.rank for p in profile.processes if p.rank is not None] == [row.rank]
        assert abs((row.end_ns - row.start_ns) - (profile.end_ns - profile.start_ns)) < 50_000_000
    found = {tuple(group.labels): group.ns for group in answer.groups}
    looks = w.seen(ev.BudgetMeasured)
    measured = sum(look.ranks[rank]["data_stall"] for look in looks for rank in look.ranks)
    assert 0 < found["data_stall", "measured"] <= measured
    assert found["data_stall", "inferred"] > 0


def test_a_job_that_prints_nothing_shows_that_it_works(world):
    with world() as w:
        w.submit("j")
        w.run(lambda: w.seen(ev.StepsWatched), "steps")
        attempt = w.session.controller.view.jobs["j"].attempts[0]
        assert attempt.watched_ns is not None and attempt.ranks[0].worked_ns > attempt.placed_ns
        assert attempt.last_step() is None
        w.end("j")


def test_a_profiler_that_crashes_is_said_and_started_again(world, tmp_path, monkeypatch):
    crash = tmp_path / "crash"
    crash.touch()
    monkeypatch.setenv("UNIDLE_TEST_CRASH", str(crash))
    with world() as w:
        w.submit("j")
        w.run(lambda: w.session.controller.view.profiler == "", "a look after the crash")
        said = [event.why_not for event in w.seen(ev.ProfilerSet)]
        assert said == ["the profiler was killed by signal 6", ""] and w.seen(ev.BudgetMeasured)
        w.end("j")


def test_a_profiler_that_is_killed_again_and_again_never_stops_the_job(world):
    with world() as w:
        w.submit("j")
        for _ in range(3):
            w.run(lambda: w.profiler.pid is not None, "a profiler")
            pid = w.profiler.pid
            assert pid is not None
            os.kill(pid, signal.SIGKILL)
            w.run(lambda gone=pid: w.profiler.pid not in (None, gone), "the next profiler")
        looks = len(w.seen(ev.BudgetMeasured))
        w.run(lambda: len(w.seen(ev.BudgetMeasured)) > looks, "a look")
        assert w.session.controller.view.jobs["j"].state == "running"
        w.end("j")
    assert rows_of(w.address, "j")


def test_no_profiler_outlives_its_controller(world):
    with world() as w:
        w.submit("j")
        w.run(lambda: w.seen(ev.BudgetMeasured), "a look")
        pid = w.profiler.pid
        w.end("j")
    assert pid is not None and not process_tree.is_live(pid)


@pytest.mark.slow
def test_jobs_that_end_during_a_look_and_new_ones_are_looked_at(world):
    with world(every_ns=16_000_000_000) as w:
        w.submit("short", "import time; time.sleep(4.5)", ranks=1)
        w.run(lambda: w.session.controller.view.jobs["short"].terminal, "its end")
        w.submit("next")  # is new, so it does not wait its turn
        w.run(lambda: any(event.job == "next" for event in w.seen(ev.BudgetMeasured)), "a look at it")
        w.end("next")


def test_where_nobody_asks_for_it_there_is_no_profiler(world):
    with world(on=False) as w:
        w.submit("j", "import time; time.sleep(0.3)", ranks=1)
        w.run(lambda: w.session.controller.view.jobs["j"].terminal, "its end")
        assert w.session.controller._services.profiler is None and not w.seen(ev.ProfilerSet)


@pytest.mark.parametrize(
    ("program", "says"),
    [
        (["-c", "import sys; sys.exit('no eyes')"], "the profiler ended with code 1: no eyes"),
        (
            ["-c", "print('nonsense', flush=True); import time; time.sleep(60)"],
            "the profiler's output cannot be read",
        ),
        (
            ["-c", "import os; os.close(1); import time; time.sleep(60)"],
            "the profiler was killed by signal 9",
        ),
    ],
)
def test_a_profiler_that_does_not_work_is_said(world, monkeypatch, program, says):
    monkeypatch.setattr(of_process, "COMMAND", (sys.executable, *program))
    with world() as w:
        w.submit("j")
        w.run(lambda: any(event.why_not.startswith(says) for event in w.seen(ev.ProfilerSet)), says)
        w.end("j")


def test_one_that_hangs_is_ended_and_said(world, monkeypatch):
    monkeypatch.setattr(of_process, "COMMAND", (sys.executable, "-c", "import time; time.sleep(60)"))
    monkeypatch.setattr(of_process, "SILENT_S", 0.2)
    with world() as w:
        w.submit("j")
        w.run(
            lambda: any("did not answer" in event.why_not for event in w.seen(ev.ProfilerSet)),
            "that it hangs",
        )
        w.end("j")


def test_a_command_that_is_not_there_is_said(world, monkeypatch):
    monkeypatch.setattr(of_process, "COMMAND", ("/nonexistent/profiler",))
    with world() as w:
        w.submit("j")
        w.run(lambda: any("cannot be started" in event.why_not for event in w.seen(ev.ProfilerSet)), "that")
        w.end("j")
