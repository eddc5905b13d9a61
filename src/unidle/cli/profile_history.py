"""What ``unidle profile JOB --since 1h`` shows: the past of a job as continuous mode kept it, and comparisons in it."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from unidle.cli.common import clock_time, need_job, now_of, read_store, read_view
from unidle.cli.times import moment
from unidle.errors import BadInput, CannotRun, TargetEnded
from unidle.words import counted

if TYPE_CHECKING:
    from unidle.scope.difference import ProfileDifference, ShareChange
    from unidle.scope.history import PastProfile, WindowQuery
    from unidle.scope.model import Profile
    from unidle.scope.rules import RuleSet
    from unidle.store.profiles import ProfileShelf
    from unidle.view.state import View

_SHOWN = 12
_LEAST_POINTS = 0.5


@dataclass(frozen=True, slots=True)
class Question:
    """The options of the command, as they were given."""

    job: str | None
    store: str | None = None
    since: str | None = None
    until: str | None = None
    attempt: int | None = None
    rank: int | None = None
    against: str | None = None
    against_rank: int | None = None
    against_attempt: int | None = None


@dataclass(frozen=True, slots=True)
class PastView:
    """``profile`` is the requested profile, ``source`` describes its source in one line; ``other`` is what it is
    compared with.
    """

    profile: Profile
    source: str
    other: Profile | None = None
    other_source: str = ""


def answer_of(question: Question) -> PastView:
    """Read it from the store.

    Errors: :class:`BadInput` for times and names that make no sense, :class:`CannotRun` if this job is not
    profiled, :class:`TargetEnded` without data in that time.
    """
    from unidle.scope.history import WindowQuery

    shelf, view = _shelf(question.store)
    job = need_job(view, question.job, started=True)
    now_ns = now_of(view)
    _check_attempt(job, question.attempt, "--attempt")
    _check_attempt(job, question.against_attempt, "--against-attempt")
    until_ns = now_ns if question.until is None else moment("--until", question.until, now_ns, plain="ns")
    since_ns = 0 if question.since is None else moment("--since", question.since, now_ns, plain="ns")
    _in_order(since_ns, until_ns, "--since")
    wanted = WindowQuery(job.id, since_ns, until_ns, question.attempt, question.rank)
    first = _read(shelf, view, wanted)
    against = _against(question, wanted, now_ns)
    if against is None:
        return PastView(_profile(first), told(first))
    other = _read(shelf, view, against)
    return PastView(_profile(first), told(first), _profile(other), told(other))


def _against(question: Question, wanted: WindowQuery, now_ns: int) -> WindowQuery | None:
    from dataclasses import replace

    given = (question.against, question.against_rank, question.against_attempt)
    if all(value is None for value in given):
        return None
    if question.against_rank is not None and question.rank is None:
        raise BadInput("needs --rank, the rank to compare", field="--against-rank", value=question.against_rank, remedy="add --rank N")  # fmt: skip
    if question.against_attempt is not None and question.attempt is None:
        raise BadInput("needs --attempt, the attempt to compare", field="--against-attempt", value=question.against_attempt, remedy="add --attempt N")  # fmt: skip
    other = wanted
    if question.against is not None:
        begin, dots, end = question.against.partition("..")
        if not dots:
            raise BadInput("is not a window", field="--against", value=question.against, remedy="two moments, for instance 2h..1h")  # fmt: skip
        since_ns = moment("--against", begin or "0", now_ns, plain="ns")
        until_ns = moment("--against", end or "now", now_ns, plain="ns")
        _in_order(since_ns, until_ns, "--against")
        other = replace(other, since_ns=since_ns, until_ns=until_ns)
    if question.against_rank is not None:
        other = replace(other, rank=question.against_rank)
    if question.against_attempt is not None:
        other = replace(other, attempt=question.against_attempt)
    return other


def told(past: PastProfile) -> str:
    """In one line what it is of."""
    ranks, attempts = past.ranks, past.attempts
    of = f"rank {ranks[0]}" if len(ranks) == 1 else counted(len(ranks), "rank")
    tries = f"attempt {attempts[0]}" if len(attempts) == 1 else f"attempts {attempts[0]} to {attempts[-1]}"
    text = f"{counted(past.looks, 'look')} at {of} of {tries}, {clock_time(past.start_ns)[:19]} to {clock_time(past.end_ns)[:19]}"
    if past.damaged:
        text += f"; {counted(past.damaged, 'window')} could not be read"
    return text


def difference_lines(answer: PastView, rules: RuleSet) -> list[str]:
    """What changed from ``other`` to ``profile``, categories first, then functions; for a terminal, not coloured."""
    from unidle.cli.common import table
    from unidle.scope.memory_difference import memory_change_rows

    before, after, found = _compared(answer, rules)
    rows = [
        [
            category,
            f"{before[category]:.1f}",
            f"{after[category]:.1f}",
            f"{after[category] - before[category]:+.1f}",
        ]
        for category in before
        if max(before[category], after[category]) >= 0.05
    ]
    rows.sort(key=lambda row: -abs(float(row[3])))
    lines = [f"before: {answer.other_source}", f"after:  {answer.source}", ""]
    lines += table(["training threads, %", "before", "after", "points"], rows)
    changes = _telling(found)
    if changes:
        lines += ["", *table(["function", "before %", "after %", "points", "sure"], changes)]
    else:
        lines += ["", "no function takes clearly more or less of the time"]
    assert answer.other is not None
    if memory := memory_change_rows(answer.other, answer.profile):
        heads = ["memory of a line", "lives before", "after", "more", "allocated before", "after"]
        lines += ["", *table(heads, memory)]
    return lines


def difference_json(answer: PastView, rules: RuleSet) -> dict[str, Any]:
    """The same for machines."""
    from unidle.scope.memory_difference import memory_change_json

    before, after, found = _compared(answer, rules)
    assert answer.other is not None
    return {
        "before": answer.other_source,
        "after": answer.source,
        "budget": {
            category: {"before": before[category], "after": after[category]} for category in before
        },
        "functions": [
            {
                "function": change.frames[0].function, "file": change.frames[0].file, "module": change.frames[0].module,
                "before_pct": round(100 * change.before.share, 3), "after_pct": round(100 * change.after.share, 3),
                "points": round(change.points, 3), "sure": change.hint,
            }
            for change in found.functions
        ],
        "memory": memory_change_json(answer.other, answer.profile),
    }  # fmt: skip


def _compared(
    answer: PastView, rules: RuleSet
) -> tuple[dict[str, float], dict[str, float], ProfileDifference]:
    """The training threads' budgets on both sides, and how their stacks differ: the waits of helpers are not
    relevant.
    """
    from unidle.scope.budget import budgets_of, percentages
    from unidle.scope.difference import difference

    assert answer.other is not None
    sides = [budgets_of(profile, rules) for profile in (answer.other, answer.profile)]
    before, after = (side.roles.training for side in sides)
    found = difference(
        answer.other, answer.profile, top=50,
        of_before=lambda s: (s.pid, s.tid) in before, of_after=lambda s: (s.pid, s.tid) in after,
    )  # fmt: skip
    return percentages(sides[0].total_ns), percentages(sides[1].total_ns), found


def _telling(found: ProfileDifference) -> list[list[str]]:
    changes = [
        change
        for change in found.functions
        if abs(change.points) >= _LEAST_POINTS and change.hint != "unclear"
    ]
    return [
        [
            _name(change), f"{100 * change.before.share:.1f}", f"{100 * change.after.share:.1f}",
            f"{change.points:+.1f}", change.hint,
        ]
        for change in changes[:_SHOWN]
    ]  # fmt: skip


def _name(change: ShareChange) -> str:
    frame = change.frames[0]
    where = frame.file.rpartition("/")[2] or frame.module
    return f"{frame.function[:60]} ({where})" if where else frame.function[:80]


def _shelf(store: str | None) -> tuple[ProfileShelf, View]:
    from unidle.store.profiles import ProfileShelf
    from unidle.store.sql import SqlStore

    opened = read_store(store)
    assert isinstance(opened, SqlStore)
    return ProfileShelf(opened), read_view(opened)


def _read(shelf: ProfileShelf, view: View, wanted: WindowQuery) -> PastProfile:
    from unidle.scope.history import read

    past = read(shelf, wanted)
    if past.profile is not None:
        return past
    _none(shelf, view, wanted, past.damaged)
    raise AssertionError


def _none(shelf: ProfileShelf, view: View, wanted: WindowQuery, damaged: int) -> None:
    """Say why there is nothing."""
    every = shelf.infos_between(wanted.job, 0, 2**63 - 1)
    if not every:
        why = f": {view.profiler}" if view.profiler else ""
        raise CannotRun(
            f"this job was not profiled while it ran{why}", field="JOB", value=wanted.job,
            remedy="start `unidle up --profile`, or set `profile: {on: true}` in the fleet file",
        )  # fmt: skip
    if not any(wanted.rank in (None, info.rank) for info in every):
        raise BadInput("was never profiled", field="--rank", value=wanted.rank, remedy=f"use one of {_listed({i.rank for i in every})}")  # fmt: skip
    first, last = min(i.start_ns for i in every), max(i.end_ns for i in every)
    said = f"{clock_time(first)[:19]} to {clock_time(last)[:19]}"
    unread = f"; {counted(damaged, 'window')} could not be read" if damaged else ""
    raise TargetEnded(
        f"there is no profile of this time{unread}", field="--since", value=wanted.job,
        remedy=f"profiles exist from {said}",
    )  # fmt: skip


def _profile(past: PastProfile) -> Profile:
    assert past.profile is not None
    return past.profile


def _check_attempt(job: Any, number: int | None, field: str) -> None:
    if number is not None and not 1 <= number <= len(job.attempts):
        raise BadInput("the job has no such attempt", field=field, value=number, remedy=f"it has {counted(len(job.attempts), 'attempt')}")  # fmt: skip


def _in_order(since_ns: int, until_ns: int, field: str) -> None:
    if since_ns >= until_ns:
        raise BadInput("the window ends before it starts", field=field, remedy="the earlier moment first, for instance 2h..1h")  # fmt: skip


def _listed(numbers: set[int] | Sequence[int]) -> str:
    ordered = sorted(numbers)
    return ", ".join(map(str, ordered[:8])) + (f" to {ordered[-1]}" if len(ordered) > 8 else "")
