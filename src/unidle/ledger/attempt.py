"""From the observations of one attempt to the postings for its slices. Pure, and independent of the order of
arrival.

Each rank's time is laid out in two passes: a base that tiles ``[placed, released)`` without gaps,
then claims that lie over it (a measured data wait, a fault of the node, steps that turned out lost).
Where several apply, ``unidle.ledger.attempt`` decides. Work that a later event revoked is posted
as it stood first, reversed, and posted again with its new cause.
"""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from itertools import islice, pairwise
from typing import Final, Literal, NamedTuple

from unidle.ledger.profiled_causes import OBSERVER, CauseInterval, Look, carve
from unidle.ledger.rows import Entry
from unidle.ledger.taxonomy import GROUPS, How
from unidle.ledger.waits import UNSEEN, phased, silent


@dataclass(frozen=True, slots=True)
class SliceFacts:
    """What is known about one moment of one slice: per group a leaf of it, or None for nothing.

    ``free`` is why the slice would be free if nothing else were known; it always has an answer, so
    every moment has a leaf.
    """

    covered: bool = True
    down: str | None = None
    lost: str | None = None
    fill: str | None = None
    serve: str | None = None
    held: str | None = None
    step: str | None = None
    free: str = "no_demand"


def classify(facts: SliceFacts) -> str:
    """The leaf of a moment. Total; the first fact in the order of ``PRECEDENCE`` wins."""
    if not facts.covered:
        return UNSEEN
    return facts.down or facts.lost or facts.fill or facts.serve or facts.held or facts.step or facts.free


# What became of the attempt's work after its last durable checkpoint.
Fate = Literal["open", "kept", "replayed", "preempted", "disrupted", "no_artefact"]
# Why work stopped before the processes ended.
Halt = Literal["failure", "request"]

START_MOST_NS: Final = 600_000_000_000
"""A job of which no step was ever seen is taken to be past its start after so long."""


_Loss = Literal["open", "kept", "replayed", "preempted", "disrupted", "no_artefact", "failed_start"]


class RankTrace(NamedTuple):
    """Observations of one rank. Times in ns on the controller's clock, in order.

    ``since_ns``: when it got these slices, if that was after its placement. A rank with slices of several such times
    is as many traces.
    """

    slices: tuple[int, ...]
    spawn_ns: int | None = None
    end_ns: int | None = None
    ready_ns: int | None = None
    step_ns: Sequence[int] = ()
    step_n: Sequence[int] = ()
    spans: Sequence[tuple[int, int, str]] = ()  # (start, end, leaf of group held, step or fill)
    observer: str = ""
    down: Sequence[tuple[int, int, str]] = ()  # (start, end, leaf of group down)
    looks: Sequence[Look] = ()  # what was found by looking at it, in order of time
    silent: Sequence[tuple[int, int]] = ()  # when it did not answer, in order of time
    since_ns: int = 0
    phases: Sequence[
        tuple[int, int, str]
    ] = ()  # how far its pod had come, in order of time, until it started


class AttemptTrace(NamedTuple):
    """Observations of one attempt, and how much of its work was kept.

    ``base_step`` is the step that the attempt resumed from, ``durable_step`` the last step that a checkpoint of
    this attempt (or the next attempt's first step) proves to be kept, with ``durable_ns`` the time from which on
    work was not kept. ``job_steps``: whether any attempt of the job ever showed a step. From ``idle_ns`` on, if
    given, the attempt did nothing; ``idle_how`` is how that is known. Until ``checked_ns``, if given, its nodes
    were checked. ``watched_ns`` is when a step was first seen from outside, where that was looked for.
    ``failed``: it did not end by itself with success, nor was it preempted or cancelled. ``saved``: it saved a
    checkpoint. ``modelled``: a simulation, in which a job without steps works.
    """

    job: str
    attempt: int
    placed_ns: int
    ended_ns: int | None
    ranks: tuple[RankTrace, ...]
    fate: Fate = "open"
    base_step: int | None = None
    durable_step: int | None = None
    durable_ns: int | None = None
    halted_ns: int | None = None
    halt: Halt = "failure"
    job_steps: bool = True
    idle_ns: int | None = None
    idle_how: How = "inferred"
    checked_ns: int | None = None
    watched_ns: int | None = None
    failed: bool = False
    saved: bool = False
    modelled: bool = False


