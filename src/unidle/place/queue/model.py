"""What queue policies see of jobs and nodes.

Nodes are indexes in topological order, so that a network domain is a range of them. Devices are
whole numbers of what is counted out on a node. What a queue is charged are amounts in thousandths
(of a device, of a core), one per resource of its tree.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field, replace
from typing import Final, TypeAlias

import numpy as np
import numpy.typing as npt

from unidle.jobs import Preemption

Ints: TypeAlias = npt.NDArray[np.int64]
Amounts: TypeAlias = tuple[int, ...]
Asks: TypeAlias = tuple[int, int]
"""What a rank needs of its node besides devices: CPU in thousandths of cores, memory in bytes."""
NOTHING: Final[Asks] = (0, 0)
Fits: TypeAlias = Callable[[Ints], Ints | None]
"""``fits(room)``: given how many ranks each node holds, how many to put there, or None. All or none;
more room must never turn a gang that fits into one that does not."""

NS_PER_US: Final = 1_000


@dataclass(frozen=True, slots=True)
class Running:
    """A job that holds devices. ``devices`` maps nodes to devices held there.

    ``last_saved_ns`` is its last durable checkpoint (None: none in this attempt); ``restart_ns`` is
    what it takes to be at work again after a stop. ``charged`` is what its queue is charged.
    """

    job: str
    queue: str
    level: Preemption
    started_ns: int
    devices: Mapping[int, int]
    charged: Amounts
    last_saved_ns: int | None = None
    min_runtime_ns: int = 0
    restart_ns: int = 0
    estimate_ns: int | None = None
    checkpoints: bool = False  # it saves its state and can go on elsewhere
    save_ns: int | None = None  # what it takes to save on request before a stop; None: it cannot
    ranks: int = 1
    each: int = 1  # devices per rank
    settled_ns: int = 0  # it is not moved before, as it was moved already
    asks: Asks = NOTHING
    parts: Mapping[str, int] = field(default_factory=dict)  # devices that it has parts of, each with its node
    parts_milli: int = 0  # what these parts count, in thousandths of devices

    @property
    def size(self) -> int:
        """Whole devices held."""
        return sum(self.devices.values())

    @property
    def milli(self) -> int:
        """What it holds, in thousandths of devices."""
        return 1_000 * self.size + self.parts_milli

    @property
    def firm(self) -> bool:
        """Whether it is never preempted."""
        return self.level != "low"

    def lost_us(self, now_ns: int) -> int:
        """Device-microseconds lost by stopping it now: work since the last checkpoint, and the restart.

        Where it can save on request and that is shorter, the saving counts instead of the work.
        """
        undone_ns = max(now_ns - max(self.started_ns, self.last_saved_ns or 0), 0)
        if self.save_ns is not None:
            undone_ns = min(undone_ns, self.save_ns)
        return (undone_ns + self.restart_ns) // NS_PER_US * self.milli // 1_000


@dataclass(frozen=True, slots=True)
class Demand:
    """A job that waits: ``ranks`` of ``each`` devices on one node, all or none.

    ``alike`` identifies what else its place depends on (constraints): if one job does not fit, no other with
    the same shape and the same ``alike`` fits. A job that requests parts of devices has ``ranks`` 0. It may
    join others, and its charge depends on its place: at least ``charged``, at most ``most``.
    """

    job: str
    queue: str
    level: Preemption
    ranks: int
    each: int
    charged: Amounts
    submitted_ns: int = 0
    estimate_ns: int | None = None
    priority: int = 0
    min_runtime_ns: int = 0
    restart_ns: int = 0
    checkpoints: bool = False
    alike: str = ""
    asks: Asks = NOTHING
    most: Amounts = ()

    @property
    def size(self) -> int:
        """Devices requested."""
        return self.ranks * self.each

    @property
    def firm(self) -> bool:
        """Whether it is never preempted once it runs."""
        return self.level != "low"


def started(demand: Demand, devices: Mapping[int, int], now_ns: int) -> Running:
    """The demand as a job that runs from now on, with nothing saved yet."""
    return Running(
        demand.job, demand.queue, demand.level, now_ns, devices, demand.charged,
        estimate_ns=demand.estimate_ns, ranks=demand.ranks, each=demand.each,
        min_runtime_ns=demand.min_runtime_ns, restart_ns=demand.restart_ns, checkpoints=demand.checkpoints,
        asks=demand.asks,
    )  # fmt: skip


def alike(a: Demand, b: Demand) -> bool:
    """Whether two demands differ in nothing but their names, times and estimates."""
    return a == replace(b, job=a.job, submitted_ns=a.submitted_ns, estimate_ns=a.estimate_ns)


@dataclass(frozen=True, slots=True)
class Hold:
    """Devices kept for a waiting job until ``expires_ns``, charged to its queue as if it ran."""

    job: str
    queue: str
    charged: Amounts
    firm: bool
    devices: Mapping[int, int] = field(default_factory=dict)
    expires_ns: int = 0
    each: int = 1  # devices per rank
    asks: Asks = NOTHING

    @classmethod
    def of(cls, job: Demand | Running, devices: Mapping[int, int], expires_ns: int) -> Hold:
        """These devices, kept for this job."""
        return cls(job.job, job.queue, job.charged, job.firm, devices, expires_ns, job.each, job.asks)
