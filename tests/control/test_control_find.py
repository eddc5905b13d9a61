"""Which job a word on the command line means."""

from __future__ import annotations

from collections.abc import Callable

import pytest

from unidle.control.queries.find import find_job, last_ended, listed, newest_job
from unidle.errors import BadInput
from unidle.events import types as ev
from unidle.view.snapshot import decode, encode
from unidle.view.state import View
from view.telling import Telling


def told(*jobs: tuple[str, str, str]) -> Telling:
    """Jobs by id, name and state, on one device each."""
    telling = Telling(len(jobs) or 1)
    for k, (job, name, state) in enumerate(jobs):
        telling.at(10 * k).submit(job, name=name)
        if state != "queued":
            telling.place(job, f"n0/{k}")
        if state not in ("queued", "running"):
            telling.end(job, 0, "succeeded").done(job, state)
    return telling


def refused(find: Callable[[], object]) -> BadInput:
    with pytest.raises(BadInput) as raised:
        find()
    return raised.value


@pytest.fixture
def view() -> View:
    """Names that fit several jobs, in every combination of states."""
    return told(
        ("b-111111", "b", "succeeded"), ("b-222222", "b", "queued"), ("b-333333", "b", "failed"),
        ("old-111111", "old", "succeeded"), ("old-222222", "old", "succeeded"),
        ("two-111111", "two", "running"), ("two-222222", "two", "queued"), ("two-333333", "two", "failed"),
        ("bert-111111", "bert", "running"),
    ).view  # fmt: skip


@pytest.mark.parametrize(
    ("word", "job"),
    [
        ("b-333333", "b-333333"),
        ("b", "b-222222"),
        ("b-", "b-222222"),
        ("old", "old-222222"),
        ("old-1", "old-111111"),
        ("two-3", "two-333333"),
        ("be", "bert-111111"),
    ],
)
def test_a_word_means_the_job_that_has_not_ended_else_the_newest_of_its_name(
    view: View, word: str, job: str
) -> None:
    assert find_job(view, word).id == job


@pytest.mark.parametrize(
    ("word", "listed"),
    [
        ("two", ["two-111111", "two-222222"]),
        ("two-", ["two-111111", "two-222222"]),
        ("old-", ["old-111111", "old-222222"]),
    ],
)
def test_a_word_that_leaves_a_choice_is_refused_with_the_jobs_that_it_fits(
    view: View, word: str, listed: list[str]
) -> None:
    error = refused(lambda: find_job(view, word))
    assert "fits 2 jobs" in error.problem
    assert [job for job in view.jobs if job in str(error.remedy)] == listed


def test_what_removes_jobs_does_not_choose_among_ended_ones(view: View) -> None:
    error = refused(lambda: find_job(view, "old", alone=True))
    assert "old-111111" in str(error.remedy) and "old-222222" in str(error.remedy)


def test_a_word_that_fits_nothing_is_answered_with_the_near_one(view: View) -> None:
    assert refused(lambda: find_job(view, "bertt")).remedy == "did you mean bert?"
    assert "unidle list" in str(refused(lambda: find_job(view, "zzzz")).remedy)
    assert "no such job" in refused(lambda: find_job(view, "")).problem


def test_many_fitting_jobs_are_not_all_listed() -> None:
    many = told(*((f"job-{k:06}", "job", "queued") for k in range(30))).view
    error = refused(lambda: find_job(many, "job"))
    assert "many jobs" in error.problem and str(error.remedy).count("job-") == 8


def test_without_a_word_it_is_the_newest_job_and_live_ones_come_first() -> None:
    some = told(("a-1", "a", "running"), ("b-1", "b", "queued"), ("c-1", "c", "succeeded"))
    assert newest_job(some.view).id == "b-1"
    assert newest_job(some.view, started=True).id == "a-1"
    assert newest_job(some.view, live=True).id == "b-1"
    ended = told(("a-1", "a", "succeeded"), ("b-1", "b", "failed"))
    assert newest_job(ended.view).id == "b-1"
    waits = told(("a-1", "a", "failed"), ("b-1", "b", "queued"))
    assert newest_job(waits.view, started=True).id == "a-1"


def test_without_a_word_a_job_that_ended_is_never_cancelled() -> None:
    ended = told(("a-1", "a", "succeeded"))
    assert "runs or waits" in refused(lambda: newest_job(ended.view, live=True)).problem
    assert "has no job" in refused(lambda: newest_job(told().view)).problem


def test_a_removed_job_is_in_no_list_and_found_by_its_id_only_for_the_ledger() -> None:
    some = told(("a-1", "a", "succeeded"), ("a-2", "a", "failed"), ("b-1", "b", "running"))
    some.tell(ev.JobsRemoved(("a-2", "b-1"), "me"))
    kept = decode(encode(some.view))
    assert kept is not None
    for view in (some.view, kept):
        assert [job.id for job in listed(view)] == ["a-1", "b-1"], "a job that runs is never removed"
        assert [job.id for job in last_ended(view, 10)] == ["a-1"]
        assert find_job(view, "a").id == "a-1"
        assert "was removed" in refused(lambda view=view: find_job(view, "a-2")).problem  # type: ignore[misc]
        assert find_job(view, "a-2", removed=True).id == "a-2"


def test_the_jobs_that_ended_last_are_known_by_when_they_ended() -> None:
    some = told(("slow", "slow", "running"), *((f"j-{k}", "j", "succeeded") for k in range(20)))
    some.end("slow", 0, "succeeded").done("slow", "succeeded")
    assert [job.id for job in last_ended(some.view, 3)] == ["slow", "j-18", "j-19"]
    some.tell(ev.JobsRemoved(tuple(f"j-{k}" for k in range(1, 20)), "me"))
    assert [job.id for job in last_ended(some.view, 10)] == ["slow", "j-0"]


def test_a_view_keeps_few_names_of_ended_jobs_and_older_ones_are_found_all_the_same() -> None:
    some = told(*((f"j-{k:03}", "j", "succeeded") for k in range(100)))
    assert len(some.view.ended) == 64
    assert len(last_ended(some.view, 90)) == 90
    assert len({job.id for job in last_ended(some.view, 1000)}) == 100
