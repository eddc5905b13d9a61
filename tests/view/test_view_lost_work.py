"""Work after the last durable checkpoint: provisional while the job lives, lost when a later event says so."""

from __future__ import annotations

import pytest

from unidle.events import types as ev
from unidle.view.accounts import durable_points, entries, post_ended
from unidle.view.incidents import incidents
from view.telling import WHY, Telling


def trained(last: int = 6, saved: int | None = None, **spec: object) -> Telling:
    """A job whose steps take a second each, from second 1 on; step ``saved`` is durable when it is done."""
    told = Telling(2).submit("j", **spec).place("j", "n0/0").at(1).mark("j", 0, "ready")
    for n in range(1, last + 1):
        told.steps("j", n, n)
        if n == saved:
            told.mark("j", 0, "saved", n=n)
    return told


def test_steps_are_useful_as_long_as_nothing_revoked_them() -> None:
    assert trained(saved=3).ledger("n0/0") == [(0, 1, "start"), (1, 7, "useful")]


def test_a_failure_turns_steps_after_the_last_checkpoint_into_replayed_by_a_reversing_pair() -> None:
    told = trained(saved=3).end("j", 1, "failed").retry("j")
    assert told.ledger("n0/0") == [(0, 1, "start"), (1, 4, "useful"), (4, 7, "replayed")]
    pairs = [e for e in entries(told.view, told.view.time_ns) if e.revision]
    assert [(e.sign, e.leaf) for e in pairs] == [(-1, "useful"), (1, "replayed")] * 3


@pytest.mark.parametrize("by_number", [True, False])
def test_a_checkpoint_without_a_number_is_of_the_last_step_before_it(by_number: bool) -> None:
    told = trained(last=3).mark("j", 0, "saved", n=3 if by_number else None).steps("j", 4, 6)
    told.end("j", 1, "failed").retry("j")
    assert told.ledger("n0/0") == [(0, 1, "start"), (1, 4, "useful"), (4, 7, "replayed")]


def test_without_any_checkpoint_all_steps_are_replayed() -> None:
    told = trained().end("j", 1, "failed").retry("j")
    assert told.ledger("n0/0") == [(0, 1, "start"), (1, 7, "replayed")]


def test_a_job_that_fails_for_good_leaves_no_artefact_of_what_was_not_saved() -> None:
    told = trained(saved=4).end("j", 1, "failed").done("j", "failed")
    assert told.ledger("n0/0") == [(0, 1, "start"), (1, 5, "useful"), (5, 7, "no_artefact")]


def test_a_cancelled_retry_makes_no_artefact_of_what_was_to_be_replayed() -> None:
    told = trained(saved=4).end("j", 1, "failed").retry("j", 100).done("j", "cancelled")
    assert told.ledger("n0/0")[-1] == (5, 7, "no_artefact")


def test_work_that_a_service_stop_cost_is_preempted() -> None:
    told = trained(saved=4).end("j", -15, "preempted")
    assert told.ledger("n0/0") == [(0, 1, "start"), (1, 5, "useful"), (5, 7, "preempted")]


def test_an_attempt_that_goes_on_behind_a_step_proves_that_the_step_was_durable() -> None:
    told = trained(saved=2, checkpoint_path="ckpt").end("j", 1, "failed").retry("j").place("j", "n0/1")
    assert told.ledger("n0/0") == [(0, 1, "start"), (1, 3, "useful"), (3, 7, "replayed")]
    told.at(8).mark("j", 0, "ready").steps("j", 6, 7)
    assert told.ledger("n0/0")[:3] == [(0, 1, "start"), (1, 6, "useful"), (6, 7, "replayed")]


def test_an_attempt_that_counts_from_the_start_disproves_nothing_that_was_saved() -> None:
    told = trained(saved=4, checkpoint_path="ckpt").end("j", 1, "failed").retry("j").place("j", "n0/1")
    told.at(8).steps("j", 1, 3)
    assert told.ledger("n0/0")[:3] == [(0, 1, "start"), (1, 5, "useful"), (5, 7, "replayed")]


def test_saves_of_two_ranks_in_one_moment_with_and_without_a_step_are_put_in_order() -> None:
    told = (
        Telling(2)
        .submit("j", ranks=2)
        .place("j", "n0/0", "n0/1")
        .at(1)
        .mark("j", 0, "ready")
        .steps("j", 1, 3)
    )
    told.mark("j", 1, "saved", n=3).mark("j", 0, "saved").steps("j", 4, 5).end("j", 1, "failed").retry("j")
    assert told.ledger("n0/0") == [(0, 1, "start"), (1, 4, "useful"), (4, 6, "replayed")]