def attempt_entries(trace: AttemptTrace, now_ns: int) -> list[Entry]:
    """Postings that tile ``[placed, ended or now)`` for every slice of the attempt."""
    until = trace.ended_ns if trace.ended_ns is not None else max(now_ns, trace.placed_ns)
    spawned = _gang_spawned(trace, until)
    lead = next((r for r in trace.ranks if r.step_n), None)
    groups = _alike(trace.ranks, lead)
    entries: list[Entry] = []
    if len(groups) == 1:
        rank, slices = groups[0]
        same = tuple(sorted(slices))
        for piece in _rank_pieces(trace, rank, lead, spawned, until):
            _post(trace, piece, same, entries)
        return entries
    merged: dict[CauseInterval, list[int]] = {}
    for rank, slices in groups:
        for piece in _rank_pieces(trace, rank, lead, spawned, until):
            merged.setdefault(piece, []).extend(slices)
    for piece, slices in merged.items():
        _post(trace, piece, tuple(sorted(slices)), entries)
    return entries


def _alike(ranks: Sequence[RankTrace], lead: RankTrace | None) -> list[tuple[RankTrace, list[int]]]:
    """One rank for all ranks with the same time layout, with the slices of all of them."""
    groups: dict[tuple[object, ...], tuple[RankTrace, list[int]]] = {}
    for rank in ranks:
        source = rank if rank.step_n else lead
        ready = rank.ready_ns if rank.ready_ns is not None or source is None else source.ready_ns
        own = (
            tuple(rank.spans),
            tuple(rank.down),
            tuple(rank.looks),
            tuple(rank.silent),
            rank.since_ns,
            tuple(rank.phases),
        )
        key = (rank.end_ns, ready, id(source), own if any(own) else None)
        groups.setdefault(key, (rank, []))[1].extend(rank.slices)
    return list(groups.values())


def _gang_spawned(trace: AttemptTrace, until: int) -> int | None:
    """When the last rank's process appeared; None while one has not."""
    latest = trace.placed_ns
    for rank in trace.ranks:
        if rank.spawn_ns is None:
            return None
        latest = max(latest, rank.spawn_ns)
    return min(latest, until)


def _post(trace: AttemptTrace, piece: CauseInterval, slices: tuple[int, ...], entries: list[Entry]) -> None:
    start, end, leaf, step, how, observer, was = piece
    new = Entry(slices, start, end, leaf, trace.job, trace.attempt, step, how, observer)
    if was is None:
        entries.append(new)
        return
    old = new._replace(leaf=was)
    entries += (old, old._replace(revision=1, sign=-1), new._replace(revision=1))


def _rank_pieces(
    trace: AttemptTrace, rank: RankTrace, lead: RankTrace | None, spawned: int | None, until: int
) -> Iterator[CauseInterval]:
    """The rank's time from placement to release, without gaps; empty pieces are left out."""
    placed = trace.placed_ns
    gone = until if rank.end_ns is None else min(max(rank.end_ns, placed), until)
    work_end = gone if trace.halted_ns is None else min(gone, max(trace.halted_ns, placed))
    begin_work = work_end if spawned is None else min(spawned, work_end)
    checked = placed if trace.checked_ns is None else min(max(trace.checked_ns, placed), begin_work)
    pieces = [CauseInterval(placed, checked, "preflight", -1, "measured", "control")]
    pieces.append(CauseInterval(checked, begin_work, "gang_wait", -1, "measured", "supervisor"))
    pieces += _work(trace, rank, lead, begin_work, work_end)
    after = "hang" if trace.halt == "failure" else "preempting"
    pieces.append(CauseInterval(work_end, gone, after, -1, "inferred", "control"))
    pieces.append(CauseInterval(gone, until, "idle", -1, "measured", "supervisor"))
    if rank.phases:
        pieces = list(phased(pieces, rank.phases))
    tiled: Iterator[CauseInterval] | list[CauseInterval] = pieces
    if rank.spans or rank.down:
        tiled = _overlay(pieces, rank, begin_work, work_end)
    if trace.idle_ns is not None:
        tiled = _idle(tiled, max(trace.idle_ns, begin_work), work_end, trace.idle_how)
    if rank.looks:
        tiled = carve([piece for piece in tiled if piece.start_ns < piece.end_ns], rank.looks)
    if rank.silent:
        tiled = silent(tiled, rank.silent, gone)
    fate: _Loss = trace.fate
    lost_from, lost_until = _lost_from(trace, rank, lead, begin_work), work_end
    if spawned is not None and _is_failed_start(trace, lead, begin_work):
        fate, lost_from, lost_until = "failed_start", begin_work, gone
    for piece in tiled:
        if piece.start_ns < rank.since_ns:
            piece = piece._replace(start_ns=rank.since_ns)
        if piece.start_ns >= piece.end_ns:
            continue
        if lost_from is None or piece.start_ns >= lost_until or piece.end_ns <= lost_from:
            yield piece
        else:
            yield from _revoke(piece, lost_from, fate)


