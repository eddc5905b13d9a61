"""A gang that ends before its first step: what its time came to, as the log tells it."""

from __future__ import annotations

import pytest

from unidle.events import types as ev
from unidle.view.accounts import post_ended
from view.telling import WHY, Telling


def started() -> Telling:
    return Telling(2).submit("j").place("j", "n0/0").at(5)


def stopped(told: Telling, why: str, outcome: str) -> Telling:
    told.tell(ev.StopAsked("j", len(told.job("j").attempts), why, 0, WHY)).at(told.at_s + 1)  # type: ignore[arg-type]
    return told.end("j", -9, outcome)


def test_a_crash_before_the_first_step_is_a_failed_start() -> None:
    told = started().end("j", 1, "failed").done("j", "failed")
    assert told.ledger("n0/0") == [(0, 5, "failed_start")]
    post_ended(told.view)
    assert told.ledger("n0/0") == [(0, 5, "failed_start")]


def test_each_attempt_that_crashed_before_its_first_step_is_one_also_when_a_later_one_trains() -> None:
    told = started().end("j", 1, "failed").retry("j")
    assert told.ledger("n0/0") == [(0, 5, "failed_start")]
    told.place("j", "n0/0").at(6).mark("j", 0, "ready").steps("j", 1, 3).end("j", 0, "succeeded")
    assert told.ledger("n0/0") == [(0, 5, "failed_start"), (5, 6, "start"), (6, 9, "useful")]


def test_a_gang_that_hung_before_its_first_step_failed_to_start_and_hangs_while_it_lives() -> None:
    told = started().tell(ev.VerdictReached("j", 1, "hang", 1 + 2 * 10**9, 1 + 3 * 10**9, True, WHY, 0, "n0"))
    assert told.ledger("n0/0") == [(0, 2, "start"), (2, 5, "hang")]
    stopped(told, "hung", "failed").retry("j")
    assert told.ledger("n0/0") == [(0, 6, "failed_start")]


def test_one_that_restored_a_checkpoint_and_made_no_step_failed_to_start_and_lost_no_step() -> None:
    told = started().mark("j", 0, "ready").steps("j", 1, 2).mark("j", 0, "saved", n=2).end("j", 1, "failed")
    told.retry("j").place("j", "n0/1").at(9).mark("j", 0, "restored", n=2).at(11).end("j", 1, "failed").retry(
        "j"
    )
    assert told.ledger("n0/0")[:2] == [(0, 5, "start"), (5, 7, "useful")]
    assert told.ledger("n0/1") == [(0, 7, "no_demand"), (7, 11, "failed_start")]


@pytest.mark.parametrize(("why", "outcome"), [("preempted", "preempted"), ("cancelled", "cancelled")])
def test_one_that_was_asked_to_leave_before_its_first_step_did_not_fail(why: str, outcome: str) -> None:
    told = stopped(started(), why, outcome)
    assert "failed_start" not in {leaf for _, _, leaf in told.ledger("n0/0")}


def test_one_whose_node_fell_ill_before_its_first_step_failed_to_start() -> None:
    told = stopped(started(), "node_sick", "preempted")
    assert told.ledger("n0/0") == [(0, 6, "failed_start")]


def test_a_job_that_runs_into_its_time_limit_without_a_step_did_not_fail_at_its_start() -> None:
    told = stopped(started(), "timeout", "failed").done("j", "failed")
    assert "failed_start" not in {leaf for _, _, leaf in told.ledger("n0/0")}


def test_a_job_without_steps_counts_in_no_goodput_and_keeps_its_time() -> None:
    told = started().end("j", 0, "succeeded").done("j", "succeeded")
    assert told.ledger("n0/0") == [(0, 5, "unmeasured")]
