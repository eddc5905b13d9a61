"""Time that no job holds: its causes, what nobody watched, and how long a decision took."""

from __future__ import annotations

import pytest

from unidle.events import types as ev
from unidle.jobs import Reason
from view.telling import WHY, Telling


def test_free_time_is_fragmented_while_a_job_waits_that_fits_nowhere() -> None:
    told = (
        Telling(2)
        .submit("big", ranks=3)
        .tell(ev.JobJudged("big", WHY))
        .at(10)
        .done("big", "cancelled")
        .at(15)
    )
    assert told.ledger("n0/0") == [(0, 10, "fragmented"), (10, 15, "no_demand")]


@pytest.mark.parametrize(
    ("code", "leaf"), [("no_queue", "no_demand"), ("never_fits", "no_demand"), ("over_limit", "quota")]
)
def test_a_job_that_can_never_start_fragments_nothing(code: str, leaf: str) -> None:
    told = Telling(2).submit("big", ranks=3).tell(ev.JobJudged("big", Reason(code, "never"))).at(10)
    assert told.ledger("n0/0") == [(0, 10, leaf)]


def test_a_job_that_was_not_judged_yet_fragments_nothing() -> None:
    assert Telling(1).submit("j").at(10).ledger("n0/0") == [(0, 10, "no_demand")]


def test_time_from_the_wish_to_the_placement_is_scheduler_latency() -> None:
    told = Telling(1).at(5).submit("j").at(7).place("j", "n0/0").at(9).end("j", 0, "succeeded")
    told.done("j", "succeeded")
    assert told.ledger("n0/0") == [(0, 5, "no_demand"), (5, 7, "scheduler_latency"), (7, 9, "unmeasured")]


def test_the_wait_for_a_device_that_was_taken_is_no_latency() -> None:
    told = Telling(1).submit("a").place("a", "n0/0").at(1).submit("b").tell(ev.JobJudged("b", WHY))
    told.at(4).end("a", 0, "succeeded").done("a", "succeeded").at(5).place("b", "n0/0")
    assert told.ledger("n0/0")[:2] == [(0, 4, "unmeasured"), (4, 5, "scheduler_latency")]


@pytest.mark.parametrize(
    ("code", "leaf"), [("quota", "quota"), ("reserved", "gathering"), ("planned", "fragmented")]
)
def test_what_a_decision_kept_free_is_no_latency(code: str, leaf: str) -> None:
    told = Telling(1).submit("j").tell(ev.JobJudged("j", Reason(code, "wait"))).at(5).place("j", "n0/0").at(6)
    assert told.ledger("n0/0")[0] == (0, 5, leaf)


def test_a_back_off_is_no_latency() -> None:
    told = Telling(1).submit("a").place("a", "n0/0").at(2).end("a", 1, "failed").retry("a", 6)
    told.at(9).place("a", "n0/0")
    assert told.ledger("n0/0")[1:3] == [(2, 8, "no_demand"), (8, 9, "scheduler_latency")]


def test_time_that_no_sighting_covers_is_unseen() -> None:
    told = Telling(1, covers_s=3).at(2).tell(ev.Sighted()).at(10).tell(ev.Sighted()).at(12)
    assert told.ledger("n0/0") == [(0, 2, "no_demand"), (2, 10, "unseen"), (10, 12, "no_demand")]


def test_a_wait_while_nobody_was_there_is_unseen_and_not_latency() -> None:
    told = Telling(1, covers_s=3).at(2).submit("j").at(10).tell(ev.Sighted()).at(11).place("j", "n0/0").at(12)
    assert told.ledger("n0/0")[:3] == [(0, 2, "no_demand"), (2, 10, "unseen"), (10, 11, "scheduler_latency")]


def test_an_attempt_is_watched_by_its_supervisors_also_while_no_controller_is_there() -> None:
    told = Telling(2, covers_s=3).submit("j").place("j", "n0/0").at(1).mark("j", 0, "ready").steps("j", 1, 9)
    told.tell(ev.ControllerStarted("again", 2, 10**10)).end("j", 0, "succeeded").done("j", "succeeded")
    assert told.ledger("n0/0") == [(0, 1, "start"), (1, 10, "useful")]
    assert told.ledger("n0/1") == [(0, 10, "unseen")]


def test_causes_that_change_often_are_forgotten_and_not_lost() -> None:
    told = Telling(2)
    for k in range(5_000):
        told.at(k).submit(f"big{k}", ranks=9).tell(ev.JobJudged(f"big{k}", WHY))
        told.at(k + 0.5).done(f"big{k}", "cancelled")
    told.at(5_000)
    rows = told.ledger("n0/0")
    assert len(rows) == 10_000
    assert sum(end - start for start, end, leaf in rows if leaf == "fragmented") == 2_500
    assert len(told.view.book.causes) <= 4096
