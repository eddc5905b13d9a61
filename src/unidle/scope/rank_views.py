"""From a profile of several rank processes to what :func:`unidle.scope.ranks.judge` compares. Pure."""

from __future__ import annotations

import re
from bisect import bisect_right
from collections import defaultdict
from collections.abc import Hashable, Iterable, Mapping, Sequence
from dataclasses import replace
from itertools import pairwise
from math import sqrt
from statistics import median, stdev
from typing import Final

from unidle.scope.model import Frame, Profile, Sample, Span, Thread
from unidle.scope.ranks import Comparison, Measure, RankShares, judge

BATCHES: Final = 16  # means of so many parts of the time tell the error of the whole
LEAST_BATCHES: Final = 4
EXPOSED: Final = 0.25  # of all time in collectives is on the training thread: then that is what counts
# Stacks wait so much of the time more than spans tell, and twice as long: not all waits are calls.
UNSEEN: Final = 0.05

_ONE_TO_ONE: Final = re.compile(
    r"(?:^|[^a-z])i?(?:send|recv)(?:[^a-z]|anysource|work|$)|nccl(?:send|recv)|p2p|point_?to_?point",
    re.IGNORECASE,
)
_WAITS: Final = re.compile(r"wait|barrier|synchronize|finalize", re.IGNORECASE)
_COLLECTIVE: Final = re.compile(
    r"\b(c10d::(?!TCPStore)|gloo::|ProcessGroup(Gloo|NCCL|MPI|Wrapper)|nccl[A-Z]|MPI_(All|Barrier|Bcast|Wait))"
)
_COLLECTIVE_FILE: Final = re.compile(
    r"torch/distributed/(distributed_c10d|nn/functional|_functional_collectives)\.py$"
)
_NOT_OURS: Final = re.compile(r"/(site|dist)-packages/|/lib(64)?/python3[^/]*/|^<|^$")


def compare(
    profile: Profile,
    *,
    budgets: Mapping[int, Mapping[str, float]] | None = None,
    steps: Mapping[int, Sequence[int]] | None = None,
    threads: Mapping[int, int] | None = None,
    peers: Mapping[int, Hashable] | None = None,
) -> Comparison:
    """Find stragglers among the rank processes of a profile. See :func:`views` and :func:`ranks.judge`."""
    return judge(views(profile, budgets=budgets, steps=steps, threads=threads), peers=peers)


def views(
    profile: Profile,
    *,
    budgets: Mapping[int, Mapping[str, float]] | None = None,
    steps: Mapping[int, Sequence[int]] | None = None,
    threads: Mapping[int, int] | None = None,
) -> list[RankShares]:
    """One view per rank process, all by the same measure.

    ``budgets``: percent of the training thread's time by category, by process. ``steps``: when steps began, in
    nanoseconds, by process; without it each backward pass is a step. ``threads``: the training thread by process;
    without it the one that runs the backward passes, else the main thread. Processes are ranks when they say so; where
    none does, each process with a collective is one, numbered in order of process ids. Views of profiles of several
    nodes may be put together: nothing in them depends on a clock.
    """
    known = _rank_processes(profile)
    own = _by_process(profile)
    made = [
        _Rank(own[pid], rank, pid, (budgets or {}).get(pid), (steps or {}).get(pid), (threads or {}).get(pid))
        for pid, rank in known.items()
    ]
    measure = _measure(made)
    exposed = all(m.is_exposed for m in made)
    return [m.view(measure, exposed) for m in made]


def is_collective(frames: Iterable[Frame]) -> bool:
    """Whether a stack stands in communication with other ranks."""
    return any(
        _COLLECTIVE.search(f.function) is not None
        if f.kind in ("native", "device")
        else f.kind == "python" and _COLLECTIVE_FILE.search(f.file) is not None
        for f in frames
    )


def own_line(frames: Sequence[Frame]) -> str:
    """The deepest line of the user's own Python code in a stack (root first): ``train.py:31 load``; else of any."""
    python = [f for f in frames if f.kind == "python"]
    own = [f for f in python if not _NOT_OURS.search(f.file)] or python
    if not own:
        return ""
    last = own[-1]
    return f"{last.file.rpartition('/')[2]}:{last.line} {last.function}"


