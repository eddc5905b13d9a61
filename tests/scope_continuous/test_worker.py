"""One look and what follows from it: rows, events, and what is said when something does not work."""

from __future__ import annotations

import json
import subprocess
import sys
from collections.abc import Iterator, Sequence
from contextlib import closing, contextmanager, suppress
from dataclasses import replace
from pathlib import Path

import msgspec
import pytest

import needs
from scope_continuous import procfs
from unidle.engine.local.ranks import process_tree, rundir
from unidle.errors import CannotRun, LeaseLost
from unidle.events import scope as ev
from unidle.events import types
from unidle.fleet.policies import ProfilePolicy
from unidle.scope.continuous.keeper import Keeper
from unidle.scope.continuous.per_rank import RankFinding
from unidle.scope.continuous.rank_processes import RankFinder, RunningAttempt
from unidle.scope.continuous.windows import APART, host_of, unpacked
from unidle.scope.continuous.worker import Worker, WorkerConfig
from unidle.scope.model import Profile
from unidle.store.open import open_store
from unidle.store.profiles import ProfileRow, ProfileShelf

POLICY = ProfilePolicy(on=True, look_ns=100_000_000, hz=50)
JOB = RunningAttempt("j", 1, 1)


@contextmanager
def rank(run_root: Path, attempt: RunningAttempt = JOB, number: int = 0) -> Iterator[int]:
    """A process that a run directory says is a rank."""
    with subprocess.Popen([sys.executable, "-S", "-c", "while True: pass"]) as process:
        try:
            directory = Path(rundir.rank_dir(run_root, attempt.job, attempt.attempt, number))
            directory.mkdir(parents=True)
            mark = {"k": "spawn", "t": 1, "pid": process.pid, "ticks": process_tree.ticks_of(process.pid)}
            (directory / rundir.JOURNAL).write_text(json.dumps(mark) + "\n")
            yield process.pid
        finally:
            process.kill()


def judge(profile: Profile) -> dict[int, RankFinding]:
    return {p.rank: RankFinding({"data": 100.0}, 0.0, ()) for p in profile.processes if p.rank is not None}


class Heard:
    """A worker without a process of its own, and what it told."""

    def __init__(
        self, run_root: Path, keeper: Keeper | None, look: object = procfs.look, runs: str = ""
    ) -> None:  # fmt: skip
        self.events: list[types.Event] = []
        self.rows: list[ProfileRow] = []
        orders = WorkerConfig("", str(run_root), 1, 0, POLICY, runs)
        self.worker = Worker(orders, look, judge, keeper, self._tell)  # type: ignore[arg-type]
        self.worker.attend((JOB,))

    def _tell(self, kind: str, body: object) -> None:
        told = msgspec.json.encode(body)
        if kind == "row":
            self.rows.append(msgspec.json.decode(told, type=ProfileRow))
        else:
            self.events.append(types.decode(kind, told))

    def said(self) -> list[str]:
        return [event.why_not for event in self.events if isinstance(event, ev.ProfilerSet)]


def test_a_look_gives_a_row_and_a_budget_of_its_window(tmp_path):
    with closing(open_store(str(tmp_path / "s.db"), create=True)) as store, rank(tmp_path / "runs"):
        shelf = ProfileShelf(store, store.acquire("test").token)
        heard = Heard(tmp_path / "runs", Keeper(shelf, POLICY))
        assert heard.worker.once()
        (row,) = shelf.rows("j", 0, 2**62)
        (budget,) = (event for event in heard.events if isinstance(event, ev.BudgetMeasured))
        assert (budget.start_ns, budget.end_ns) == (row.start_ns, row.end_ns)
        assert budget.ranks == {0: {"data_stall": row.end_ns - row.start_ns}}
        assert heard.said() == [""]


def test_a_process_that_took_over_the_number_of_a_rank_is_not_looked_at(tmp_path):
    with rank(tmp_path) as pid:
        assert RankFinder(str(tmp_path)).roots([JOB]) == {JOB: {0: pid}}
        journal = Path(rundir.rank_dir(tmp_path, "j", 1, 0)) / rundir.JOURNAL
        journal.write_text(json.dumps({"k": "spawn", "t": 1, "pid": pid, "ticks": 1}) + "\n")
        assert RankFinder(str(tmp_path)).roots([JOB]) == {}


@pytest.mark.parametrize("journal", ["", "{", '{"k":"spawn","t":1}\n', "nonsense\n" * 9])
def test_a_journal_that_says_nothing_yet_is_read_again(tmp_path, journal):
    directory = Path(rundir.rank_dir(tmp_path, "j", 1, 0))
    directory.mkdir(parents=True)
    (directory / rundir.JOURNAL).write_text(journal)
    assert not Heard(tmp_path, None).worker.once()


