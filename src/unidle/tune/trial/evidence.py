"""Two traces compared: what the program computed before and after a change."""

from __future__ import annotations

import json
import math
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final

from unidle.words import counted

SHADOW: Final = 1e-9
"""The largest difference in float64, relative to the sum of absolute values, or 1."""
NATIVE: Final = 1e-2
MOST_RECORDS: Final = 200_000
TRAINS: Final = ("parameters", "evaluation", "output")


@dataclass(frozen=True, slots=True)
class Difference:
    """The first place where traces differ by more than the tolerance; ``size`` is the largest difference of all that were compared."""

    where: str = ""
    size: float = 0.0


@dataclass(frozen=True, slots=True)
class ComputedTrace:
    """The records of a run; ``whole``: the program came to its end, and nothing was left out."""

    records: tuple[tuple[str, Any], ...]
    whole: bool

    @property
    def steps(self) -> int:
        """The number of optimizer steps."""
        return sum(kind == "parameters" for kind, _ in self.records)

    @property
    def shows(self) -> bool:
        """Whether there is anything to compare by."""
        return self.whole and any(kind in TRAINS for kind, _ in self.records)


def read_trace(path: Path) -> ComputedTrace:
    """A trace; an empty one that is not whole if there is none."""
    try:
        lines = path.read_text(encoding="utf-8").splitlines()
    except OSError:
        return ComputedTrace((), False)
    records: list[tuple[str, Any]] = []
    for line in lines:
        try:
            kind, value = json.loads(line)
        except ValueError:
            return ComputedTrace(tuple(records), False)
        if kind == "end":
            return ComputedTrace(tuple(records), value <= MOST_RECORDS)
        records.append((kind, value))
    return ComputedTrace(tuple(records), False)


def compare(before: ComputedTrace, after: ComputedTrace, tolerance: float) -> Difference:
    """Record by record, in order. Evidence that is missing or in another order is a difference."""
    largest = 0.0
    for number, (one, other) in enumerate(zip(before.records, after.records, strict=False)):
        if one[0] != other[0]:
            return Difference(f"record {number + 1} is of {other[0]}, not of {one[0]}", math.inf)
        size = _apart(one[1], other[1])
        largest = max(largest, size)
        if size > tolerance:
            step = sum(kind == "parameters" for kind, _ in before.records[:number]) + 1
            return Difference(f"{one[0]} of step {step} differs by {size:.2g}", size)
    if len(before.records) != len(after.records):
        return Difference(
            f"{counted(len(after.records), 'record')} instead of {len(before.records)}", math.inf
        )
    return Difference("", largest)


def _apart(one: Any, other: Any) -> float:
    """The largest relative difference; infinite where the form differs."""
    if isinstance(one, list) and isinstance(other, list):
        if len(one) != len(other):
            return math.inf
        if len(one) == 4 and all(isinstance(part, int | float) for part in (*one, *other)):
            return _tensors(one, other)
        return max((_apart(a, b) for a, b in zip(one, other, strict=True)), default=0.0)
    if isinstance(one, int | float) and isinstance(other, int | float):
        return _numbers(one, other, max(1.0, abs(one)))
    return 0.0 if one == other else math.inf


def _tensors(one: list[float], other: list[float]) -> float:
    if one[0] != other[0]:
        return math.inf
    scale = max(one[1], 1e-6) if math.isfinite(one[1]) else 1.0  # below that, digits are those of rounding
    return max(_numbers(a, b, scale) for a, b in zip(one[1:], other[1:], strict=True))


def _numbers(one: float, other: float, scale: float) -> float:
    if one == other or (math.isnan(one) and math.isnan(other)):
        return 0.0
    size = abs(one - other) / scale
    return size if math.isfinite(size) else math.inf
