"""From the view to the ledger's postings: the work of each attempt, and how much of it was kept."""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Container, Sequence
from typing import Final, NamedTuple

from unidle.ledger.attempt import AttemptTrace, Fate, Halt, RankTrace, attempt_entries
from unidle.ledger.other_work import as_filler, as_service
from unidle.ledger.rows import Entry
from unidle.ledger.taxonomy import How
from unidle.view.jobs import AttemptView, JobView
from unidle.view.ranks import RankView
from unidle.view.state import View

_FAILURES: Final = ("rank_failed", "hung", "node_sick", "timeout")


class Durable(NamedTuple):
    """The result of an attempt: the last step that is kept, and from when on work was not kept."""

    step: int | None
    at_ns: int | None


def entries(view: View, now_ns: int) -> list[Entry]:
    """Postings that are not in a sealed segment: final ones, those of live jobs, and open time."""
    ended = [e for job_id in view.unposted for e in job_entries(view, view.jobs[job_id], now_ns)]
    live = [e for job in view.jobs.open.awake() for e in job_entries(view, job, now_ns)]
    return view.book.closed + ended + live + view.book.open_entries(now_ns)


def expected_postings(job: JobView) -> int:
    """About how many postings the job's time is."""
    total = 0
    for attempt in job.attempts:
        total += 4 + max(
            [len(rank.step_n) + len(rank.spans) + 6 * len(rank.looks) for rank in attempt.ranks], default=0
        )
    return total


def post_ended(view: View) -> None:
    """Post the time of jobs that have ended; of their marks only what is shown later stays.

    Until then such a job is kept packed with all its marks, a tenth of what its postings would take.
    """
    for job_id in view.unposted:
        job = view.jobs[job_id]
        durable = durable_points(job)
        view.book.closed += job_entries(view, job, view.time_ns, durable)
        for attempt, point in zip(job.attempts, durable, strict=True):
            _compact(attempt, point)
        view.jobs.put_away(job)
    view.unposted, view.unposted_size = [], 0


def _compact(attempt: AttemptView, durable: Durable) -> None:
    for rank in attempt.ranks:
        if len(rank.step_n) > 2:
            last = len(rank.step_n) - 1
            kept = last if durable.step is None else max(bisect_right(rank.step_n, durable.step) - 1, 0)
            few = sorted({0, kept, last})
            rank.step_ns, rank.step_n = [rank.step_ns[k] for k in few], [rank.step_n[k] for k in few]
        rank.spans.clear()
        rank.saves.clear()
        rank.pending.clear()
        rank.looks.clear()
        rank.watched.clear()
        rank.silences.clear()
    if durable.at_ns is not None:
        attempt.ranks[0].saves.append((durable.at_ns, durable.step))


def watermarks_ns(view: View) -> list[int]:
    """Per slice: no row that ends before this time can change any more.

    What is not final is the time under open jobs, and what a slice did since its last posting.
    """
    marks = list(view.book.since)
    for job in view.jobs.open.awake():
        for attempt in job.attempts:
            for piece in (s for place in attempt.places for s in place.slices):
                k = view.book.index(piece)
                marks[k] = min(marks[k], attempt.since.get(piece, attempt.placed_ns))
    return marks


def job_entries(
    view: View, job: JobView, now_ns: int, durable: Sequence[Durable] | None = None
) -> list[Entry]:
    """Postings for every attempt of one job, as far as ``now_ns`` (``durable``: its durable points, if known)."""
    result: list[Entry] = []
    base: int | None = None
    any_step = any(a.first_step() is not None for a in job.attempts)
    points = durable_points(job) if durable is None else durable
    for attempt, point in zip(job.attempts, points, strict=True):
        trace = _trace(view, job, attempt, now_ns, base, point, any_step)
        posted = attempt_entries(trace, now_ns)
        if job.spec.is_filler:
            posted = as_filler(posted)
        elif job.spec.service is not None:
            posted = as_service(posted, attempt.ranks[0].ready_ns)
        result += posted
        if point.step is not None:
            base = point.step
    return result


