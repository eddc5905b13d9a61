"""The packing experiment over several policies and seeds, in parallel processes."""

from __future__ import annotations

import multiprocessing
from collections.abc import Iterator, Sequence
from concurrent.futures import ProcessPoolExecutor
from dataclasses import dataclass
from typing import NamedTuple

from unidle.control.replay.packing_experiment import PackOutcome, PodArrival, Prepared, prepare, replay
from unidle.jobs.packing import NodeSize, PodDemand


class PackingRun(NamedTuple):
    """One seed of one policy. ``arrivals`` is empty unless they were asked for."""

    policy: str
    outcome: PackOutcome
    arrivals: tuple[PodArrival, ...]


@dataclass(frozen=True, slots=True)
class Experiment:
    """A trace on a fleet, with the policies made ready for it."""

    policies: tuple[Prepared, ...]
    nodes: tuple[NodeSize, ...]
    demands: tuple[PodDemand, ...]
    requested: float

    @classmethod
    def of(
        cls, names: Sequence[str], nodes: Sequence[NodeSize], demands: Sequence[PodDemand], requested: float
    ) -> Experiment:
        """Errors: :class:`unidle.errors.BadInput` for an unknown policy."""
        ready = tuple(prepare(name, nodes, demands) for name in names)
        return cls(ready, tuple(nodes), tuple(demands), requested)

    def run(self, policy: int, seed: int, traced: bool) -> PackingRun:
        """One seed of ``policies[policy]``."""
        arrivals: list[PodArrival] = []
        prepared = self.policies[policy]
        outcome = replay(
            prepared, self.nodes, self.demands, self.requested, seed, arrivals.append if traced else None
        )
        return PackingRun(prepared.name, outcome, tuple(arrivals))

    def runs(self, seeds: Sequence[int], processes: int, *, traced: bool = False) -> Iterator[PackingRun]:
        """All seeds of all policies in order: policies as given, then seeds as given."""
        cases = [(k, seed, traced) for k in range(len(self.policies)) for seed in seeds]
        if min(processes, len(cases)) == 1:
            for case in cases:
                yield self.run(*case)
            return
        # A fresh interpreter each: forking one with NumPy's threads may hang.
        with ProcessPoolExecutor(
            min(processes, len(cases)), multiprocessing.get_context("spawn"), _settle_in, (self,)
        ) as pool:
            yield from pool.map(_run, cases)


_here: list[Experiment] = []  # a worker's own copy, sent once instead of with every case


def _settle_in(experiment: Experiment) -> None:
    _here[:] = [experiment]


def _run(case: tuple[int, int, bool]) -> PackingRun:
    return _here[0].run(*case)
