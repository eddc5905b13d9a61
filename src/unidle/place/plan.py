"""What a placement policy returns: who runs where, and why the others wait."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Protocol

from unidle.jobs import RankPlace, Reason
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
class Plan:
    """Decisions in the order in which they were made."""

    places: tuple[Place, ...] = ()
    waits: tuple[Wait, ...] = ()


class Policy(Protocol):
    """Turns what is known into what to do. Pure: no clock, no I/O, the view is only read."""

    def decide(self, view: View, now_ns: int) -> Plan: ...
