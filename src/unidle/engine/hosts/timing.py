"""The times of the engine of hosts: when a box is silent, when its ranks are taken for dead, how long a start waits."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Final

S: Final = 1_000_000_000
DRIFT_PPM: Final = 1_000  # that the clock of a box may be slower than the controller's
MARGIN_NS: Final = 500_000_000  # for a busy host to notice that a lease is over, and to end its ranks


@dataclass(frozen=True, slots=True)
class HostsTiming:
    """``deadline_ns`` is the lease that the hub grants to boxes, so both must be given the same."""

    deadline_ns: int = 15 * S
    silent_ns: int = 8 * S  # without a pong, after which silence is reported
    start_within_ns: int = 60 * S  # the boxes of an attempt have to be there, and to be prepared
    retry_ns: int = 2 * S  # between two requests to an agent for the same box

    @property
    def fenced_after_ns(self) -> int:
        """How long after the newest acknowledged sign of a box its ranks are dead, whatever the network does.

        The lease ends ``deadline_ns`` after the box *sent* that sign, by its own clock. It was received no earlier than
        it was sent, so counting from then on the controller's clock is late enough, once drift is added.
        """
        return self.deadline_ns + self.deadline_ns * DRIFT_PPM // 1_000_000 + MARGIN_NS
