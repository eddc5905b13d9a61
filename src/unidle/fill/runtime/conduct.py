"""What a filler's process does wrong, and what follows. Pure.

Time is judged by what a piece has computed, not by the clock: a piece that was let in just before a wait ends is suspended until the
kernel has time for it, and that is not its fault.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Final, Literal

OVER_TIMES: Final = 10  # of its stated length
OVER_NS: Final = 20_000_000  # shorter excesses do not count
END_NS: Final = 2_000_000_000  # of computation beyond that, or of sleep
CHILDREN_NS: Final = 100_000_000  # in a second, by processes that it started


@dataclass(frozen=True, slots=True)
class PieceUse:
    """Of the piece that runs: its stated length, how long it has computed, and slept; all 0 between pieces."""

    length_ns: int = 0
    computed_ns: int = 0
    slept_ns: int = 0


@dataclass(frozen=True, slots=True)
class Verdict:
    """``freeze``: it is stopped whenever training works, because it ignores the flag. ``end``: it is killed."""

    what: Literal["well", "freeze", "end"]
    reason: str = ""


WELL: Final = Verdict("well")


def judge(use: PieceUse, resident_bytes: int, limit_bytes: int, children_ns: int) -> Verdict:
    """``children_ns``: what processes of its own computed in the last second."""
    if resident_bytes > limit_bytes:
        return Verdict(
            "end", f"it holds {resident_bytes:,} bytes of memory, and {limit_bytes:,} are permitted"
        )
    limit = OVER_TIMES * use.length_ns + OVER_NS
    length = f"{use.length_ns / 1e6:.1f} ms"
    if use.computed_ns > limit + END_NS:
        return Verdict("end", f"a piece of {length} has computed for {use.computed_ns / 1e9:.1f} s")
    if use.slept_ns > limit + END_NS:
        return Verdict("end", f"a piece of {length} has computed nothing for {use.slept_ns / 1e9:.1f} s")
    if use.computed_ns > limit:
        return Verdict("freeze", f"a piece of {length} computes for longer than {limit / 1e6:.0f} ms")
    if children_ns > CHILDREN_NS:
        return Verdict("freeze", "processes that it started compute between its pieces")
    return WELL
