"""When a device of a trace did nothing, and in which call its host's main thread was meanwhile."""

from __future__ import annotations

from array import array
from collections import Counter
from dataclasses import dataclass, field
from typing import Final

import numpy as np
import numpy.typing as npt

from unidle.scope.model import Frame
from unidle.scope.tiers.foreign.builder import StackTree

NOTHING: Final = "no recorded call"
_STEP: Final = "ProfilerStep"
_Times = npt.NDArray[np.int64]


@dataclass(slots=True)
class OwnTime:
    """The time of a thread that no call below spent, in order: from, until, and the stack's number."""

    start: array[int] = field(default_factory=lambda: array("q"))
    end: array[int] = field(default_factory=lambda: array("q"))
    node: array[int] = field(default_factory=lambda: array("i"))
    _at: int = 0

    def passes(self, until_ns: int, nodes: list[int]) -> None:
        """Time passes while these calls are open, the innermost last."""
        if nodes and until_ns > self._at:
            self.start.append(self._at)
            self.end.append(until_ns)
            self.node.append(nodes[-1])
        self._at = until_ns


def busy_times(starts: _Times, ends: _Times) -> list[tuple[int, int]]:
    """When at least one of these was at work, in order, without overlaps."""
    found: list[tuple[int, int]] = []
    order = np.argsort(starts, kind="stable")
    for start, end in zip(starts[order].tolist(), ends[order].tolist(), strict=True):
        if found and start <= found[-1][1]:
            if end > found[-1][1]:
                found[-1] = (found[-1][0], end)
        else:
            found.append((start, end))
    return found


def idle_times(busy: list[tuple[int, int]], window: tuple[int, int]) -> list[tuple[int, int]]:
    """The parts of a window in which it did nothing."""
    found, at = [], window[0]
    for start, end in busy:
        if start > at:
            found.append((at, min(start, window[1])))
        at = max(at, end)
    found.append((at, window[1]))
    return [(a, b) for a, b in found if b > a]


def waited_for(idle: list[tuple[int, int]], own: OwnTime, stacks: StackTree) -> Counter[str]:
    """Nanoseconds of idle time by the call in which the thread was: its innermost line of Python, if it has one."""
    starts, ends = np.frombuffer(own.start, np.int64), np.frombuffer(own.end, np.int64)
    by_node: Counter[int] = Counter()
    covered = 0
    for a, b in idle:
        first, last = int(np.searchsorted(ends, a, "right")), int(np.searchsorted(starts, b, "left"))
        for k in range(first, last):
            ns = min(own.end[k], b) - max(own.start[k], a)
            by_node[own.node[k]] += ns
            covered += ns
    found: Counter[str] = Counter()
    parents, frames = list(stacks.nodes), list(stacks.frames)
    for node, ns in by_node.items():
        found[_name(node, parents, frames)] += ns
    found[NOTHING] += sum(b - a for a, b in idle) - covered
    return found


def _name(node: int, parents: list[tuple[int, int]], frames: list[Frame]) -> str:
    best = ""
    while node >= 0:
        node, number = parents[node]
        frame = frames[number]
        if frame.kind == "python" and frame.file:
            return f"{frame.function} ({frame.file.rpartition('/')[2]}:{frame.line})"
        if frame.function != _STEP:
            best = best or frame.function
    return best or NOTHING
