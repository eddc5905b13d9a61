"""Profiled causes of a running rank, carved out of its useful (or unmeasured) time. Pure, in whole nanoseconds.

A look (a sample period) covers a window of a rank's time and has how much of it went to other causes than useful
work. Inside the window that is measured. Between two looks that are not far apart each half goes by the look that
is nearer, and is inferred. Before the first look, after the last one and across longer breaks nothing is known:
the time stays as it was.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from typing import Final, NamedTuple

from unidle.ledger.apportion import by_weight
from unidle.ledger.taxonomy import How


class CauseInterval(NamedTuple):
    """An interval of one rank's time with its cause, before it is posted; ``unidle.ledger.attempt`` makes them."""

    start_ns: int
    end_ns: int
    leaf: str
    step: int
    how: How
    observer: str
    was: str | None = None  # the leaf that stood before it was corrected


CARVED: Final = ("data_stall", "checkpoint", "exposed_local", "straggler_wait", "host_gap")
"""The leaves that a look may find, in the order in which they are laid."""
_CARVED_FROM: Final = frozenset({"useful", "unmeasured"})
BETWEEN_MOST_NS: Final = 900_000_000_000
"""Two looks that are further apart say nothing of the time between them."""
OBSERVER: Final = "scope"
_PLACES: Final = 16  # of a window: where its causes are laid, so that every part of it has its share


class Look(NamedTuple):
    """A window of one rank's time and what of it was not useful: (leaf of :data:`CARVED`, ns), at most the window.

    ``seen`` is False where the window is made of several that were not kept, with the time between them.
    """

    start_ns: int
    end_ns: int
    parts: tuple[tuple[str, int], ...]
    seen: bool = True


class _Window(NamedTuple):
    start_ns: int
    end_ns: int
    look: Look
    how: How


def fitted(parts: Mapping[str, int], length_ns: int) -> tuple[tuple[str, int], ...]:
    """``parts`` that are of :data:`CARVED` and positive, in its order, made smaller where they exceed ``length_ns``."""
    kept = [(leaf, parts[leaf]) for leaf in CARVED if parts.get(leaf, 0) > 0]
    amounts = [ns for _, ns in kept]
    if sum(amounts) > length_ns:
        amounts = by_weight(max(length_ns, 0), amounts)
    return tuple((leaf, ns) for (leaf, _), ns in zip(kept, amounts, strict=True) if ns)


def carve(pieces: Sequence[CauseInterval], looks: Sequence[Look]) -> Iterator[CauseInterval]:
    """``pieces`` (in order, none overlaps another) with the looks' causes in place of useful time.

    The pieces that come out cover the same time. What is no useful time stays as it is; a cause that others laid
    over the window already is taken off what the look found, so that nothing counts twice.
    """
    at = 0
    left: CauseInterval | None = None  # of the piece that a window ended in
    for window in windows(looks):
        inside: list[CauseInterval] = []
        while left is not None or at < len(pieces):
            piece = left if left is not None else pieces[at]
            if piece.start_ns >= window.end_ns:
                break
            if left is None:
                at += 1
            left = None
            if piece.end_ns <= window.start_ns:
                yield piece
                continue
            if piece.start_ns < window.start_ns:
                yield piece._replace(end_ns=window.start_ns)
                piece = piece._replace(start_ns=window.start_ns)
            if piece.end_ns > window.end_ns:
                left = piece._replace(start_ns=window.end_ns)
                piece = piece._replace(end_ns=window.end_ns)
            inside.append(piece)
            if left is not None:
                break
        yield from _laid(inside, window)
    if left is not None:
        yield left
    yield from pieces[at:]


def windows(looks: Sequence[Look]) -> Iterator[_Window]:
    """The looks' windows, and between near ones the halves that go by each; in order, none overlaps another."""
    before: Look | None = None
    for look in looks:
        if before is not None and 0 < look.start_ns - before.end_ns <= BETWEEN_MOST_NS:
            middle_ns = (before.end_ns + look.start_ns) // 2
            yield _Window(before.end_ns, middle_ns, before, "inferred")
            yield _Window(middle_ns, look.start_ns, look, "inferred")
        yield _Window(look.start_ns, look.end_ns, look, "measured" if look.seen else "inferred")
        before = look