def durable_points(job: JobView) -> list[Durable]:
    """What each attempt of the job left behind."""
    declared = job.spec.checkpoint_path is not None
    found: list[Durable] = []
    resumed: int | None = None
    after: AttemptView | None = None
    for attempt in reversed(job.attempts):
        found.append(_durable_point(attempt, after, resumed, declared=declared))
        first = attempt.first_step()
        resumed = resumed if first is None else first  # one that died before its first step says nothing
        after = attempt
    found.reverse()
    lowest: int | None = None  # what a later attempt went on from bounds what all before it left
    for k in range(len(found) - 1, -1, -1):
        step = found[k].step
        if lowest is not None and step is not None and step > lowest:
            found[k] = _kept_until(job.attempts[k], lowest)
        restored = job.attempts[k].restored_step
        if restored is not None and (lowest is None or restored < lowest):
            lowest = restored
    return found


def _durable_point(
    attempt: AttemptView, after: AttemptView | None, resumed: int | None, *, declared: bool
) -> Durable:
    """What the attempt left behind, as far as it, the attempt ``after`` it, and ``resumed``, the first step after it, prove.

    The step from which the next attempt resumed is what was kept. Else a checkpoint seen to be durable proves it;
    so does the next step that follows of this one. Where a checkpoint directory is declared, a next attempt that
    counts from the start again disproves nothing: many progress bars do that.
    """
    if after is not None and after.restored_step is not None:
        return _kept_until(attempt, after.restored_step)
    times, steps = _timeline(attempt)
    step, at = None, None
    bad = {one.step for one in after.bad if one.step is not None} if after is not None else set()
    for t, n in sorted((s for r in attempt.ranks for s in r.saves), key=_by_time):
        seen = bisect_right(times, t)
        reached = steps[seen - 1] if seen else None
        saved = n if n is not None else reached
        if saved is None or n in bad or (step is not None and saved < step):
            continue
        step = saved
        at = t if n is None or not times else _time_of(times, steps, n)
    if resumed is not None and times:
        kept = resumed - 1
        if steps[0] <= kept <= steps[-1] and (step is None or kept > step) and (declared or kept > 0):
            step, at = kept, _time_of(times, steps, kept)
    return Durable(step, at)


def _kept_until(attempt: AttemptView, step: int) -> Durable:
    """The attempt's work up to ``step`` is kept, where it did any of that."""
    times, steps = _timeline(attempt)
    if not steps or step < steps[0]:
        return Durable(step, None)
    return Durable(step, _time_of(times, steps, step))


def _by_time(save: tuple[int, int | None]) -> tuple[int, int]:
    return save[0], -1 if save[1] is None else save[1]


def _time_of(times: list[int], steps: list[int], step: int) -> int:
    """When the last step reported at or before ``step`` was complete."""
    k = bisect_right(steps, step)
    return times[k - 1] if k else times[0]


def _timeline(attempt: AttemptView) -> tuple[list[int], list[int]]:
    lead = next((r for r in attempt.ranks if r.step_n), None)
    return (lead.step_ns, lead.step_n) if lead else ([], [])


def _trace(
    view: View,
    job: JobView,
    attempt: AttemptView,
    now_ns: int,
    base: int | None,
    durable: Durable,
    any_step: bool,
) -> AttemptTrace:
    halted, halt = _halt(attempt, job.spec.ignored_ranks)
    released_ns = attempt.released_ns
    until = released_ns if released_ns is not None else now_ns
    hangs = _hangs(attempt, until)
    ranks = tuple(
        _rank_trace(view, rank, slices, (since_ns or attempt.placed_ns, until), hangs, since_ns)._replace(
            phases=_phases(attempt, place.node, rank)
        )
        for rank, place in zip(attempt.ranks, attempt.places, strict=True)
        for since_ns, slices in _by_since(attempt, place.slices)
    )
    return AttemptTrace(
        job.id, attempt.number, attempt.placed_ns, released_ns, ranks, _fate(job, attempt),
        base, durable.step, durable.at_ns, halted, halt, any_step, *_idle(attempt), attempt.checked_ns,
        attempt.watched_ns, job.spec.service is None and _failed(attempt, any_step), attempt.saved_ns is not None, view.modelled,
    )  # fmt: skip


def _by_since(attempt: AttemptView, slices: tuple[str, ...]) -> list[tuple[int, tuple[str, ...]]]:
    """A rank's slices by when the attempt got them, 0 for those that were placed."""
    if not attempt.since:
        return [(0, slices)]
    times = [attempt.since.get(piece, 0) for piece in slices]
    return [
        (since_ns, tuple(s for s, t in zip(slices, times, strict=True) if t == since_ns))
        for since_ns in dict.fromkeys(times)
    ]