def test_a_look_that_fails_is_said_once_and_the_next_one_goes_on(tmp_path):
    fails = [True, True, False]

    def look(pids: Sequence[int], seconds: float, *, hz: int) -> Profile:
        if fails.pop(0):
            raise ProcessLookupError(3, "No such process")
        return procfs.look(pids, seconds, hz=hz)

    with closing(open_store(str(tmp_path / "s.db"), create=True)) as store, rank(tmp_path / "runs"):
        heard = Heard(tmp_path / "runs", Keeper(ProfileShelf(store, store.acquire("t").token), POLICY), look)
        assert [heard.worker.once() for _ in range(3)] == [False, False, True]
        assert heard.said() == ["the last profile failed: [Errno 3] No such process", ""]


def test_where_looking_is_not_permitted_the_process_ends_with_the_reason(tmp_path):
    def look(pids: Sequence[int], seconds: float, *, hz: int) -> Profile:
        raise PermissionError(1, "Operation not permitted")

    with rank(tmp_path), pytest.raises(CannotRun, match="running jobs cannot be profiled"):
        Heard(tmp_path, None, look).worker.once()


@needs.root
def test_a_full_disk_is_said_and_what_was_measured_is_told_all_the_same(tmp_path):
    disk = tmp_path / "disk"
    disk.mkdir()
    subprocess.run(["mount", "-t", "tmpfs", "-o", "size=1m", "tmpfs", disk], check=True)
    try:
        with closing(open_store(str(disk / "s.db"), create=True)) as store, rank(tmp_path / "runs"):
            shelf = ProfileShelf(store, store.acquire("test").token)
            heard = Heard(tmp_path / "runs", Keeper(shelf, POLICY))
            assert heard.worker.once()
            with suppress(OSError), (disk / "fill").open("wb", buffering=0) as file:
                while True:
                    file.write(bytes(4096))
            for _ in range(200):
                if len(heard.said()) > 1:
                    break
                heard.worker.once()
            looks = [event for event in heard.events if isinstance(event, ev.BudgetMeasured)]
            assert "no space is left on the disk" in heard.said()[-1] and len(looks) >= 2
            (disk / "fill").unlink()
            assert heard.worker.once() and heard.said()[-1] == ""
            kept = list(shelf.rows("j", 0, 2**62))
            assert len(kept) >= 2 and len(kept) < len(looks) + 1
    finally:
        subprocess.run(["umount", disk], check=True)


def test_a_worker_whose_controller_lost_the_store_ends(tmp_path):
    path = str(tmp_path / "s.db")
    with closing(open_store(path, create=True)) as store, rank(tmp_path / "runs"):
        lease = store.acquire("first")
        heard = Heard(
            tmp_path / "runs", Keeper(ProfileShelf(open_store(path, create=False), lease.token), POLICY)
        )
        store.release(lease)
        store.acquire("second")
        with pytest.raises(LeaseLost):
            heard.worker.once()


def test_steps_that_cannot_be_seen_any_more_say_nothing(tmp_path):
    steps = {"now": True}

    def some(profile: Profile) -> dict[int, RankFinding]:
        done = (profile.start_ns + 1, profile.start_ns + 2) if steps["now"] else ()
        return {0: RankFinding({}, 0.0, done)}

    misses = {"now": ("stacks",)}

    def look(pids: Sequence[int], seconds: float, *, hz: int) -> Profile:
        return replace(procfs.look(pids, seconds, hz=hz), misses=misses["now"])

    with rank(tmp_path):
        heard = Heard(tmp_path, None, look)
        heard.worker.judge = some
        heard.worker.once()
        steps["now"] = False
        heard.worker.once()
        misses["now"] = ("stacks", "steps")
        heard.worker.once()
    told = [event.ranks for event in heard.events if isinstance(event, ev.StepsWatched)]
    assert [len(ranks[0]) for ranks in told] == [2, 0]


def test_on_a_host_the_ranks_of_its_boxes_are_looked_at_and_their_numbers_are_apart(tmp_path):
    with rank(tmp_path / "j/runs", number=2), rank(tmp_path / "j/runs", number=5) as last:
        heard = Heard(tmp_path, None, runs="runs")
        assert heard.worker.once()
    profiles = {row.rank: unpacked(row.body) for row in heard.rows}
    assert sorted(profiles) == [2, 5] and {host_of(one) for one in profiles.values()} == {3}
    assert [p.pid for p in profiles[5].processes if p.rank == 5] == [last + 3 * APART]
    [measured] = [event for event in heard.events if isinstance(event, ev.BudgetMeasured)]
    assert sorted(measured.ranks) == [2, 5]