def _is_failed_start(trace: AttemptTrace, lead: RankTrace | None, begin_work: int) -> bool:
    """Whether the gang failed before its first step.

    For a job that never showed a step, it is unknown whether it was at work. It failed at its start where it did
    so within :data:`START_MOST_NS` and had saved nothing; later than that its time goes as that of a job at work.
    """
    if not trace.failed or lead is not None or trace.watched_ns is not None or trace.ended_ns is None:
        return False
    if trace.job_steps:
        return True
    stopped_ns = trace.ended_ns if trace.halted_ns is None else min(trace.halted_ns, trace.ended_ns)
    return not trace.modelled and not trace.saved and stopped_ns - begin_work <= START_MOST_NS


def _work(
    trace: AttemptTrace, rank: RankTrace, lead: RankTrace | None, begin: int, end: int
) -> list[CauseInterval]:
    """``[begin, end)``: start, then one piece per step seen, then what follows the last step."""
    source = rank if rank.step_n else lead
    if source is None:
        return _work_without_steps(trace, begin, end)
    how: How = "measured" if source.observer == "helper" else "inferred"
    count = bisect_right(source.step_ns, end)
    at = min(_first_begin(trace, rank, source, begin), end)
    pieces = [CauseInterval(begin, at, "start", -1, how, source.observer)]
    for k in range(count):
        done = max(source.step_ns[k], at)
        pieces.append(CauseInterval(at, done, "useful", source.step_n[k], how, source.observer))
        at = done
    if count == 0:
        pieces[0] = CauseInterval(begin, end, "start", -1, how, source.observer)
    elif count < len(source.step_n):
        # the rank was gone a moment before the gang's lead told of the step
        pieces.append(CauseInterval(at, end, "useful", source.step_n[count], how, source.observer))
    elif trace.ended_ns is not None and trace.fate == "kept":
        pieces.append(CauseInterval(at, end, "idle", -1, "inferred", source.observer))
    else:
        pieces.append(CauseInterval(at, end, "useful", -1, "inferred", source.observer))
    return pieces


def _work_without_steps(trace: AttemptTrace, begin: int, end: int) -> list[CauseInterval]:
    seen = end if trace.watched_ns is None else min(max(trace.watched_ns, begin), end)
    watched = CauseInterval(seen, end, "useful", -1, "inferred", OBSERVER)
    if trace.job_steps or (trace.fate == "open" and trace.watched_ns is not None):
        return [CauseInterval(begin, seen, "start", -1, "inferred", "supervisor"), watched]
    if trace.fate == "open":  # its first step may still come
        started = seen if trace.modelled else min(begin + START_MOST_NS, seen)
        return [
            CauseInterval(begin, started, "start", -1, "inferred", "supervisor"),
            CauseInterval(started, seen, "unmeasured", -1, "inferred", "process"),
        ]
    # The job itself never showed a step. Unless some were seen from outside, what its processes did is unknown.
    leaf = "useful" if trace.modelled or trace.watched_ns is not None else "unmeasured"
    return [CauseInterval(begin, seen, leaf, -1, "inferred", "process", was="start"), watched]


def _first_begin(trace: AttemptTrace, rank: RankTrace, source: RankTrace, begin: int) -> int:
    """When the first step seen began: reported by the job, else estimated from the pace that follows."""
    ready = rank.ready_ns if rank.ready_ns is not None else source.ready_ns
    if ready is not None:
        return max(begin, ready)
    first_ns, first_n = source.step_ns[0], source.step_n[0]
    if len(source.step_n) < 2:
        return max(begin, first_ns)
    pace_ns = _pace_ns(source.step_ns, source.step_n)
    # Scripts that count from 0 complete their first step as number 0.
    base = trace.base_step if trace.base_step is not None else min(0, first_n - 1)
    covered = first_n - base if first_n > base else 1
    return max(begin, first_ns - pace_ns * covered)


