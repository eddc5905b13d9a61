"""Synthetic gangs for the comparison of ranks: arrivals at collectives are worked out, spans are what a probe would see."""

from __future__ import annotations

import random
from collections.abc import Callable, Sequence
from dataclasses import dataclass

from unidle.scope.model import Frame, Process, Profile, Sample, Span

MS = 1_000_000
MAIN, WORKER = 0, 7  # added to the process id

# Own work of a rank in a step, in milliseconds, before each of its collectives.
Work = Callable[[int, int], Sequence[float]]


@dataclass(frozen=True, slots=True)
class Gang:
    """A gang in step. ``clock_ms``: how far each rank's clock is off; ``drift``: by how much it runs fast."""

    ranks: int
    work: Work
    steps: int = 60
    transfer_ms: float = 1.5
    behind: bool = False  # collectives run on a thread of their own, and the main thread waits at the end
    clock_ms: Callable[[int], float] = lambda rank: 0.0
    drift: Callable[[int], float] = lambda rank: 0.0
    name: str = "c10d::allreduce"

    def profile(self) -> Profile:
        spans: list[Span] = []
        free = [0.0] * self.ranks
        for step in range(self.steps):
            free = self._step(step, free, spans)
        processes = tuple(Process(_pid(r), "train.py", rank=r) for r in range(self.ranks))
        return Profile("T0", 0, max(s.end_ns for s in spans), spans=tuple(spans), processes=processes)

    def _step(self, step: int, free: list[float], spans: list[Span]) -> list[float]:
        plans = [list(self.work(rank, step)) for rank in range(self.ranks)]
        began, done = list(free), 0.0
        for k in range(len(plans[0])):
            arrive = [at + plan[k] for at, plan in zip(free, plans, strict=True)]
            done = max(max(arrive), done if self.behind else 0.0) + self.transfer_ms
            for rank, at in enumerate(arrive):
                thread = WORKER if self.behind else MAIN
                spans.append(self._span(rank, thread, self.name, "collective", at, done))
            free = arrive if self.behind else [done] * self.ranks
        if self.behind:
            for rank, at in enumerate(free):
                spans.append(
                    self._span(rank, MAIN, "c10d::Work::wait", "collective", at, max(done, at + 0.01))
                )
            free = [max(done, at + 0.01) for at in free]
        for rank, at in enumerate(began):
            spans.append(self._span(rank, MAIN, "Engine::execute", "backward", at, free[rank]))
        return free

    def _span(self, rank: int, thread: int, name: str, kind: str, start: float, end: float) -> Span:
        def clock(at: float) -> int:
            return int((self.clock_ms(rank) + at * (1 + self.drift(rank))) * MS)

        return Span(_pid(rank), _pid(rank) + thread, name, kind, clock(start), clock(end), 4096)


def _pid(rank: int) -> int:
    return 1000 + 10 * rank


def steady(seed: int, base_ms: float, jitter: float, collectives: int = 1) -> Work:
    """All ranks do the same, each step a little different: no rank is a straggler."""

    def work(rank: int, step: int) -> list[float]:
        chance = random.Random(f"{seed}/{rank}/{step}")
        return [base_ms / collectives * chance.lognormvariate(0, jitter) for _ in range(collectives)]

    return work


def with_late(
    work: Work, late: int, late_ms: float, *, chance: float = 1.0, at: int = 0, seed: int = 0
) -> Work:
    """One rank takes so many milliseconds longer before its ``at``-th collective, in so many of its steps."""

    def later(rank: int, step: int) -> list[float]:
        plan = list(work(rank, step))
        if rank == late and random.Random(f"late{seed}/{step}").random() < chance:
            plan[at % len(plan)] += late_ms / chance
        return plan

    return later


def pipeline(stages: int, microbatches: int, work_ms: Sequence[float], steps: int = 40) -> Profile:
    """Forward through all stages and back, with blocking receives and no overlap: waits are the bubble."""
    spans: list[Span] = []
    free = [0.0] * stages
    for _ in range(steps):
        began = list(free)
        for order in (range(stages), reversed(range(stages))):
            ready = [0.0] * microbatches
            for stage in order:
                for k in range(microbatches):
                    start = max(free[stage], ready[k])
                    if start > free[stage]:
                        spans.append(_received(stage, free[stage], start))
                    ready[k] = free[stage] = start + work_ms[stage]
        spans += [
            Span(_pid(s), _pid(s), "Engine::execute", "backward", int(began[s] * MS), int(free[s] * MS))
            for s in range(stages)
        ]
    processes = tuple(Process(_pid(s), "pipe.py", rank=s) for s in range(stages))
    return Profile("T0", 0, max(s.end_ns for s in spans), spans=tuple(spans), processes=processes)


def _received(stage: int, start: float, end: float) -> Span:
    return Span(
        _pid(stage), _pid(stage), "c10d::ProcessGroup::recv", "collective", int(start * MS), int(end * MS)
    )


FRAMES = (
    Frame("python", "main", "/home/me/train.py", 40),
    Frame("python", "forward", "/v/lib/python3.11/site-packages/torch/nn/modules/linear.py", 125),
    Frame("native", "at::_ops::linear::call", module="libtorch_cpu.so"),
    Frame("python", "augment", "/home/me/train.py", 12),
    Frame("native", "c10d::ProcessGroupGloo::AsyncWork::wait", module="libtorch_cpu.so"),
    Frame("wait", "futex"),
)
STACKS = ((0, 1, 2), (0, 3), (0, 4, 5))
COMPUTES, AUGMENTS, WAITS = range(3)


def sampled(ranks: Sequence[tuple[int, int, int]], seconds: float = 10.0) -> Profile:
    """Ranks known by samples only: of each so many percent computing, augmenting, waiting for others."""
    wall = int(seconds * 1e9)
    samples = []
    for rank, shares in enumerate(ranks):
        pid = _pid(rank)
        for stack, share in enumerate(shares):
            state = "off" if stack == WAITS else "on"
            ns = wall * share // 100
            samples.append(Sample(pid, pid, stack, state, int(ns / 1e9 * 99), ns))
    processes = tuple(Process(_pid(r), "train.py", rank=r) for r in range(len(ranks)))
    return Profile("T1", 0, wall, FRAMES, STACKS, tuple(samples), (), processes)