class _Rank:
    """One rank process, and its figures by every measure that its part of the profile allows."""

    def __init__(
        self,
        profile: Profile,
        rank: int,
        pid: int,
        budget: Mapping[str, float] | None,
        steps: Sequence[int] | None,
        thread: int | None,
    ) -> None:
        self.profile, self.rank, self.pid = profile, rank, pid
        self.budget = dict(budget or {})
        spans = profile.spans
        backward = sorted((s.start_ns, s.tid) for s in spans if s.kind == "backward")
        tids = [tid for _, tid in backward]
        self.thread = thread or (max(set(tids), key=tids.count) if tids else pid)
        self.start_ns, self.end_ns = _window(profile, pid, self.thread)
        marks = sorted(steps) if steps is not None else [at for at, _ in backward]
        self.marks = [at for at in marks if self.start_ns <= at <= self.end_ns]
        self.collectives = [s for s in spans if s.kind == "collective" and s.end_ns > s.start_ns]
        own = [s for s in self.collectives if s.tid == self.thread]
        self.exposed = union((s.start_ns, s.end_ns) for s in own)
        self.everywhere = union((s.start_ns, s.end_ns) for s in self.collectives)
        everywhere = length(self.everywhere)
        self.is_exposed = any(_WAITS.search(s.name) for s in own) or (
            length(self.exposed) >= EXPOSED * everywhere > 0
        )
        self.lines, self.sampled_wait, self.count = self._from_samples()

    @property
    def wall_ns(self) -> int:
        return max(self.end_ns - self.start_ns, 1)

    @property
    def span_wait(self) -> float:
        return length(self.everywhere) / self.wall_ns

    def view(self, measure: Measure, exposed: bool) -> RankShares:
        wait, error, freedom = self._wait(measure, exposed)
        return RankShares(
            rank=self.rank,
            pid=self.pid,
            wall_ns=self.wall_ns,
            wait=wait,
            wait_error=error,
            wait_freedom=freedom,
            measure=measure,
            one_to_one=self._one_to_one(exposed),
            steps_ns=tuple(b - a for a, b in pairwise(self.marks)),
            budget=self.budget,
            lines=self.lines,
        )

    def _wait(self, measure: Measure, exposed: bool) -> tuple[float, float, int]:
        """Share of waiting, its standard error, degrees of freedom."""
        if measure == "spans":
            return self._by_spans(self.exposed if exposed else self.everywhere)
        if measure == "none":
            return 0.0, 0.0, 1
        share = self.budget.get("collective", 0.0) / 100 if measure == "budget" else self.sampled_wait
        # Of a share near 0 or 1 chance shows too little of its error: one sample more either way.
        count = self.count + 2
        middle = (share * self.count + 1) / count
        return share, sqrt(middle * (1 - middle) / count), max(self.count - 1, 1)

    def _by_spans(self, waits: Sequence[tuple[int, int]]) -> tuple[float, float, int]:
        """From the first to the last whole step, else the whole window, with the error of batches of steps."""
        edges = self.marks if len(self.marks) > LEAST_BATCHES else _even(self.start_ns, self.end_ns)
        parts = _batches(edges)
        inside = Overlap(waits)
        shares = [inside.between(a, b) / (b - a) for a, b in pairwise(parts) if b > a]
        if not shares:
            return length(waits) / self.wall_ns, 0.0, 1
        whole = inside.between(parts[0], parts[-1]) / (parts[-1] - parts[0])
        error = stdev(shares) / sqrt(len(shares)) if len(shares) > 1 else 0.0
        return whole, error, max(len(shares) - 1, 1)

    def _one_to_one(self, exposed: bool) -> float:
        """Part of the waiting that is for one peer: of its time, or of the calls where all waits have one name."""
        used = [s for s in self.collectives if not exposed or s.tid == self.thread]
        alone = length(union((s.start_ns, s.end_ns) for s in used if _ONE_TO_ONE.search(s.name)))
        whole = length(union((s.start_ns, s.end_ns) for s in used))
        begun = [s.name for s in self.collectives if not _WAITS.search(s.name)]
        calls = sum(_ONE_TO_ONE.search(name) is not None for name in begun) / len(begun) if begun else 0.0
        return max(alone / whole if whole else 0.0, calls)

    def _from_samples(self) -> tuple[dict[str, float], float, int]:
        """Shares of time by line outside collectives, the share inside, and the number of samples."""
        profile, waiting, count = self.profile, 0, 0
        lines: dict[str, int] = {}
        for s in profile.samples:
            if s.tid != self.thread:
                continue
            count += s.count
            frames = profile.stack(s.stack)
            if is_collective(frames):
                waiting += s.ns
            elif line := own_line(frames):
                lines[line] = lines.get(line, 0) + s.ns
        return {line: ns / self.wall_ns for line, ns in lines.items()}, waiting / self.wall_ns, count


