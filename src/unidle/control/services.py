"""What a controller works with beyond its store and engine, and how often it looks."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Final

from unidle.control.inbox import INBOX_EVERY_NS
from unidle.control.nodes.maintenance import NodeMaintenance

if TYPE_CHECKING:
    from unidle.control.forecast import Forecaster
    from unidle.control.gangs.profiler import ProfileSource
    from unidle.control.gangs.stacks import GangStacks
    from unidle.control.nodes.detectors import Detectors
    from unidle.control.nodes.late_detectors import LateDetectors
    from unidle.control.retention.policy import Retention
    from unidle.notices.dispatcher import NoticeDispatcher

SIGHTING_EVERY_NS: Final = 10_000_000_000


@dataclass(frozen=True, slots=True)
class ControllerTiming:
    """``inbox_every_ns``: between two looks into the inbox; None: it is never read. ``sighting_every_ns``: between two
    entries in the log by which a reader sees that the controller lives. Without ``watch_idle`` no holder is checked:
    for simulated gangs that are never idle.
    """

    inbox_every_ns: int | None = INBOX_EVERY_NS
    sighting_every_ns: int = SIGHTING_EVERY_NS
    watch_idle: bool = True


USUAL: Final = ControllerTiming()


@dataclass(frozen=True, slots=True)
class ControllerServices:
    """Parts that a controller may have. Without one of them, its step of a turn does nothing."""

    nodes: NodeMaintenance = field(default_factory=NodeMaintenance)
    forecaster: Forecaster | None = None
    notices: NoticeDispatcher | None = None
    detectors: Detectors | LateDetectors | None = None
    profiler: ProfileSource | None = None
    stacks: GangStacks | None = None
    retention: Retention | None = None
