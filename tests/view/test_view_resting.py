"""Jobs that only wait are kept packed: what is unpacked, and that nothing else changes."""

from __future__ import annotations

import random
from collections.abc import Iterator
from typing import Any

import msgspec
import pytest

from unidle.control.queries.describe import explain
from unidle.control.queries.find import find_job, newest_job, not_ended
from unidle.events import types as ev
from unidle.jobs import JobSpec, Reason, Restart
from unidle.store.protocol import Snapshot
from unidle.view.fold import FOLD_VERSION
from unidle.view.job_table import JobTable
from unidle.view.jobs import JobView
from unidle.view.resting import Rest, RestingBlocks, rows_of
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


def damaged(body: dict[str, Any]) -> Iterator[Any]:
    """The jobs of a snapshot, each time with something else that is wrong."""
    jobs = body["jobs"]
    [[columns, gone]] = jobs["resting"]
    yield jobs | {"resting": None}
    yield jobs | {"resting": [[columns[:-1], gone]]}
    yield jobs | {"resting": [[[*columns[:1], b"1", *columns[2:]], gone]]}
    yield jobs | {"resting": []}
    yield jobs | {"records": {}}
    yield jobs | {"jobs": jobs["jobs"] | {"w-00": b"packed"}}
    yield {name: part for name, part in jobs.items() if name != "records"}


def test_a_snapshot_whose_rows_are_damaged_is_passed_over() -> None:
    view = told(resting=True).view
    body = msgspec.msgpack.decode(encode(view).body)
    wrong = list(damaged(body))
    assert len(wrong) == 7
    for jobs in wrong:
        changed = msgspec.msgpack.encode(body | {"jobs": jobs})
        assert decode(Snapshot(view.seq, FOLD_VERSION, changed)) is None


def kept(blocks: RestingBlocks, resting: dict[str, Rest], rows: dict[str, int]) -> list[Any]:
    """What a snapshot has, and that it is all of it."""
    plain = msgspec.msgpack.decode(msgspec.msgpack.encode(blocks.plain(resting, rows, 0)))
    assert rows_of(plain) == (resting, rows)
    return plain


def test_blocks_of_waiting_jobs_have_those_that_rest_now() -> None:
    row, blocks, dice = told(resting=True).view.jobs.rest_of("w-00"), RestingBlocks(), random.Random(5)
    resting: dict[str, Rest] = {}
    rows: dict[str, int] = {}
    assert kept(blocks, resting, rows) == []
    for turn in range(60):
        for name in dice.sample(sorted(resting), len(resting) // 4):
            blocks.remove(name)
            del resting[name]
            rows.pop(name, None)
        for number in range(dice.choice([0, 1, 500, 3_000])):
            name = f"{number}"
            if name not in resting:
                resting[name] = row._replace(order=turn * 10_000 + number, code=dice.choice("abc"))
                if dice.random() < 0.5:
                    rows[name] = turn + 1
        assert len(kept(blocks, resting, rows)) <= 70
    for _ in range(200):
        kept(blocks, resting, rows)
        for name in list(resting)[:2]:
            blocks.remove(name)
            rows.pop(name, None)
    assert len(kept(blocks, resting, rows)) <= 70


def test_a_block_is_encoded_once() -> None:
    row, blocks = told(resting=True).view.jobs.rest_of("w-00"), RestingBlocks()
    resting = {f"{number}": row for number in range(5_000)}
    first = blocks.plain(resting, {}, 7)
    blocks.remove("3")
    del resting["3"]
    second = blocks.plain(resting, {}, 8)
    assert [one[0] is other[0] for one, other in zip(first, second, strict=True)] == [True] * 3
    assert [gone for _, gone in second] == [["3"], [], []]
