"""What fillers did in the waits of a job, and whether training noticed: from the lines that they wrote. Pure."""

from __future__ import annotations

import json
from collections.abc import Iterable
from dataclasses import dataclass
from typing import Any

from unidle.predict.block_pairs import BlockPair, SlowDown, slow_down


@dataclass(frozen=True, slots=True)
class FilledRun:
    """Something that ran in a wait, without a pause; ns from the begin of the step. ``of``: the number of what it belongs to, such as a prompt."""

    begin_ns: int
    end_ns: int
    of: int


@dataclass(frozen=True, slots=True)
class FilledStep:
    """A step of training. ``ranks``: number, waits (begin, end) and what ran in them, of each rank with a filler."""

    step: int
    length_ns: int
    filled: bool
    ranks: tuple[tuple[int, tuple[tuple[int, int], ...], tuple[FilledRun, ...]], ...]


@dataclass(frozen=True, slots=True)
class FillStory:
    """``slow_down``: of training, from pairs of blocks of steps. Times are sums of nanoseconds over all ranks and fillers; ``waited_ns``: of waits
    in which pieces could begin. ``steps``: one without fillers and one with them, as far as there are such.
    """

    fillers: tuple[str, ...]
    slow_down: SlowDown
    waited_ns: int
    filled_ns: int
    discarded_ns: int
    units: int
    endings: tuple[str, ...]
    steps: tuple[FilledStep, ...]

    @property
    def left_ns(self) -> int:
        """Of the waits, what nothing ran in."""
        return max(self.waited_ns - self.filled_ns - self.discarded_ns, 0)


def fill_story(lines: bytes) -> FillStory | None:
    """None without fillers. Lines that are torn or of another form are left out."""
    found = list(_records(lines))
    begins = [one for one in found if one.get("kind") == "begin"]
    if not begins:
        return None
    ends = [one for one in found if one.get("kind") == "end"]
    pairs = [pair for one in found if one.get("kind") == "pair" and (pair := _pair(one))]
    sums = {
        word: sum(_number(one.get(word)) for one in ends)
        for word in ("waited_ns", "filled_ns", "discarded_ns", "units")
    }
    return FillStory(
        tuple(dict.fromkeys(str(one.get("filler", "")) for one in begins)), slow_down(pairs),
        sums["waited_ns"], sums["filled_ns"], sums["discarded_ns"], sums["units"],
        tuple(str(text) for one in ends for text in _list(one.get("endings"))), _steps(found),
    )  # fmt: skip


def _records(lines: bytes) -> Iterable[dict[str, Any]]:
    for line in lines.splitlines():
        try:
            found = json.loads(line)
        except ValueError:
            continue
        if isinstance(found, dict):
            yield found


def _pair(record: dict[str, Any]) -> BlockPair | None:
    filled, unfilled = record.get("filled_ns"), record.get("unfilled_ns")
    if not all(isinstance(value, int | float) and 0 < value < 1e18 for value in (filled, unfilled)):
        return None
    return BlockPair(float(filled or 0), float(unfilled or 0), record.get("first") is True)


def _steps(found: list[dict[str, Any]]) -> tuple[FilledStep, ...]:
    """Of several attempts the last ones: at most one without fillers, then one with them."""
    kept: dict[bool, FilledStep] = {}
    for one in found:
        if one.get("kind") == "step" and (step := _step(one)) is not None:
            kept[step.filled] = step
    return tuple(kept[filled] for filled in (False, True) if filled in kept)


def _step(record: dict[str, Any]) -> FilledStep | None:
    try:
        ranks = tuple(
            (
                int(rank["rank"]),
                tuple((int(a), int(b)) for a, b in rank["waits"]),
                tuple(FilledRun(int(a), int(b), int(of)) for a, b, of in rank["runs"]),
            )
            for rank in record["ranks"]
        )
        length_ns = int(record["length_ns"])
        return (
            FilledStep(int(record["step"]), length_ns, bool(record["filled"]), ranks)
            if length_ns > 0 and ranks
            else None
        )
    except (KeyError, TypeError, ValueError):
        return None


def _number(value: object) -> int:
    return value if isinstance(value, int) and 0 <= value < 1 << 62 else 0


def _list(value: object) -> list[object]:
    return value if isinstance(value, list) else []
