"""One step without fillers and one with them, for the picture of a filled job: waits of each rank, and what ran in them."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, Protocol

from unidle.rank.waits import BoardReader


class SampledFiller(Protocol):
    """A filler next to a rank: :class:`unidle.fill.runtime.process.FillerProcess`."""

    @property
    def board(self) -> BoardReader | None: ...
    @property
    def rank_number(self) -> int: ...
    def runs(self) -> list[tuple[int, int, int]]: ...


@dataclass(slots=True)
class SampleSteps:
    """Keeps the last step in which nothing ran, and the one in which most ran. Call :meth:`step` as soon as a step of the first rank has ended."""

    _before: dict[str, Any] | None = None
    _after: dict[str, Any] | None = None
    _newest: tuple[dict[str, Any], int] | None = None
    _filled_ns: int = 0
    _begin_ns: int = 0

    def step(self, number: int, end_ns: int, fillers: Sequence[SampledFiller]) -> None:
        """``end_ns``: of CLOCK_MONOTONIC. Times that are kept are ns from the begin of the step."""
        begin_ns, self._begin_ns = self._begin_ns, end_ns
        if not begin_ns:
            return
        ranks, filled_ns = [], 0
        for filler in fillers:
            if filler.board is None:
                continue
            waits = _waits(filler.board, begin_ns, end_ns)
            runs = [
                (*part, of) for a, b, of in filler.runs() for wait in waits if (part := _common((a, b), wait))
            ]
            filled_ns += sum(b - a for a, b, _ in runs)
            ranks.append({
                "rank": filler.rank_number,
                "waits": [[a - begin_ns, b - begin_ns] for a, b in waits],
                "runs": [[a - begin_ns, b - begin_ns, of] for a, b, of in runs],
            })  # fmt: skip
        self._keep()
        self._newest = ({"step": number, "length_ns": end_ns - begin_ns, "ranks": ranks}, filled_ns)

    def _keep(self) -> None:
        """The newest one, as another follows: in the last step of all, ranks end and do not wait for the next."""
        if self._newest is None:
            return
        found, filled_ns = self._newest
        if not filled_ns:
            self._before = found
        elif filled_ns > self._filled_ns:
            self._after, self._filled_ns = found, filled_ns

    def missed(self) -> None:
        """Steps were not seen: the next one has no known begin."""
        self._begin_ns = 0

    def records(self) -> list[dict[str, Any]]:
        """Both steps, as far as there are such: first the one without fillers."""
        named = ((False, self._before), (True, self._after))
        return [found | {"filled": filled} for filled, found in named if found is not None]


def _waits(board: BoardReader, begin_ns: int, end_ns: int) -> list[tuple[int, int]]:
    """Those in a step, cut to it, with the one that has not ended."""
    every = [(one.begin_ns, one.begin_ns + one.length_ns) for one in board.waits_from(0)]
    if since := board.waiting_since_ns:
        every.append((since, end_ns))
    return [cut for one in every if (cut := _common(one, (begin_ns, end_ns)))]


def _common(one: tuple[int, int], other: tuple[int, int]) -> tuple[int, int] | None:
    begin, end = max(one[0], other[0]), min(one[1], other[1])
    return (begin, end) if begin < end else None