def _laid(pieces: list[CauseInterval], window: _Window) -> Iterator[CauseInterval]:
    """The pieces of one window, with its causes at the end of each of some places in it."""
    useful_ns = sum(p.end_ns - p.start_ns for p in pieces if p.leaf in _CARVED_FROM)
    wanted = _wanted(pieces, window, useful_ns)
    if not any(wanted):
        yield from pieces
        return
    total_ns, done_ns, given_ns = sum(wanted), 0, 0
    for place in _places(pieces):
        done_ns += sum(p.end_ns - p.start_ns for p in place if p.leaf in _CARVED_FROM)
        due_ns = total_ns * done_ns // useful_ns - given_ns
        here = by_weight(due_ns, wanted)
        given_ns += due_ns
        wanted = [ns - took for ns, took in zip(wanted, here, strict=True)]
        yield from _filled(place, here, window.how)


def _wanted(pieces: Sequence[CauseInterval], window: _Window, useful_ns: int) -> list[int]:
    """How much of each leaf of :data:`CARVED` is to be laid over the window's useful time."""
    length_ns, looked_ns = window.end_ns - window.start_ns, window.look.end_ns - window.look.start_ns
    found = dict(window.look.parts)
    wanted = {leaf: found.get(leaf, 0) * length_ns // looked_ns for leaf in CARVED}
    there = dict.fromkeys(CARVED, 0)
    for piece in pieces:
        if piece.leaf in there:
            there[piece.leaf] += piece.end_ns - piece.start_ns
    # who says "communication" cannot tell who was late: what is more than our own share was waiting for a rank
    more_ns = max(there["exposed_local"] - wanted["exposed_local"], 0)
    there["straggler_wait"] += more_ns
    amounts = [max(wanted[leaf] - there[leaf], 0) for leaf in CARVED]
    return amounts if sum(amounts) <= useful_ns else by_weight(useful_ns, amounts)


def _places(pieces: list[CauseInterval]) -> Iterator[list[CauseInterval]]:
    stride = -(-len(pieces) // _PLACES)
    for k in range(0, len(pieces), stride):
        yield pieces[k : k + stride]


def _filled(pieces: list[CauseInterval], amounts: Sequence[int], how: How) -> Iterator[CauseInterval]:
    """The last useful time of ``pieces`` becomes the causes, in their order."""
    leaves = [leaf for leaf, ns in zip(CARVED, amounts, strict=True) if ns]
    left = [ns for ns in amounts if ns]
    made: list[CauseInterval] = []  # from the end
    for piece in reversed(pieces):
        end_ns = piece.end_ns
        while left and piece.leaf in _CARVED_FROM and end_ns > piece.start_ns:
            start_ns = max(end_ns - left[-1], piece.start_ns)
            made.append(
                piece._replace(start_ns=start_ns, end_ns=end_ns, leaf=leaves[-1], how=how, observer=OBSERVER)
            )
            left[-1] -= end_ns - start_ns
            if not left[-1]:
                left.pop()
                leaves.pop()
            end_ns = start_ns
        if end_ns > piece.start_ns:
            made.append(piece._replace(end_ns=end_ns))
    yield from reversed(made)


def coarser(looks: Sequence[Look]) -> list[Look]:
    """Half as many looks, of which each but the last represents two neighbours and the time between them."""
    made: list[Look] = []
    for k in range(0, len(looks) - 1, 2):
        first, second = looks[k], looks[k + 1]
        if second.start_ns - first.end_ns > BETWEEN_MOST_NS:
            made += (first, second)
            continue
        looked_ns = first.end_ns - first.start_ns + second.end_ns - second.start_ns
        length_ns = second.end_ns - first.start_ns
        sums = dict(first.parts)
        for leaf, ns in second.parts:
            sums[leaf] = sums.get(leaf, 0) + ns
        scaled = {leaf: ns * length_ns // looked_ns for leaf, ns in sums.items()}
        made.append(Look(first.start_ns, second.end_ns, fitted(scaled, length_ns), False))
    return made + ([looks[-1]] if len(looks) % 2 else [])
