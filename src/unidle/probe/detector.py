"""What detectors report: findings with their node and times, and whether they see anything at all."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Protocol

from unidle.guard.log.model import Finding


@dataclass(frozen=True, slots=True)
class Detection:
    """One finding. ``device`` is the id of the fleet's device, empty where the finding is the node's.

    Times are on the log's clock. ``stamp`` is equal for repeated reports of one event; empty if a repetition cannot be
    recognised. ``pids``: the process that the finding names, and its ancestors. ``unused``: it is a fault of a file system
    that nothing on its host uses, as far as that host can see.
    """

    node: str
    detector: str
    device: str
    finding: Finding
    onset_ns: int
    signal_ns: int
    source: str
    stamp: str = ""
    pids: tuple[int, ...] = ()
    text: str = ""
    unused: bool = False


@dataclass(frozen=True, slots=True)
class DetectorStatus:
    """Whether a detector sees a node; ``lost`` counts what it passed over so far."""

    node: str
    detector: str
    why_not: str
    lost: int = 0


class FaultDetector(Protocol):
    """Looks for signs of faults of one node. Made, used and closed by one thread."""

    def look(self, now_ns: int) -> list[Detection]:
        """What is new since the last look; ``now_ns`` on the log's clock."""
        ...

    def seeing(self) -> tuple[str, int]:
        """Why nothing, or not all, can be seen now (empty: all is), and how much was passed over so far."""
        ...

    def keep(self) -> str:
        """The state that the next instance needs to continue from here."""
        ...

    def news_fd(self) -> int:
        """A file descriptor that becomes readable when a look would find something; -1 without one."""
        ...

    def close(self) -> None:
        """Give back what is open."""
        ...
