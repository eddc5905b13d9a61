"""The state of one rank: its marks, applied in the order of their source. Pure."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Final

import msgspec

from unidle.events.marks import GUESSED, LastOutput, Mark
from unidle.ledger.profiled_causes import Look

_STEPS_KEPT = 8192
_SPANS_KEPT = 8192
_NOTES_KEPT = 32
_LOSSES_KEPT = 512
_SILENCES_KEPT = 64

_SPAN_LEAF: Final = {
    "data": "data_stall",
    "eval": "evaluation",
    "save": "checkpoint",
    "restore": "restore",
    "compile": "compile",
    "comm": "exposed_local",
    "wan": "exposed_wan",
    "bubble": "bubble",
    "again": "recompute",
    "fill": "filled",
    "discarded": "discarded",
    "unready": "unready",
}
_WAITING_LEAF: Final = "data_stall"  # no sign of work, unlike the others


class Watched(msgspec.Struct, array_like=True, frozen=True):
    """Steps that were complete in a window, seen from outside."""

    start_ns: int
    end_ns: int
    step_ns: tuple[int, ...]


class RankView(msgspec.Struct, array_like=True):
    """The state of one rank of one attempt: the union of its marks."""

    count: int = 0  # marks known without a gap, so the ordinal of the next one
    pending: dict[int, Mark] = {}  # marks that came before their turn
    spawn_ns: int | None = None
    pid: int | None = None
    ready_ns: int | None = None
    step_ns: list[int] = []
    step_n: list[int] = []
    observer: str = ""
    spans: list[tuple[int, int, str]] = []
    saves: list[tuple[int, int | None]] = []  # (time, step where known)
    end_ns: int | None = None
    code: int | None = None
    lost: bool = False
    info: dict[str, int | float | str | bool | None] = {}
    notes: list[tuple[int, str]] = []
    worked_ns: int = 0  # the last sign of work: a step, a save, or a span that keeps a device for a reason
    restored: int | None = None  # the step after which it went on, as it said itself
    open: tuple[int, str] | None = None  # since when it spends time on this, as it said itself
    looks: list[Look] = []  # what was found by looking at it, in order of time
    watched: list[Watched] = []  # the latest windows in which its steps were watched from outside
    watched_ns: int | None = None  # when a step was first seen from outside
    last: LastOutput | None = None  # of one that failed
    losses: list[tuple[int, int, float | None]] = []  # (time, step, loss; None where it is no finite number)
    silent_ns: int | None = None  # since when it does not answer
    silences: list[tuple[int, int]] = []  # when it did not answer, before it did again
    flops: int | None = None  # floating-point operations that it counted in one step

    @property
    def guessed(self) -> bool:
        """Whether its steps are read from detected lines, not from a given pattern: their absence is no sign of a
        hang.
        """
        return self.observer == GUESSED

    @property
    def ended(self) -> bool:
        return self.end_ns is not None

    @property
    def failed(self) -> bool:
        return self.end_ns is not None and (self.lost or self.code != 0)


def fall_silent(rank: RankView, since_ns: int) -> None:
    """The rank has not answered since then; the earliest time that was reported counts."""
    begin_ns = max(since_ns, rank.silences[-1][1]) if rank.silences else since_ns
    rank.silent_ns = begin_ns if rank.silent_ns is None else min(rank.silent_ns, begin_ns)


def answer_again(rank: RankView, now_ns: int) -> None:
    """The rank answers again. Of a long life the latest silences are kept."""
    since_ns, rank.silent_ns = rank.silent_ns, None
    if since_ns is not None and since_ns < now_ns:
        rank.silences = [*rank.silences[-_SILENCES_KEPT:], (since_ns, now_ns)]


def take_up(rank: RankView, first: int, marks: Sequence[Mark]) -> None:
    """The union of what is known with marks ``first``, ``first + 1``, ... of the rank."""
    if first == rank.count and len(marks) == 1 and not rank.pending:  # nearly always
        mark = marks[0]
        if mark.k == "step":
            _see_step(rank, mark)
        else:
            _see(rank, mark)
        rank.count = first + 1
        return
    for ordinal, mark in enumerate(marks, first):
        if ordinal == rank.count:
            _see(rank, mark)
            rank.count += 1
        elif ordinal > rank.count:
            rank.pending[ordinal] = mark
    if rank.pending:
        _catch_up(rank)


def _catch_up(rank: RankView) -> None:
    """See the marks that came early and whose turn it is; drop those that came again meanwhile."""
    while rank.count in rank.pending:
        _see(rank, rank.pending.pop(rank.count))
        rank.count += 1
    rank.pending = {ordinal: mark for ordinal, mark in rank.pending.items() if ordinal > rank.count}


def pass_gaps(rank: RankView) -> None:
    """See the marks that wait for earlier ones, which will not come any more."""
    while rank.pending:
        rank.count = max(rank.count, min(rank.pending))
        _catch_up(rank)


def _see(rank: RankView, mark: Mark) -> None:
    """Take one mark up, in the order of its source."""
    kind = mark.k
    if kind == "step":
        _see_step(rank, mark)
    elif kind == "spawn":
        rank.spawn_ns, rank.pid = mark.t, mark.pid
    elif kind == "exit":
        rank.end_ns, rank.code, rank.info, rank.last = mark.t, mark.code, mark.info or {}, mark.last
    elif kind == "lost":
        rank.end_ns, rank.lost, rank.info = mark.t, True, mark.info or {}
        rank.notes.append((mark.t, mark.text or "its supervisor is gone"))
    elif kind == "span" and mark.e is not None and mark.w in _SPAN_LEAF:
        rank.spans.append((mark.t, max(mark.t, mark.e), _SPAN_LEAF[mark.w]))
        rank.open = None
        if _SPAN_LEAF[mark.w] != _WAITING_LEAF:
            rank.worked_ns = max(rank.worked_ns, mark.t, mark.e)
        if len(rank.spans) > _SPANS_KEPT:
            rank.spans = coarser(rank.spans)
    elif kind == "begin" and mark.w in _SPAN_LEAF:
        rank.open = (mark.t, _SPAN_LEAF[mark.w])
    elif kind in ("ready", "restored", "flops"):
        _see_once(rank, mark)
    elif kind == "saved":
        rank.saves.append((mark.t, mark.n))
        rank.worked_ns = max(rank.worked_ns, mark.t)
        del rank.saves[:-64]
    elif kind == "note" and len(rank.notes) < _NOTES_KEPT:
        rank.notes.append((mark.t, mark.text or ""))


def _see_once(rank: RankView, mark: Mark) -> None:
    if mark.k == "restored":
        rank.restored = mark.n
    elif mark.k == "flops":
        rank.flops = mark.n
    elif rank.ready_ns is None:
        rank.ready_ns = mark.t
        if mark.info:
            rank.info = {**rank.info, **mark.info}


def coarser(spans: list[tuple[int, int, str]]) -> list[tuple[int, int, str]]:
    """Fewer spans with the same time per leaf: of each 16 neighbours one span per leaf, back to back.

    Where spans overlap, the one that began first counts, as in the ledger.
    """
    spans = sorted(spans)
    result: list[tuple[int, int, str]] = []
    covered = spans[0][0]
    for k in range(0, len(spans), 16):
        lengths: dict[str, int] = {}
        for start, end, leaf in spans[k : k + 16]:
            lengths[leaf] = lengths.get(leaf, 0) + max(end - max(start, covered), 0)
            covered = max(covered, end)
        at = covered - sum(lengths.values())
        for leaf, length in lengths.items():
            result.append((at, at + length, leaf))
            at += length
    return result


def _see_step(rank: RankView, mark: Mark) -> None:
    times, steps, n, t = rank.step_ns, rank.step_n, mark.n, mark.t
    if steps:
        last = steps[-1]
        if n is None:
            n = last + 1
        elif n <= last:
            return
        if t < times[-1]:
            t = times[-1]
    elif n is None:
        n = 1
    times.append(t)
    steps.append(n)
    if t > rank.worked_ns:
        rank.worked_ns = t
    if mark.o is not None or not rank.observer:
        rank.observer = mark.o or "output"
    if mark.v is not None or mark.text:
        _see_loss(rank, t, n, mark)
    if len(steps) > _STEPS_KEPT:
        # A long life is kept at half the resolution: rows grow wider, their sums stay.
        del times[1:-1:2], steps[1:-1:2]


def _see_loss(rank: RankView, t: int, n: int, mark: Mark) -> None:
    if mark.v is None and not (mark.text or "").startswith("loss "):
        return
    rank.losses.append((t, n, mark.v))
    if len(rank.losses) > _LOSSES_KEPT:
        del rank.losses[1:-1:2]
