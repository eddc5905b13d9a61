"""Jobs that only wait are kept packed: what is unpacked, and that nothing else changes."""

from __future__ import annotations

import msgspec
import pytest

from unidle.control.describe import explain
from unidle.control.find import find_job, newest_job, not_ended
from unidle.events import types as ev
from unidle.jobs import JobSpec, Reason, Restart
from unidle.store.protocol import Snapshot
from unidle.view.fold import FOLD_VERSION
from unidle.view.jobs import JobTable, JobView
from unidle.view.resting import columns, rows
from unidle.view.snapshot import decode, encode
from unidle.view.state import View
from unidle.view.waiting import Waiting
from view.telling import Telling

WAITING = 40


def told(*, resting: bool) -> Telling:
    """A view in which one job runs and others wait behind it."""
    telling = Telling(1).submit("first", name="x").place("first", "n0/0")
    for number in range(WAITING):
        telling.submit(
            f"w-{number:02d}", name=f"name-{number % 3}", priority=number % 2, ranks=1 + number % 4
        )
    for number in range(WAITING // 2):
        judge(telling, f"w-{number:02d}", "no_fit" if number % 5 else "never_fits")
    if resting:
        for job in list(telling.view.jobs):
            telling.view.jobs.rest(job)
    return telling


def judge(telling: Telling, job: str, code: str) -> None:
    telling.tell(ev.JobJudged(job, Reason(code, "because")))


def again(view: View) -> View:
    kept = decode(encode(view))
    assert kept is not None
    return kept


def index(view: View) -> tuple[object, ...]:
    queue = Waiting(view.jobs)
    return list(queue.lines.items()), dict(sorted(queue._verdicts.items())), queue.unjudged, queue.since_ns()


def test_a_job_that_runs_is_never_packed() -> None:
    view = told(resting=True).view
    assert list(view.jobs.resting) == [f"w-{number:02d}" for number in range(WAITING)]
    assert [job.id for job in view.jobs.open.awake()] == ["first"]


def test_the_queue_of_packed_jobs_is_that_of_the_same_jobs_unpacked_and_no_job_is_unpacked_for_it() -> None:
    plain = index(told(resting=False).view)
    view = told(resting=True).view
    for found in (view, again(view)):
        assert index(found) == plain
        assert len(found.jobs.resting) == WAITING


def test_packed_jobs_come_back_whole_and_in_order() -> None:
    plain, view = told(resting=False).view, again(told(resting=True).view)
    assert list(view.jobs.open) == list(plain.jobs.open)
    assert [(*view.jobs.open.items(),)] == [(*plain.jobs.open.items(),)]
    assert not view.jobs.resting


def test_events_change_a_packed_job_as_any_other() -> None:
    plain, packed = told(resting=False), told(resting=True)
    for telling in (plain, packed):
        judge(telling, "w-00", "quota")
        judge(telling, "w-39", "no_fit")
        telling.tell(ev.CancelAsked("w-05", "ann"))
        telling.submit("last", name="name-1")
    assert len(packed.view.jobs.resting) == WAITING - 3
    assert index(packed.view) == index(plain.view)
    assert packed.view.queue.codes() == plain.view.queue.codes()
    assert index(again(packed.view)) == index(plain.view)
    assert list(packed.view.jobs.values()) == list(plain.view.jobs.values())


@pytest.mark.parametrize(("name", "unpacked"), [("w-07", 1), ("w-39", 1), (None, 1)])
def test_a_command_about_one_job_unpacks_that_job(name: str | None, unpacked: int) -> None:
    view = again(told(resting=True).view)
    job = newest_job(view) if name is None else find_job(view, name)
    assert job.id == (name or "w-39")
    assert len(view.jobs.resting) == WAITING - unpacked


def test_the_last_waiting_jobs_are_listed_and_only_they_are_unpacked() -> None:
    view = again(told(resting=True).view)
    assert [job.id for job in not_ended(view, 3)] == ["first", "w-37", "w-38", "w-39"]
    assert len(view.jobs.resting) == WAITING - 3


def test_the_explanation_of_a_packed_job_is_the_same() -> None:
    for name in ("w-03", "w-21"):
        plain, view = told(resting=False).view, again(told(resting=True).view)
        assert explain(view, find_job(view, name)) == explain(plain, plain.jobs[name])


def test_a_job_with_a_timer_does_not_rest() -> None:
    table = JobTable()
    for spec in (JobSpec(("a",), queue_timeout_s=5.0), JobSpec(("a",), restart=Restart(1, 1.0))):
        job = JobView(str(len(table)), spec, len(table), 1)
        table.add(job)
        table.rest(job.id)
    table["1"].not_before_ns = 5
    table.rest("1")
    assert list(table.open.awake()) == [table["0"], table["1"]]


def test_a_snapshot_whose_rows_are_damaged_is_passed_over() -> None:
    view = told(resting=True).view
    for spoil in ({"resting": None}, {"resting": columns({"gone": view.jobs.rest_of("w-00")})}):
        body = msgspec.msgpack.decode(encode(view).body)
        body["jobs"] |= spoil
        assert decode(Snapshot(view.seq, FOLD_VERSION, msgspec.msgpack.encode(body))) is None


def test_rows_come_back_from_their_columns() -> None:
    view = told(resting=True).view
    assert rows(msgspec.to_builtins(columns(view.jobs.resting), builtin_types=(bytes,))) == view.jobs.resting
    assert rows(msgspec.to_builtins(columns({}), builtin_types=(bytes,))) == {}
