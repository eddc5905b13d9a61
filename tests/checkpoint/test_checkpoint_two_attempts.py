"""A training rank that was stopped in a save, with its holder, and wakes up after the next attempt of its job has begun."""

from __future__ import annotations

import json
import os
import signal
from collections.abc import Iterator
from pathlib import Path

import pytest

pytest.importorskip("torch", reason="needs PyTorch (pip install unidle[train])")

from checkpoint.jobs import Job, started_after, steps_of, wait_for_step
from examples.gang import Gang
from unidle.checkpoint.holder import wire
from unidle.checkpoint.layout import read_manifest
from waiting import wait_until

pytestmark = pytest.mark.slow


@pytest.fixture
def stopped_ranks(tmp_path: Path) -> Iterator[list[int]]:
    """Process ids that are continued at the end, whatever happened."""
    found: list[int] = []
    yield found
    for pid in found:
        try:
            os.kill(pid, signal.SIGCONT)
        except ProcessLookupError:
            continue


class TwoAttempts(Job):
    """One rank; each run is the next attempt, on a node of its own."""

    def environment(self, rank: int) -> dict[str, str]:
        of = {"UNIDLE_RUN_ID": f"u-job-{self.runs}", "UNIDLE_ATTEMPT": f"{self.runs}"}
        return {**super().environment(rank), **of, "UNIDLE_NODE": f"n{self.runs}"}

    def end(self) -> None:
        for node in ("n1", "n2"):
            self.kill_holder(node)


@pytest.fixture
def job(tmp_path: Path) -> Iterator[TwoAttempts]:
    made = TwoAttempts(
        tmp_path,
        "--restore-test",
        "read",
        "--batch",
        "8",
        "--width",
        "16",
        "--checkpoint-every",
        "5",
        nodes=1,
    )
    yield made
    made.end()


def stopped_in_a_save(job: TwoAttempts, gang: Gang, stopped: list[int]) -> int:
    """Stop a rank that has ordered a save, and its holder, which has not begun it. Its last step."""
    wait_for_step(gang, 12)
    holder = json.loads((job.hold("n1") / wire.ADDRESS).read_text())["pid"]
    stopped += [holder, gang.processes[0].pid]
    os.kill(holder, signal.SIGSTOP)
    wait_for_step(gang, max(steps_of(gang.printed(0))) + 6)
    os.kill(gang.processes[0].pid, signal.SIGSTOP)
    return max(steps_of(gang.printed(0)))


def sessions(place: Path) -> dict[str, str]:
    """Who saved each checkpoint."""
    return {path.name: read_manifest(str(path)).session for path in place.glob("step_*")}


def test_a_training_rank_that_wakes_up_after_the_next_attempt_stores_nothing(
    job: TwoAttempts, stopped_ranks: list[int]
) -> None:
    with job.run("--steps", "100000", "--step-s", "0.05") as old:
        at = stopped_in_a_save(job, old, stopped_ranks)
        with job.run("--steps", str(at + 30)) as new:
            assert new.codes() == [0], new.printed(0)
            assert 0 < started_after(new) < at
        before = sessions(job.storage)
        for pid in stopped_ranks:
            os.kill(pid, signal.SIGCONT)
        wait_until(lambda: "attempt 2 of this job has begun" in old.printed(0), 60, "the refusal")
        wait_for_step(old, at + 20)  # training goes on, as for any save that fails
        assert sessions(job.storage) == before
        old.kill(0)
        old.codes()
