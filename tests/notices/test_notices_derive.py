"""Which events lead to which notices."""

from __future__ import annotations

from typing import Any

import pytest

from unidle.events import types as ev
from unidle.jobs import JobSpec, Reason
from unidle.notices.derive import KINDS, DerivationState, derive
from unidle.notices.model import FORM, Notice

WHY = Reason("why", "rank 1 exited 3", {"rank": 1})


def told(*events: ev.Event, known: DerivationState | None = None) -> list[Notice]:
    known = known or DerivationState(source="log")
    found = [derive(known, event, seq, seq * 10) for seq, event in enumerate(events, 1)]
    return [one for one in found if one is not None]


def short(notices: list[Notice]) -> list[tuple[str, str]]:
    return [(one.kind, one.state) for one in notices]


def test_a_job_that_fails_at_once_is_one_notice() -> None:
    (one,) = told(ev.AttemptEnded("j", 1, "failed", WHY), ev.JobEnded("j", "failed", WHY))
    assert (one.kind, one.state, one.severity, one.subject) == ("job_failed", "failed", "critical", "job:j")
    assert (one.job, one.attempt, one.seq, one.time_ns, one.v) == ("j", 1, 2, 20, FORM)
    assert one.text == "j failed: rank 1 exited 3"


@pytest.mark.parametrize("state", ["succeeded", "cancelled"])
def test_a_job_that_ended_otherwise_is_told_to_nobody(state: Any) -> None:
    assert told(ev.AttemptEnded("j", 1, "succeeded", WHY), ev.JobEnded("j", state, WHY)) == []


def test_an_incident_is_told_when_it_happens_and_when_the_job_goes_on() -> None:
    found = told(
        ev.AttemptPlaced("j", 1, (), WHY),
        ev.AttemptEnded("j", 1, "failed", WHY),
        ev.RetryPlanned("j", 5, WHY),
        ev.AttemptPlaced("j", 2, (), WHY),
        ev.AttemptEnded("j", 2, "preempted", WHY),
        ev.Requeued("j", WHY),
        ev.AttemptPlaced("j", 3, (), WHY),
    )
    assert short(found) == [("incident", "restarting"), ("incident", "restarted")]
    assert [(one.attempt, one.rank) for one in found] == [(1, 1), (2, None)]


def test_verdicts_are_told_with_their_culprit_and_their_end() -> None:
    found = told(
        ev.VerdictReached("j", 1, "hang", 1, 2, False, WHY, 3, "n2"),
        ev.VerdictOver("j", 1, WHY),
        ev.VerdictReached("j", 1, "slow", 1, 2, False, WHY),
    )
    assert short(found) == [("verdict", "hang"), ("verdict", "over"), ("verdict", "slow")]
    assert (found[0].rank, found[0].node, found[2].rank, found[2].node) == (3, "n2", None, None)


def test_idle_holders_are_told_of_and_so_is_their_release() -> None:
    found = told(
        ev.IdleTold("j", 1, 5, "none", 9, WHY),
        ev.IdleOver("j", 1, WHY),
        ev.StopAsked("j", 1, "idle", 0, WHY),
        ev.StopAsked("j", 1, "preempted", 0, WHY),
    )
    assert short(found) == [("idle", "idle"), ("idle", "over"), ("idle", "released")]


def test_health_is_told_when_it_changes_and_planned_work_is_maintenance() -> None:
    def health(*states: Any) -> list[tuple[str, str]]:
        return short(told(*(ev.HealthSet("n1", state, WHY) for state in states)))

    assert health("healthy") == []  # it was
    assert health("fault", "fault", "repair", "healthy") == [
        ("node", "fault"),
        ("node", "repair"),
        ("node", "healthy"),
    ]
    assert health("maintenance", "boot", "healthy") == [
        ("maintenance", "maintenance"),
        ("maintenance", "boot"),
        ("node", "healthy"),
    ]
    assert health("maintenance", "healthy") == [("maintenance", "maintenance"), ("maintenance", "healthy")]
    assert health("maintenance", "fault") == [("maintenance", "maintenance"), ("node", "fault")]
    (one,) = told(ev.HealthSet("n1/3", "fault", WHY))
    assert (one.subject, one.node) == ("device:n1/3", "n1")


def test_the_same_log_gives_the_same_ids_and_another_log_others() -> None:
    event = ev.JobEnded("j", "failed", WHY)
    assert told(event)[0].id == told(event)[0].id
    assert told(event)[0].id != told(event, known=DerivationState(source="another"))[0].id
    assert len({one.id for one in told(event, event)}) == 2


def test_what_is_remembered_of_jobs_goes_when_they_end() -> None:
    known = DerivationState(source="log")
    told(ev.AttemptEnded("j", 1, "failed", WHY), ev.RetryPlanned("j", 5, WHY), known=known)
    assert known.failed
    assert known.restarting
    told(ev.JobEnded("j", "cancelled", WHY), known=known)
    assert known == DerivationState(source="log")


def test_most_of_the_log_is_not_even_decoded() -> None:
    assert "rank_saw" not in KINDS
    assert "sighted" not in KINDS
    assert told(ev.Sighted(), ev.JobSubmitted("j", JobSpec(name="j", command=("true",)))) == []