def _failed(attempt: AttemptView, any_step: bool) -> bool:
    """Whether the attempt ended by a failure, its own or its node's; not by success, nor because it was asked to.

    A time limit counts as a failure to start only if the job is known to show its steps.
    """
    if attempt.stop is None:
        return attempt.outcome == "failed"
    if attempt.stop.why == "timeout" and not any_step:
        return False
    return attempt.outcome not in (None, "succeeded") and attempt.stop.why in _FAILURES


def _idle(attempt: AttemptView) -> tuple[int | None, How]:
    """From when on the attempt is known to do nothing, and how: by a notice that stands."""
    notice = attempt.notice
    if notice is None or notice.evidence == "none":
        return None, "inferred"
    if any(rank.worked_ns > notice.since_ns for rank in attempt.ranks):
        return None, "inferred"  # it came with the end, before the notice could be withdrawn
    return notice.since_ns, "measured" if notice.evidence == "utilisation" else "inferred"


def _hangs(attempt: AttemptView, until_ns: int) -> list[tuple[int, int, str]]:
    """When the whole gang stood still, by the verdicts on it."""
    return [
        (v.onset_ns, v.over_ns if v.over_ns is not None else until_ns, "hang")
        for v in attempt.verdicts
        if v.kind in ("hang", "cut")
    ]


def _rank_trace(
    view: View,
    rank: RankView,
    ids: tuple[str, ...],
    window: tuple[int, int],
    hangs: list[tuple[int, int, str]],
    since_ns: int,
) -> RankTrace:
    """``window``: when the attempt had the slices; ``since_ns``: its start, if that is not the placement; else 0."""
    book, (start_ns, end_ns) = view.book, window
    slices = book.indexes(ids)
    down: list[tuple[int, int, str]] = []
    if book.down_log or book.down:
        down = sorted({d for k in slices for d in book.faults(k, start_ns, end_ns)})
    if book.lost:
        down = sorted({*down, *book.holes(start_ns, end_ns)})
    return RankTrace(
        slices, rank.spawn_ns, rank.end_ns, rank.ready_ns, rank.step_ns, rank.step_n,
        sorted(rank.spans + hangs) if rank.spans or hangs else (), rank.observer, down, rank.looks,
        _silences(rank, end_ns), since_ns,
    )  # fmt: skip


def _phases(attempt: AttemptView, node: str, rank: RankView) -> list[tuple[int, int, str]]:
    """How far the rank's pod had come, from the placement until the rank started."""
    seen = attempt.pod_phases.get(node)
    if not seen:
        return []
    until = rank.spawn_ns if rank.spawn_ns is not None else 1 << 62
    found: list[tuple[int, int, str]] = []
    at, leaf = attempt.placed_ns, "pod_binding"
    for since_ns, phase in seen:
        if at < min(since_ns, until):
            found.append((at, min(since_ns, until), leaf))
        at, leaf = max(at, since_ns), phase
    return [*found, (at, until, leaf)] if at < until else found


def _silences(rank: RankView, end_ns: int) -> list[tuple[int, int]]:
    """When the rank did not answer, up to ``end_ns``."""
    if rank.silent_ns is None:
        return rank.silences
    return [*rank.silences, (rank.silent_ns, max(rank.silent_ns, end_ns))]


def _halt(attempt: AttemptView, ignored: Container[int]) -> tuple[int | None, Halt]:
    """When the gang's work stopped, if before its processes: the first failure, or the order to stop."""
    failures = [
        r.end_ns
        for k, r in enumerate(attempt.ranks)
        if r.failed and r.end_ns is not None and k not in ignored
    ]
    if attempt.stop is not None and attempt.stop.why == "hung" and attempt.verdict is not None:
        return min([attempt.verdict.onset_ns, *failures]), "failure"
    if attempt.stop is not None and attempt.stop.why != "rank_failed":
        return min([attempt.stop_ns or 0, *failures]), "request"
    return (min(failures), "failure") if failures else (None, "failure")


def _fate(job: JobView, attempt: AttemptView) -> Fate:
    if attempt.outcome is None:
        return "open"
    if attempt.outcome == "succeeded" or job.spec.service is not None:
        return "kept"
    if attempt.stop is not None and attempt.stop.why == "node_sick":
        return "replayed"
    if attempt.outcome == "preempted":
        return "preempted" if attempt.disrupted is None else "disrupted"
    last = attempt is job.attempts[-1]
    if not last or job.state in ("restarting", "queued"):
        return "replayed"
    return "no_artefact" if job.terminal else "open"
