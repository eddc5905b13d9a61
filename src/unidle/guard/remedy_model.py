"""What a decision about a sick node or device is made on, and what it may be. Decided in ``unidle.guard.remedy``."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Final, Literal

from unidle.events.guard import CareState
from unidle.jobs import Reason
from unidle.view.node_health import Sign, Strike, Window

CHECK: Final = "check"
DRAINED: Final = "drain"
MAINTENANCE: Final = "maintenance"
SLACK_NS: Final = 30_000_000_000  # after a time limit: what was to end it has had its time

Answer = Literal["ok", "failed", "silent", "away"]


@dataclass(frozen=True, slots=True)
class TargetUse:
    """An attempt that uses the target. ``saves``: it writes checkpoints; ``saved_ns``: when it last did."""

    job: str
    attempt: int
    stopping: bool
    saves: bool
    saved_ns: int | None = None


@dataclass(frozen=True, slots=True)
class RemedyResult:
    """What came of the remedy or check that runs for the target: ``silent`` where that cannot be determined, ``away``
    where the machine did not answer at all."""

    answer: Answer
    text: str


@dataclass(frozen=True, slots=True)
class RemedyInputs:
    """What is known of a target besides its own record. Counts are of nodes; the target's own is in none of them.

    ``falls``: nodes with a fault within the breaker's time, this one too.
    """

    nodes: int = 1
    tier_nodes: int = 1
    out: int = 0
    tier_out: int = 0
    falls: int = 0
    begun: tuple[int, ...] = ()
    offences: tuple[int, ...] = ()
    pending: tuple[Sign, ...] = ()
    strikes: tuple[Strike, ...] = ()
    jobs: tuple[TargetUse, ...] = ()
    result: RemedyResult | None = None
    of_node: str = ""  # the node that a device is of, where the target is a device
    node_busy: bool = False  # the device's node is not in use
    part_busy: bool = False  # a device of the node is being repaired or checked
    window: Window | None = None


@dataclass(frozen=True, slots=True)
class Set:
    """The target is in this state from now on (``unidle.events.guard.RemedySet``)."""

    target: str
    state: CareState
    because: Reason
    step: str = ""
    try_: int = 0
    deadline_ns: int = 0


@dataclass(frozen=True, slots=True)
class StopJob:
    """Stop this attempt; it is placed again elsewhere. ``hard``: at once, without a grace."""

    job: str
    attempt: int
    hard: bool
    because: Reason


Move = Set | StopJob
