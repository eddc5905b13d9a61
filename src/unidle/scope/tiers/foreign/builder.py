"""Collects what a reader finds and makes a profile of tier T3 of it."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable
from dataclasses import dataclass, field
from typing import Final

from unidle.scope.model import Call, Frame, Process, Profile, Quality, Sample, Span, State, Thread

SPANS: Final = 200_000  # that are kept, the longest
DEPTH: Final = 1024  # frames of a stack; deeper ones are cut at the leaf


@dataclass(slots=True)
class StackTree:
    """Frames and stacks by number, shared by all threads: a stack is its parent's number and one more frame."""

    frames: dict[Frame, int] = field(default_factory=dict)
    nodes: dict[tuple[int, int], int] = field(default_factory=dict)
    depth: list[int] = field(default_factory=list)

    def frame(self, frame: Frame) -> int:
        """The number of a frame."""
        return self.frames.setdefault(frame, len(self.frames))

    def push(self, parent: int, frame: int) -> int:
        """The stack ``parent`` (-1: empty) with one frame more; ``parent`` itself where that would be too deep."""
        key = (parent, frame)
        node = self.nodes.get(key)
        if node is None:
            depth = self.depth[parent] + 1 if parent >= 0 else 1
            if depth > DEPTH:
                return parent
            node = self.nodes[key] = len(self.depth)
            self.depth.append(depth)
        return node

    def of(self, frames: Iterable[Frame]) -> int:
        """The stack of these frames, root first."""
        node = -1
        for frame in frames:
            node = self.push(node, self.frame(frame))
        return node


@dataclass(slots=True)
class Tally:
    """How often, how long, how many bytes."""

    count: int = 0
    ns: int = 0
    n_bytes: int = 0

    def add(self, ns: int, n_bytes: int = 0, count: int = 1) -> None:
        """One more, or ``count`` more that took ``ns`` together."""
        self.count += count
        self.ns += ns
        self.n_bytes += n_bytes


@dataclass(slots=True)
class Builder:
    """What was found so far. Times are UTC in nanoseconds where ``clock`` is true, else from any moment."""

    form: str
    clock: bool = False
    stacks: StackTree = field(default_factory=StackTree)
    samples: dict[tuple[int, int, int, State], Tally] = field(default_factory=lambda: defaultdict(Tally))
    calls: dict[tuple[int, int, str, str], Tally] = field(default_factory=lambda: defaultdict(Tally))
    spans: list[Span] = field(default_factory=list)
    spans_dropped: int = 0
    names: dict[tuple[int, int], str] = field(default_factory=dict)
    commands: dict[int, str] = field(default_factory=dict)
    ranks: dict[int, int] = field(default_factory=dict)
    seen: dict[tuple[int, int], tuple[int, int]] = field(default_factory=dict)
    start_ns: int | None = None
    end_ns: int | None = None
    hz: int = 0
    misses: list[str] = field(default_factory=list)
    notes: list[str] = field(default_factory=list)

    def sample(self, pid: int, tid: int, stack: int, ns: int, *, state: State = "on", count: int = 1) -> None:
        """Add ``count`` samples of a thread with a stack; ``ns`` is their time together."""
        if stack >= 0 and ns >= 0:
            self.samples[pid, tid, stack, state].add(ns, count=count)

    def covers(self, start_ns: int, end_ns: int) -> None:
        """Extend the time that the file covers."""
        self.start_ns = start_ns if self.start_ns is None else min(self.start_ns, start_ns)
        self.end_ns = end_ns if self.end_ns is None else max(self.end_ns, end_ns)

    def lasted(self, pid: int, tid: int, start_ns: int, end_ns: int) -> None:
        """A thread was seen from and to."""
        first, last = self.seen.get((pid, tid), (start_ns, end_ns))
        self.seen[pid, tid] = (min(first, start_ns), max(last, end_ns))
        self.covers(start_ns, end_ns)

    def profile(self) -> Profile:
        """The profile. Without times of its own it lasts as long as its longest thread's samples."""
        spent: dict[tuple[int, int], dict[State, int]] = defaultdict(lambda: defaultdict(int))
        for (pid, tid, _, state), tally in self.samples.items():
            spent[pid, tid][state] += tally.ns
        start = self.start_ns or 0
        end = self.end_ns
        if end is None:
            end = start + max((sum(by.values()) for by in spent.values()), default=0)
        numbers, stacks = self._stacks()
        pids = {pid for pid, _ in spent} | {span.pid for span in self.spans} | {key[0] for key in self.calls}
        return Profile(
            tier="T3",
            start_ns=start,
            end_ns=max(start, end),
            frames=tuple(self.stacks.frames),
            stacks=stacks,
            samples=tuple(
                Sample(pid, tid, numbers[stack], state, tally.count, tally.ns)
                for (pid, tid, stack, state), tally in self.samples.items()
            ),
            threads=tuple(self._thread(*key, spent[key], start, end) for key in sorted(spent)),
            processes=tuple(
                Process(pid, self.commands.get(pid, ""), rank=self.ranks.get(pid)) for pid in sorted(pids)
            ),
            calls=tuple(
                Call(*key, tally.count, tally.ns, tally.n_bytes) for key, tally in sorted(self.calls.items())
            ),
            spans=tuple(sorted(self.spans, key=lambda span: (span.start_ns, span.pid, span.tid))),
            quality=Quality(
                samples=sum(tally.count for tally in self.samples.values()),
                spans_dropped=self.spans_dropped,
                notes=(f"imported from {self.form}, not measured by unidle", *self.notes),
            ),
            misses=tuple(self.misses),
            hz=self.hz,
            wall_start_ns=start if self.clock else 0,
        )

    def _thread(self, pid: int, tid: int, spent: dict[State, int], start: int, end: int) -> Thread:
        first, last = self.seen.get((pid, tid), (start, end))
        name = self.names.get((pid, tid), "")
        return Thread(pid, tid, name, spent["on"], spent["off"], spent["runq"], first, last)

    def _stacks(self) -> tuple[dict[int, int], tuple[tuple[int, ...], ...]]:
        """Only stacks that a sample names are written out: inner nodes of the tree would be as many again."""
        parents = list(self.stacks.nodes)
        numbers: dict[int, int] = {}
        rows: list[tuple[int, ...]] = []
        for _, _, stack, _ in self.samples:
            if stack in numbers:
                continue
            numbers[stack] = len(rows)
            row: list[int] = []
            node = stack
            while node >= 0:
                node, frame = parents[node]
                row.append(frame)
            rows.append(tuple(reversed(row)))
        return numbers, tuple(rows)
