"""The few lines at the end of ``unidle run``: of the job alone, and advice that is true of it."""

from __future__ import annotations

import pytest

from sim.worlds import fleet_of
from unidle.ledger.query import summary
from unidle.report.job_summary import advice, job_summary
from unidle.store.memory import MemoryStore
from unidle.view.source import ledger_source
from view.telling import Telling


def lines_of(told: Telling, job: str = "j", width: int = 80, colour: bool = False) -> list[str]:
    asked = summary(ledger_source(MemoryStore(), told.view), where={"job": [job]})
    return job_summary(told.view, told.job(job), asked, width, colour).splitlines()


def advice_of(told: Telling, job: str = "j") -> str:
    asked = summary(ledger_source(MemoryStore(), told.view), where={"job": [job]})
    return " ".join(advice(told.view, told.job(job), asked))


def trained(steps: int = 8, ready_s: float = 2, devices: int = 4, **spec: object) -> Telling:
    """A job on one of several devices, from second 0 on, with a step each second once it is ready."""
    told = cpus(devices).submit("j", **spec).place("j", "n0/0").at(ready_s).mark("j", 0, "ready")
    return told.steps("j", 1, steps)


def cpus(devices: int) -> Telling:
    return Telling().fleet(fleet_of(devices, kind="cpu"))


def test_a_summary_is_of_the_jobs_own_devices() -> None:
    told = trained().end("j", 0, "succeeded").done("j", "succeeded")
    outcome, steps, *bars = lines_of(told)
    assert outcome == "j succeeded after 1 attempt in 10.0 s: because"
    assert steps == "steps 1 to 8 at 1 steps/s, 1 rank on 1 CPU device"
    assert [bar.replace("█", "").split() for bar in bars] == [
        ["useful", "80.0", "%", "8.0", "device-s"],
        ["held", "start", "20.0", "%", "2.0", "device-s"],
    ]
    assert [bar.count("█") for bar in bars] == [29, 7]


@pytest.mark.parametrize(("width", "colour"), [(60, False), (80, True), (200, False)])
def test_at_most_five_lines_stand_before_the_advice(width: int, colour: bool) -> None:
    told = trained(8).mark("j", 0, "saved", n=8).steps("j", 9, 30)
    told.end("j", 1, "failed").retry("j").at(50).place("j", "n0/1").at(53).mark("j", 0, "ready")
    told.steps("j", 9, 20).end("j", 0, "succeeded").done("j", "succeeded")
    lines = lines_of(told, width=width, colour=colour)
    before = [line for line in lines if line not in advice_of(told)]
    assert len(before) <= 5
    assert any("\x1b[38;5;" in line for line in lines) is colour
    assert colour or max(map(len, before[2:])) <= width
    assert "22 steps done again after a restart" in lines[1]


def test_steps_of_the_last_attempt_that_failed_are_lost_and_not_done_again() -> None:
    told = trained(8).end("j", 1, "failed").retry("j").at(50).place("j", "n0/1").at(53).mark("j", 0, "ready")
    told.steps("j", 1, 3).end("j", 1, "failed").done("j", "failed")
    assert lines_of(told)[1].endswith("; 8 steps done again after a restart, 3 steps not saved")
    assert lines_of(trained(1).end("j", 1, "failed").done("j", "failed"))[1].startswith("step 1, 1 rank")


def test_a_wait_in_the_queue_is_named() -> None:
    told = cpus(1).submit("j").at(30).place("j", "n0/0").steps("j", 1, 3).end("j", 0, "succeeded")
    assert "in 33.0 s (30.0 s of it waiting)" in lines_of(told.done("j", "succeeded"))[0]


def test_time_without_steps_is_not_called_useful() -> None:
    told = cpus(1).submit("j").place("j", "n0/0").at(60).end("j", 0, "succeeded").done("j", "succeeded")
    lines = lines_of(told)
    assert lines[1] == "no steps were seen, 1 rank on 1 CPU device"
    assert not any(line.startswith("useful") for line in lines)


def test_a_job_that_never_started_has_a_summary_too() -> None:
    told = cpus(1).submit("j").at(5).done("j", "cancelled")
    assert lines_of(told) == [
        "j cancelled after 0 attempts in 5.0 s (5.0 s of it waiting): because",
        "no steps were seen, 1 rank on 1 CPU device",
    ]


def test_a_job_without_devices_is_not_on_0_of_them() -> None:
    told = cpus(2).submit("j", ranks=2, devices_per_rank=0).done("j", "cancelled")
    assert lines_of(told)[1] == "no steps were seen, 2 ranks with no device"


def test_lost_steps_without_checkpoints_advise_their_directory() -> None:
    told = trained().end("j", 1, "failed").done("j", "failed")
    assert "--checkpoint DIR" in advice_of(told)
    told = trained(checkpoint_path="/ckpt").end("j", 1, "failed").done("j", "failed")
    assert "No checkpoint appeared in /ckpt" in advice_of(told)
    told = trained(2, checkpoint_path="/ckpt").mark("j", 0, "saved", n=2).steps("j", 3, 9)
    assert "more often" in advice_of(told.end("j", 1, "failed").done("j", "failed"))


def test_there_is_no_advice_where_nothing_can_be_won() -> None:
    assert advice_of(trained(300).end("j", 0, "succeeded").done("j", "succeeded")) == ""


def test_free_gpus_are_advice_only_to_a_job_on_gpus() -> None:
    told = Telling()
    told.fleet(fleet_of(4, kind="gpu")).submit("j").place("j", "n0/0").steps("j", 1, 50)
    said = advice_of(told.end("j", 0, "succeeded").done("j", "succeeded"))
    assert said.startswith("3 GPUs of 4 stayed free") and "`--ranks 4`" in said
