"""Incidents: when a job went on after it was hurt, and what each time cost."""

from __future__ import annotations

from unidle.view.incidents import incidents
from view.telling import Telling

S = 1_000_000_000


def hurt() -> Telling:
    """A gang of one that did three steps of a second each and failed at second 4."""
    return (
        Telling(2)
        .submit("j")
        .place("j", "n0/0")
        .at(1)
        .mark("j", 0, "ready")
        .steps("j", 1, 3)
        .end("j", 1, "failed")
    )


def test_a_job_went_on_when_a_later_attempt_was_past_its_first_step() -> None:
    told = hurt().retry("j").at(5).place("j", "n0/0").at(6).end("j", 1, "failed").retry("j")
    assert [one.resumed_ns for one in incidents(told.view)] == [None, None]
    told.at(9).place("j", "n0/0").at(10).mark("j", 0, "ready").steps("j", 1, 2)
    first, second = incidents(told.view)
    went_on = told.job("j").attempts[2].ranks[0].step_ns[0]
    assert (first.resumed_ns, second.resumed_ns) == (went_on, went_on)
    # each bears its own time: 4 to 6 with the three steps that were lost, and from 6 on
    failed = [attempt.ended_ns or 0 for attempt in told.job("j").attempts[:2]]
    lost_ns = 3 * S
    assert first.device_ns == failed[1] - failed[0] + lost_ns
    assert second.device_ns == went_on - failed[1]
