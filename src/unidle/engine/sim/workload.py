"""What simulated gangs do and which nodes fail: given, or drawn from a seed. Pure."""

from __future__ import annotations

import heapq
import random
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Final, NamedTuple, TypeAlias

from unidle.engine.protocol import StartGang

S = 1_000_000_000
_S: Final = 1_000_000_000


@dataclass(frozen=True, slots=True)
class SimJob:
    """A job's true behaviour, which the policies do not know. Durations are those of a gang alone.

    ``fails`` maps an attempt (from 1) to ``(rank, after_ns, code)``. Steps are reported by rank 0
    only where ``step_ns`` is not zero: every ``report_every`` steps (0: only those that are saved
    or the last before an end). Every ``checkpoint_every`` steps one is saved, for which the gang
    makes no progress for ``checkpoint_ns``; an attempt that resumes from one reads it for ``restore_ns``.
    Asked to stop, the ranks leave after ``stop_ns`` (killed where the grace is shorter), with a
    checkpoint of the last step where ``saves_on_stop``. ``comm_ppm`` is the part of each step that
    is communication between nodes (see ``unidle.engine.sim.contention``). When ``quiet_at_ns`` of the work
    is done the gang does nothing for ``quiet_ns``; its utilisation then is low, or, where not
    ``measurable``, not known.

    Every ``copy_every`` steps (0: never) the state is copied to peers' memory, for which the gang
    pauses for ``copy_ns``; an attempt that resumes from there reads it for ``copy_restore_ns``. With ``steady``
    the saves and copies of an attempt are reported together (see ``unidle.engine.sim.steady``): then
    ``checkpoint_every`` is a multiple of ``copy_every``, and ``comm_ppm`` and ``quiet_ns`` are 0.
    """

    work_ns: int
    startup_ns: int = 0
    step_ns: int = 0
    checkpoint_every: int = 0
    fails: Mapping[int, tuple[int, int, int]] | None = None
    checkpoint_ns: int = 0
    restore_ns: int = 0
    stop_ns: int = 0
    saves_on_stop: bool = False
    report_every: int = 1
    comm_ppm: int = 0
    quiet_at_ns: int = 0
    quiet_ns: int = 0
    measurable: bool = True
    steady: bool = False
    copy_every: int = 0
    copy_ns: int = 0
    copy_restore_ns: int = 0


Workload = Callable[[StartGang], SimJob]


def seeded(
    seed: int, *, mean_work_s: float, startup_s: float = 5.0, step_s: float = 0.0, checkpoint_every: int = 0,
    failures_per_rank_hour: float = 0.0,
) -> Workload:  # fmt: skip
    """Exponential durations and failures, the same for the same seed, job and attempt."""

    def workload(command: StartGang) -> SimJob:
        of_job = random.Random(f"{seed}/{command.job}")
        work_s = of_job.expovariate(1 / mean_work_s)
        fails = failures(command, seed, failures_per_rank_hour, startup_s + work_s)
        return SimJob(int(work_s * S), int(startup_s * S), int(step_s * S), checkpoint_every, fails)

    return workload


def failures(
    command: StartGang, seed: int, per_rank_hour: float, within_s: float
) -> dict[int, tuple[int, int, int]]:
    """When a rank of this attempt is killed by a fault of its own, if within ``within_s`` seconds."""
    rate = per_rank_hour * len(command.places) / 3600
    if rate <= 0:
        return {}
    of_attempt = random.Random(f"{seed}/{command.job}/{command.attempt}")
    after_s = of_attempt.expovariate(rate)
    if after_s >= within_s:
        return {}
    return {command.attempt: (of_attempt.randrange(len(command.places)), int(after_s * S), -9)}


class NodeFault(NamedTuple):
    """``node`` is down from ``at_ns`` until ``repaired_ns``; ``component`` is the part that failed, if known."""

    at_ns: int
    node: str
    repaired_ns: int
    component: str = ""


Fault: TypeAlias = tuple[int, str, int] | NodeFault


def in_order(faults: Iterable[Fault]) -> Iterator[NodeFault]:
    """Given faults by time."""
    return iter(sorted(NodeFault(*fault) for fault in faults))


def seeded_faults(
    nodes: Sequence[str], seed: int, *, mtbf_s: float, mttr_s: float, start_ns: int = 1
) -> Iterator[NodeFault]:
    """Faults without end, by time: each node fails and is repaired by itself.

    Times between the end of a repair and the next fault are exponential with mean ``mtbf_s``
    (seconds, per node), those of repairs with mean ``mttr_s``. The faults of a node depend on the
    seed and its name alone, so that another node more or less changes none of them.
    """
    chances = {node: random.Random(f"{seed}/{node}") for node in nodes}
    heap = [(start_ns + _drawn_ns(chances[node], mtbf_s), node) for node in nodes]
    heapq.heapify(heap)
    while heap:
        at_ns, node = heap[0]
        repaired_ns = at_ns + _drawn_ns(chances[node], mttr_s)
        yield NodeFault(at_ns, node, repaired_ns)
        heapq.heapreplace(heap, (repaired_ns + _drawn_ns(chances[node], mtbf_s), node))


def _drawn_ns(chance: random.Random, mean_s: float) -> int:
    return max(int(chance.expovariate(1 / mean_s) * _S), 1)
