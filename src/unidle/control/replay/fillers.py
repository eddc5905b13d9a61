"""A replay with fillers next to the one without: what they got, and that no other job started or ended at another time.

The fillers of a replay never end by themselves. They are withdrawn when the last of the other jobs has ended.
"""

from __future__ import annotations

from collections import defaultdict
from dataclasses import dataclass, replace
from typing import Any, Final

from unidle.control.replay.simulate import Arrival
from unidle.control.replay.workload import AGAIN, Scenario
from unidle.jobs import JobSpec
from unidle.ledger.query import summary
from unidle.ledger.sources import LedgerSource
from unidle.ledger.taxonomy import GROUPS
from unidle.view.state import View
from unidle.words import counted

_EVER_NS: Final = 1 << 61
_HOUR_NS: Final = 3_600_000_000_000


@dataclass(frozen=True, slots=True)
class FillerWish:
    """So many fillers, each on so many GPUs of one node."""

    count: int
    gpus: int = 1


@dataclass(frozen=True, slots=True)
class FillerOutcome:
    """What fillers got, in ns of GPUs: useful work, work that was thrown away, and all else (starts, restores).

    ``moved`` counts the other jobs of which an attempt began or ended at another time than without fillers.
    """

    fillers: int
    filled_ns: int
    discarded_ns: int
    other_ns: int
    free_before_ns: int
    starts: int
    yields: int
    jobs: int
    moved: int

    def as_json(self) -> dict[str, Any]:
        """As ``unidle replay --json`` prints it; GPU-hours."""
        return {
            "fillers": self.fillers,
            "filled_gpu_h": self.filled_ns / _HOUR_NS,
            "discarded_gpu_h": self.discarded_ns / _HOUR_NS,
            "other_gpu_h": self.other_ns / _HOUR_NS,
            "free_before_gpu_h": self.free_before_ns / _HOUR_NS,
            "starts": self.starts,
            "yields": self.yields,
            "jobs": self.jobs,
            "moved": self.moved,
        }

    def text(self) -> str:
        """What fillers got, and what they changed for other jobs, in two sentences."""
        part = f" ({100 * self.filled_ns / self.free_before_ns:.1f} % of it)" if self.free_before_ns else ""
        got = (
            f"{counted(self.fillers, 'filler')} did {self.filled_ns / _HOUR_NS:,.2f} GPU-h of useful work in "
            f"{self.free_before_ns / _HOUR_NS:,.2f} free GPU-h{part}, made room {counted(self.yields, 'time')}, and lost "
            f"{self.discarded_ns / _HOUR_NS:,.2f} GPU-h"
        )
        same = f"all starts and ends of the other {counted(self.jobs, 'job')} are the same to the nanosecond"
        if self.moved:
            same = f"{self.moved} of {counted(self.jobs, 'other job')} started or ended at another time"
        return f"{got}; {same}"


def with_fillers(scenario: Scenario, wish: FillerWish, until_ns: int) -> Scenario:
    """The same jobs, and fillers from the first submission until then."""
    parents = {queue.parent for queue in scenario.fleet.queues}
    queues = [queue.name for queue in scenario.fleet.queues if queue.name not in parents]
    spec = JobSpec(
        command=("replay",), name="filler", user="filler", queue=queues[0] if queues else "default", devices_per_rank=wish.gpus, device="gpu", restart=AGAIN,
        preemption="low", job_class="filler",
    )  # fmt: skip
    names = [f"filler-{k}" for k in range(wish.count)]
    added = tuple(Arrival(scenario.start_ns, name, spec, until_ns) for name in names)
    work = {**scenario.work_ns, **dict.fromkeys(names, _EVER_NS)}
    return replace(scenario, arrivals=(*added, *scenario.arrivals), work_ns=work)


def filler_outcome(alone: View, free_before_ns: int, filled: View, source: LedgerSource) -> FillerOutcome:
    """``alone``: the replay without fillers, with that much free time; ``source``: the ledger of the one with them."""
    fillers = [job for job in filled.jobs.values() if job.spec.is_filler]
    names, leaves = {job.id for job in fillers}, defaultdict[str, int](int)
    for group in summary(source, None, ("job", "leaf")).groups:
        job, leaf = group.labels
        if job in names:
            leaves[str(leaf)] += group.ns
    useful, lost = (sum(leaves.pop(leaf, 0) for leaf in group) for group in (("filled",), ("discarded",)))
    known = {leaf for leaves_of in GROUPS.values() for leaf in leaves_of}
    attempts = [attempt for job in fillers for attempt in job.attempts]
    return FillerOutcome(
        len(fillers), useful, lost, sum(ns for leaf, ns in leaves.items() if leaf in known), free_before_ns,
        len(attempts), sum(attempt.yielded_ns is not None for attempt in attempts),
        len(filled.jobs) - len(fillers), _moved(alone, filled, names),
    )  # fmt: skip


def _moved(alone: View, filled: View, fillers: set[str]) -> int:
    """Jobs of which an attempt has other times."""
    after = {job.id: job for job in filled.jobs.values() if job.id not in fillers}
    times = {
        job.id: [(attempt.placed_ns, attempt.ended_ns) for attempt in job.attempts]
        for job in alone.jobs.values()
    }
    return sum(
        times[name] != [(attempt.placed_ns, attempt.ended_ns) for attempt in job.attempts]
        for name, job in after.items()
    )