@pytest.mark.parametrize("numbered", [True, False])
def test_an_ended_job_still_tells_its_durable_step(numbered: bool) -> None:
    from unidle.control.queries.describe import job_detail

    told = trained(last=4).mark("j", 0, "saved", n=4 if numbered else None).steps("j", 5, 6)
    told.end("j", 1, "failed")
    before = job_detail(told.view, told.job("j"))["runs"][0]["durable_step"]
    told.done("j", "failed")
    assert before == job_detail(told.view, told.job("j"))["runs"][0]["durable_step"] == 4
    assert told.job("j").steps() == 6


def test_the_ledger_of_a_job_is_the_same_before_and_after_its_end_is_told_to_another_job() -> None:
    told = trained(saved=3).end("j", 0, "succeeded").done("j", "succeeded")
    before = told.ledger("n0/0")
    told.submit("k").place("k", "n0/0")
    assert told.ledger("n0/0") == before


def test_an_attempt_that_died_before_its_first_step_does_not_hide_what_the_next_one_resumed_from() -> None:
    told = trained(saved=2, checkpoint_path="ckpt").end("j", 1, "failed").retry("j").place("j", "n0/1")
    told.at(9).end("j", 1, "failed").retry("j").place("j", "n0/1").at(12).steps("j", 6, 8)
    assert told.ledger("n0/0")[:3] == [(0, 1, "start"), (1, 6, "useful"), (6, 7, "replayed")]


def again(told: Telling, at_s: float, restored: int | None = None) -> Telling:
    """The attempt fails, and the next one goes on at once on the other device, after step ``restored``."""
    told.end("j", 1, "failed").retry("j").at(at_s).place("j", "n0/1").mark("j", 0, "ready")
    return told if restored is None else told.mark("j", 0, "restored", n=restored)


@pytest.mark.parametrize(
    ("restored", "kept"), [(5, [(1, 6, "useful"), (6, 7, "replayed")]), (2, [(1, 3, "useful"), (3, 7, "replayed")])]
)  # fmt: skip
def test_what_the_script_goes_on_after_goes_before_what_was_seen_to_be_saved(
    restored: int, kept: list[tuple[float, float, str]]
) -> None:
    told = again(trained(saved=4), 8, restored)
    assert told.ledger("n0/0")[1:3] == kept
    assert incidents(told.view)[0].lost_steps == 6 - restored


def test_a_script_that_finds_nothing_has_lost_all() -> None:
    told = again(trained(saved=4), 8, 0)
    assert told.ledger("n0/0")[:2] == [(0, 1, "start"), (1, 7, "replayed")]


def test_what_a_later_attempt_goes_on_after_bounds_all_attempts_before_it() -> None:
    told = again(trained(saved=4), 8, 4).steps("j", 5, 8)
    assert told.ledger("n0/0")[1] == (1, 5, "useful")
    again(told, 13, 2)
    assert told.ledger("n0/0")[1:3] == [(1, 3, "useful"), (3, 7, "replayed")]
    assert (8, 12, "replayed") in told.ledger("n0/1")
    assert [point.step for point in durable_points(told.job("j"))] == [2, 2, None]


def test_a_checkpoint_that_was_found_bad_keeps_nothing() -> None:
    told = trained(last=3, saved=2).steps("j", 4, 4).mark("j", 0, "saved", n=4).steps("j", 5, 6)
    told.end("j", 1, "failed").retry("j").at(8).place("j", "n0/1")
    assert told.ledger("n0/0")[1] == (1, 5, "useful")
    told.tell(ev.CheckpointBad("j", 2, "/ckpt/step_4", WHY, 4))
    assert told.ledger("n0/0")[1:3] == [(1, 3, "useful"), (3, 7, "replayed")]
    assert [one.kind for one in incidents(told.view)] == ["exit", "storage"]


def test_an_incident_costs_the_same_when_the_books_of_its_job_are_closed() -> None:
    told = (
        again(trained(last=9, saved=4), 11, 7)
        .steps("j", 8, 9)
        .end("j", 0, "succeeded")
        .done("j", "succeeded")
    )
    before = incidents(told.view)
    post_ended(told.view)
    assert incidents(told.view) == before