def _measure(made: Sequence[_Rank]) -> Measure:
    """The best one that all ranks have. Calls that never end have no spans, nor do waits that the compiler put inside
    other functions: then stacks know more."""
    by_stacks = [m.budget["collective"] / 100 if "collective" in m.budget else m.sampled_wait for m in made]
    if made and all(m.collectives for m in made):
        seen = median(m.span_wait for m in made)
        if median(by_stacks) < max(seen + UNSEEN, 2 * seen):
            return "spans"
    if made and all("collective" in m.budget and m.count for m in made):
        return "budget"
    if made and all(m.count for m in made) and any(m.sampled_wait for m in made):
        return "samples"
    return "spans" if made and any(m.collectives for m in made) else "none"


def _rank_processes(profile: Profile) -> dict[int, int]:
    told = {p.pid: p.rank for p in profile.processes if p.rank is not None}
    if told:
        return told
    talking = {s.pid for s in profile.spans if s.kind == "collective"}
    if not talking:
        stands = [is_collective(profile.stack(k)) for k in range(len(profile.stacks))]
        talking = {s.pid for s in profile.samples if stands[s.stack]}
    return {pid: rank for rank, pid in enumerate(sorted(talking))}


def _by_process(profile: Profile) -> Mapping[int, Profile]:
    """The part of each process: its spans, samples and threads."""
    spans: dict[int, list[Span]] = defaultdict(list)
    samples: dict[int, list[Sample]] = defaultdict(list)
    threads: dict[int, list[Thread]] = defaultdict(list)
    for s in profile.spans:
        spans[s.pid].append(s)
    for one in profile.samples:
        samples[one.pid].append(one)
    for thread in profile.threads:
        threads[thread.pid].append(thread)
    return {
        pid: replace(
            profile, spans=tuple(spans[pid]), samples=tuple(samples[pid]), threads=tuple(threads[pid])
        )
        for pid in {*spans, *samples, *threads, *(p.pid for p in profile.processes)}
    }


def _window(profile: Profile, pid: int, tid: int) -> tuple[int, int]:
    """In the rank's own clock: its training thread's; else, of a rank of spans alone, from the first to the last one."""
    for thread in profile.threads:
        if (thread.pid, thread.tid) == (pid, tid) and thread.last_ns > thread.first_ns:
            return thread.first_ns, thread.last_ns
    if profile.spans and not profile.samples:
        return min(s.start_ns for s in profile.spans), max(s.end_ns for s in profile.spans)
    return profile.start_ns, profile.end_ns


def _even(start: int, end: int) -> list[int]:
    return [start + (end - start) * k // BATCHES for k in range(BATCHES + 1)]


def _batches(edges: Sequence[int]) -> list[int]:
    """At most ``BATCHES`` parts of whole steps."""
    count = len(edges) - 1
    parts = min(count, BATCHES)
    return [edges[count * k // parts] for k in range(parts + 1)]


def union(pieces: Iterable[tuple[int, int]]) -> list[tuple[int, int]]:
    """The same time as pieces that do not overlap, in order."""
    joined: list[tuple[int, int]] = []
    for start, end in sorted(pieces):
        if joined and start <= joined[-1][1]:
            joined[-1] = (joined[-1][0], max(joined[-1][1], end))
        else:
            joined.append((start, end))
    return joined


def length(pieces: Sequence[tuple[int, int]]) -> int:
    """Of pieces that do not overlap."""
    return sum(end - start for start, end in pieces)


class Overlap:
    """How much of an interval is covered by pieces that do not overlap, in order."""

    def __init__(self, pieces: Sequence[tuple[int, int]]) -> None:
        self._starts = [start for start, _ in pieces]
        self._pieces = pieces
        self._before = [0]
        for start, end in pieces:
            self._before.append(self._before[-1] + end - start)

    def between(self, start: int, end: int) -> int:
        return self._until(end) - self._until(start)

    def _until(self, at: int) -> int:
        k = bisect_right(self._starts, at)
        if k == 0:
            return 0
        begin, end = self._pieces[k - 1]
        return self._before[k - 1] + min(at, end) - begin