def _pace_ns(times: Sequence[int], steps: Sequence[int]) -> int:
    """The median time per step of the first intervals: a save or an evaluation in one does not count."""
    first = zip(pairwise(islice(times, 64)), pairwise(islice(steps, 64)), strict=True)
    paces = sorted((t1 - t0) // max(1, n1 - n0) for (t0, t1), (n0, n1) in first)
    return paces[len(paces) // 2]


def _lost_from(trace: AttemptTrace, rank: RankTrace, lead: RankTrace | None, begin: int) -> int | None:
    if trace.fate in ("open", "kept"):
        return None
    source = rank if rank.step_n else lead
    if source is None:
        if trace.job_steps and trace.watched_ns is not None:
            return max(begin, trace.watched_ns)
        if trace.job_steps or not (trace.failed or trace.modelled or trace.watched_ns is not None):
            return None  # nothing is known that was lost when it was asked to end
        return begin if trace.durable_ns is None else max(begin, trace.durable_ns)
    first = _first_begin(trace, rank, source, begin)
    return first if trace.durable_ns is None else max(first, trace.durable_ns)


def _revoke(piece: CauseInterval, lost_from: int, fate: _Loss) -> Iterator[CauseInterval]:
    """The part of ``piece`` from ``lost_from`` on gets the leaf of what became of it."""
    cut = max(piece.start_ns, lost_from)
    if piece.start_ns < cut:
        yield piece._replace(end_ns=cut)
    if piece.leaf in ("idle", "unseen", "silent"):  # no work that is known, so none that was lost
        yield piece._replace(start_ns=cut)
        return
    down = piece.leaf in _DOWN
    leaf = classify(SliceFacts(covered=True, down=piece.leaf if down else None, lost=fate))
    if leaf == piece.leaf:
        yield piece._replace(start_ns=cut)
    else:
        yield piece._replace(start_ns=cut, leaf=leaf, was=piece.was or piece.leaf)


_DOWN = frozenset({"fault", "repair", "maintenance", "quarantine", "boot"})
_STEP = frozenset(GROUPS["step"]) | frozenset(GROUPS["fill"])  # a filler runs in the waits of a step


def _idle(pieces: Iterable[CauseInterval], start: int, end: int, how: How) -> Iterator[CauseInterval]:
    """From ``start`` until ``end`` what was taken for work, because nothing else was known, is idle."""
    for piece in pieces:
        a, b = max(piece.start_ns, start), min(piece.end_ns, end)
        if a >= b or not (piece.leaf == "start" or (piece.leaf in _STEP and piece.how == "inferred")):
            yield piece
            continue
        yield piece._replace(end_ns=a)
        yield piece._replace(
            start_ns=a, end_ns=b, leaf="idle", step=-1, how=how, observer="control", was=None
        )
        yield piece._replace(start_ns=b)


def _overlay(
    pieces: Sequence[CauseInterval], rank: RankTrace, begin: int, end: int
) -> Iterator[CauseInterval]:
    """Lay measured spans (within the work) and faults (anywhere) over the base pieces."""
    spans = [(max(s, begin), min(e, end), leaf) for s, e, leaf in rank.spans]
    claims = sorted([(s, e, leaf, False) for s, e, leaf in spans] + [(*d, True) for d in rank.down])
    first = 0  # claims before it have ended: both lists are in order of time
    for piece in pieces:
        while first < len(claims) and claims[first][1] <= piece.start_ns:
            first += 1
        near: list[tuple[int, int, str, bool]] = []
        for claim in islice(claims, first, None):
            if claim[0] >= piece.end_ns:
                break
            if claim[1] > piece.start_ns:
                near.append(claim)
        edges = {piece.start_ns, piece.end_ns}
        for start, stop, _, _ in near:
            edges.update(t for t in (start, stop) if piece.start_ns < t < piece.end_ns)
        cuts = sorted(edges)
        for a, b in pairwise(cuts):
            over = [c for c in near if c[0] <= a and c[1] >= b]
            yield _claimed(piece._replace(start_ns=a, end_ns=b), over)


def _claimed(piece: CauseInterval, over: Sequence[tuple[int, int, str, bool]]) -> CauseInterval:
    downs = [leaf for _, _, leaf, is_down in over if is_down]
    down = "unseen" if "unseen" in downs else next(iter(downs), None)
    held = next((leaf for _, _, leaf, is_down in over if not is_down), None)
    if down is None and held is None:
        return piece
    base_step = piece.leaf if piece.leaf in _STEP else None
    base_held = None if base_step else piece.leaf
    if held in _STEP:  # says more of a step, and nothing of what is none
        base_step, held = base_step and held, None
    leaf = classify(SliceFacts(covered=True, down=down, held=held or base_held, step=base_step))
    return piece._replace(
        leaf=leaf,
        how="inferred" if down == "unseen" else "measured",
        observer="helper" if down is None else "control",
        was=None,
    )
