"""What a placement policy returns: who runs where, and why the others wait."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal, Protocol

from unidle.fleet import Cut
from unidle.jobs import JobSpec, RankPlace, Reason
from unidle.view.state import View


@dataclass(frozen=True, slots=True)
class Place:
    """Give these slices to this job's gang; one entry per rank, in rank order."""

    job: str
    places: tuple[RankPlace, ...]
    because: Reason


@dataclass(frozen=True, slots=True)
class Wait:
    """The job keeps waiting."""

    job: str
    because: Reason


@dataclass(frozen=True, slots=True)
class Stop:
    """Stop this job's attempt and let it wait again, to make room for ``for_job``.

    ``why`` is ``moved`` where devices are kept for it elsewhere. ``grace_ns``: it has no longer than that to stop.
    """

    job: str
    because: Reason
    for_job: str | None = None
    why: Literal["preempted", "moved"] = "preempted"
    grace_ns: int | None = None


@dataclass(frozen=True, slots=True)
class Keep:
    """Keep so many devices of a kind on these nodes for a job that waits, or is moved there, until ``expires_ns``."""

    job: str
    kind: str
    devices: dict[str, int]
    expires_ns: int
    because: Reason


@dataclass(frozen=True, slots=True)
class Recut:
    """Cut a device again, before anything is placed; parts in use stay as they are."""

    device: str
    cut: Cut
    because: Reason


@dataclass(frozen=True, slots=True)
class Plan:
    """Decisions in the order in which they were made.

    ``again_ns``: when time alone may change them; now, where a decision on what this one leaves may add to it.
    """

    places: tuple[Place, ...] = ()
    waits: tuple[Wait, ...] = ()
    keeps: tuple[Keep, ...] = ()
    stops: tuple[Stop, ...] = ()
    again_ns: int | None = None
    cuts: tuple[Recut, ...] = ()


class Policy(Protocol):
    """Turns what is known into what to do. Pure: no clock, no I/O, the view is only read."""

    def decide(self, view: View, now_ns: int) -> Plan: ...

    def why_not(self, view: View, spec: JobSpec) -> Reason | None:
        """Why a gang of this job cannot be placed now; None where it can."""

    def ever(self, view: View, spec: JobSpec) -> bool:
        """Whether the whole fleet, empty and healthy, holds a gang of this job."""
