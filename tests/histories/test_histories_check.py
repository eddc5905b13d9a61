"""The checker finds each violation that is planted in a sound history, and nothing in one without."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace

import msgspec
import pytest

from histories.check import SLACK_NS, check
from histories.made import OFFSET, WHY, Made, S, changed, relogged, sound, without
from histories.record import Ended, History, Loss, Op, Start
from unidle.events import types as ev
from unidle.events.marks import Mark
from unidle.jobs import JobSpec, RankPlace


def kinds(history: History) -> set[str]:
    return {found.kind for found in check(history)}


def test_a_sound_history_has_no_violation() -> None:
    assert check(sound()) == []


def _of(job: str, *classes: type) -> Callable[[ev.Event], bool]:
    return lambda event: getattr(event, "job", "") == job and (not classes or isinstance(event, classes))


def _step(event: ev.Event, job: str, n: int) -> bool:
    return isinstance(event, ev.RankSaw) and event.job == job and event.marks[0].n == n


def _lost_submit() -> History:
    return without(sound(), _of("good-1"))


def _refused_submit() -> History:
    history = sound()
    ops = [replace(op, outcome="refused") if op.name == "good" else op for op in history.ops]
    return replace(history, ops=tuple(ops))


def _double_submit() -> History:
    def again(event: ev.JobEnded) -> list[ev.Event]:
        return [event, ev.JobSubmitted("good-2", JobSpec(("true",), name="good"))]

    return changed(sound(), ev.JobEnded, again)


def _submitted_twice_under_one_id() -> History:
    def again(event: ev.JobSubmitted) -> list[ev.Event]:
        return [event, event]

    return changed(sound(), ev.JobSubmitted, again)


def _altered_submit() -> History:
    history = sound()
    ops = [replace(op, priority=7) if op.name == "good" and op.kind == "submit" else op for op in history.ops]
    return replace(history, ops=tuple(ops))


def _cancel_without_an_end() -> History:
    return without(sound(), _of("long-1", ev.JobEnded))


def _cancel_that_ran_on() -> History:
    return changed(sound(), ev.JobEnded, lambda event: [msgspec.structs.replace(event, state="succeeded")])


def _cancelled_while_it_finishes(exit_after_ns: int) -> History:
    made = Made()
    made.submit("job")
    made.log(ev.AttemptPlaced("job-1", 1, (RankPlace(0, "n0", ("n0/0",)),), WHY))
    made.cancel("job")
    made.now_ns += exit_after_ns
    made.see("job-1", 1, 0, Mark("exit", made.now_ns + OFFSET, code=0))
    made.log(ev.AttemptEnded("job-1", 1, "succeeded", WHY))
    made.end("job", "succeeded")
    return made.history()


def _cancel_that_reported_another_state() -> History:
    history = sound()
    ops = [replace(op, state="failed") if op.kind == "cancel" else op for op in history.ops]
    return replace(history, ops=tuple(ops))


def _forgotten_cancel(*, restarts: bool) -> History:
    """The request was acknowledged, and no controller acted on it."""
    made = Made()
    made.submit("job")
    if not restarts:
        made.log(ev.AttemptPlaced("job-1", 1, (RankPlace(0, "n0", ("n0/0",)),), WHY))
    made.op("cancel", job="job-1")
    made.now_ns += SLACK_NS + S
    made.log(ev.Sighted())
    if restarts:
        made.log(ev.AttemptPlaced("job-1", 1, (RankPlace(0, "n0", ("n0/0",)),), WHY))
    made.see("job-1", 1, 0, Mark("exit", made.now_ns, code=0))
    made.log(ev.AttemptEnded("job-1", 1, "succeeded", WHY))
    made.end("job", "succeeded")
    return made.history()


def _lost_mark(kind: str) -> History:
    def seen(event: ev.RankSaw) -> bool:
        return event.job == "good-1" and event.marks[0].k == kind and event.marks[0].n in (None, 3)

    return without(sound(), lambda event: isinstance(event, ev.RankSaw) and seen(event))


def _marks_out_of_order() -> History:
    history = sound()
    events = [(e.time_ns, e.event) for e in history.log]
    first, second = (
        next(k for k, (_, e) in enumerate(events) if _step(e, "good-1", n) and e.marks[0].k == "step")
        for n in (1, 2)
    )
    a, b = events[first][1], events[second][1]
    assert isinstance(a, ev.RankSaw)
    assert isinstance(b, ev.RankSaw)
    events[first] = (events[first][0], msgspec.structs.replace(a, marks=b.marks))
    events[second] = (events[second][0], msgspec.structs.replace(b, marks=a.marks))
    return relogged(history, events)


def _marks_twice() -> History:
    return changed(sound(), ev.RankSaw, lambda event: [event, event])


def _mark_left_out() -> History:
    return without(sound(), lambda event: _step(event, "again-1", 1) and event.attempt == 2)  # type: ignore[union-attr]


def _started_twice_by_the_log() -> History:
    def again(event: ev.RankSaw) -> list[ev.Event]:
        spawn = Mark("spawn", 1, pid=2)
        return [ev.RankSaw("long-1", 1, 0, 1, (spawn,)), msgspec.structs.replace(event, first=2)]

    return changed(sound(), ev.RankSaw, again)


def _started_twice_by_the_ranks() -> History:
    history = sound()
    return replace(history, starts=(*history.starts, replace(history.starts[0], pid=7)))


def _two_attempts_by_the_log() -> History:
    return without(sound(), lambda event: isinstance(event, ev.AttemptEnded) and event.job == "again-1")


def _found(start: Start, *found: tuple[str, int, int]) -> History:
    return replace(sound(), starts=(start, replace(start, job="good-1", attempt=1, found=found)))


def _shared_device_by_the_log() -> History:
    return without(sound(), lambda event: isinstance(event, ev.AttemptEnded) and event.job == "good-1")


def _hole() -> History:
    history = sound()
    return replace(history, log=history.log[:5] + history.log[6:])


def _clock_that_goes_back() -> History:
    history = sound()
    return relogged(history, [(e.time_ns if k != 5 else OFFSET, e.event) for k, e in enumerate(history.log)])


PLANTED: dict[str, tuple[str, Callable[[], History]]] = {
    "an acknowledged submit without a job": ("lost_submit", _lost_submit),
    "a refused submit with a job": ("refused_submit", _refused_submit),
    "one request that became two jobs": ("double_submit", _double_submit),
    "a job that was submitted twice": ("double_submit", _submitted_twice_under_one_id),
    "a job with another priority": ("altered_submit", _altered_submit),
    "a cancelled job without an end": ("lost_cancel", _cancel_without_an_end),
    "a cancelled job that ran on": ("lost_cancel", _cancel_that_ran_on),
    "a cancelled rank that worked for long": (
        "lost_cancel", lambda: _cancelled_while_it_finishes(SLACK_NS + S),
    ),
    "a cancel with another answer": ("lost_cancel", _cancel_that_reported_another_state),
    "a cancel that no controller took": ("lost_cancel", lambda: _forgotten_cancel(restarts=False)),
    "a start long after a cancel": ("lost_cancel", lambda: _forgotten_cancel(restarts=True)),
    "a step that is missing": ("lost_mark", lambda: _lost_mark("step")),
    "a checkpoint that is missing": ("lost_mark", lambda: _lost_mark("saved")),
    "an exit that is missing": ("lost_mark", lambda: _lost_mark("exit")),
    "steps in the wrong order": ("mark_order", _marks_out_of_order),
    "marks that repeat": ("mark_order", _marks_twice),
    "marks with a hole": ("mark_order", _mark_left_out),
    "two spawn marks": ("started_twice", _started_twice_by_the_log),
    "a rank that ran twice": ("started_twice", _started_twice_by_the_ranks),
    "an attempt before the last one ended": ("two_attempts", _two_attempts_by_the_log),
    "a rank of the last attempt that still ran": (
        "two_attempts", lambda: _found(Start("good-1", 2, 0, 1), ("good-1", 2, 0)),
    ),
    "a device given twice": ("shared_device", _shared_device_by_the_log),
    "two live ranks on one device": (
        "shared_device", lambda: _found(Start("again-1", 1, 0, 1), ("again-1", 1, 0)),
    ),
    "an event that is missing": ("sequence", _hole),
    "an event that is older than the one before it": ("clock", _clock_that_goes_back),
    "a ledger that does not add up": ("ledger", lambda: replace(sound(), ledger=("a gap",))),
    "a job without an end": ("not_drained", lambda: without(sound(), _of("good-1", ev.JobEnded))),
    "an exit code that is not documented": (
        "bad_exit", lambda: replace(sound(), ended=(Ended("up", 1, "failed"),)),
    ),
    "a traceback": ("bad_exit", lambda: replace(sound(), ended=(Ended("up", 4, "Traceback (most ..."),))),
    "a loss that was not reported": ("unsaid_loss", lambda: replace(sound(), losses=(Loss("store", 0),))),
}  # fmt: skip


@pytest.mark.parametrize("what", PLANTED)
def test_a_planted_violation_is_found(what: str) -> None:
    kind, plant = PLANTED[what]
    assert kind in kinds(plant())


def test_a_store_that_was_lost_and_reported_excuses_what_was_before_it_and_no_more() -> None:
    lost = _lost_submit()
    until = next(op.end_ns for op in lost.ops if op.name == "good")
    excused = replace(lost, losses=(Loss("store", 1 << 62, said=True),))
    assert "lost_submit" not in kinds(excused)
    before = replace(lost, losses=(Loss("store", until - S, said=True),))
    assert "lost_submit" in kinds(before)
    assert "lost_submit" in kinds(replace(lost, losses=(Loss("store", 1 << 62, said=False),)))


def test_a_deleted_journal_excuses_the_marks_of_a_rank_that_the_log_has_as_lost() -> None:
    history = without(sound(), lambda e: isinstance(e, ev.RankSaw) and e.job == "good-1" and e.first > 1)
    loss = Loss("run_directory", 1 << 62, job="good-1", attempt=1, rank=0)
    assert "lost_mark" in kinds(replace(history, losses=(loss,)))
    events = [(e.time_ns, e.event) for e in history.log]
    at = next(k for k, (_, e) in enumerate(events) if isinstance(e, ev.AttemptEnded) and e.job == "good-1")
    events.insert(at, (events[at][0], ev.RankSaw("good-1", 1, 0, 2, (Mark("lost", 1, text="deleted"),))))
    with_lost = relogged(history, events)
    assert kinds(replace(with_lost, losses=(loss,))) == set()
    assert "lost_mark" in kinds(replace(with_lost, losses=(replace(loss, rank=1),)))


def test_a_rank_whose_directory_was_deleted_may_run_again_but_not_twice_at_once() -> None:
    twice = _started_twice_by_the_ranks()
    loss = Loss("run_directory", 1 << 62, job="good-1", attempt=1, rank=0)
    assert kinds(replace(twice, losses=(loss,))) == set()
    assert "started_twice" in kinds(replace(twice, losses=(replace(loss, attempt=2),)))
    last = replace(twice.starts[-1], found=(("good-1", 1, 0),))
    at_once = replace(twice, starts=(*twice.starts[:-1], last), losses=(loss,))
    assert "started_twice" in kinds(at_once)


def test_an_unknown_outcome_may_have_happened_or_not() -> None:
    history = sound()
    ops = [replace(op, outcome="unknown", job="") if op.kind == "submit" else op for op in history.ops]
    both = replace(history, ops=(*ops, Op("c1", "cancel", 0, 1, "unknown", job="good-1")))
    assert kinds(both) == set()
    assert kinds(without(both, _of("good-1", ev.JobSubmitted, ev.JobEnded))) == set()


def test_a_gang_that_finishes_before_the_stop_reaches_it_has_succeeded() -> None:
    assert kinds(_cancelled_while_it_finishes(S // 2)) == set()


def test_a_job_that_ended_before_its_cancel_was_read_keeps_its_end() -> None:
    made = Made()
    made.submit("job")
    made.attempt("job", 1, steps=1, device="n0/0")
    made.op("cancel", job="job-1")
    made.end("job", "succeeded")
    assert kinds(made.history()) == set()
