"""What clients record of their operations, and what the run knows of faults: the input of the checker, next to the log.

Times are CLOCK_BOOTTIME in ns: steps of the wall clock do not reach it, and each controller's start in the log has
the offset between the two.
"""

from __future__ import annotations

import time
from collections.abc import Iterable
from dataclasses import dataclass, field
from typing import Literal

from unidle.events import types as ev

OpKind = Literal["submit", "cancel", "mark"]
Outcome = Literal["acknowledged", "refused", "unknown"]
"""``unknown``: the client got an error that leaves it open, or was killed before it had an answer."""


def boottime_ns() -> int:
    return time.clock_gettime_ns(time.CLOCK_BOOTTIME)


@dataclass(frozen=True, slots=True)
class Op:
    """One operation of one client.

    ``name`` and ``priority`` are of a submit, one name for each request; ``job`` is the id that it returned.
    ``state`` is what a cancel that waited returned. A mark is ``mark`` (its kind) with ``n``: the step, the step of
    the checkpoint, or the exit code.
    """

    client: str
    kind: OpKind
    start_ns: int
    end_ns: int
    outcome: Outcome
    job: str = ""
    name: str = ""
    priority: int = 0
    state: str = ""
    attempt: int = 0
    rank: int = 0
    mark: str = ""
    n: int | None = None


@dataclass(frozen=True, slots=True)
class Loss:
    """A fault that legitimately destroys what was acknowledged until ``until_ns``.

    ``store``: of the log and the inbox; it has to be reported with exit code 4 (``said``). Otherwise of the marks of
    one rank whose run directory was damaged; the log then has to have that rank as lost.
    """

    what: Literal["store", "run_directory"]
    until_ns: int
    said: bool = False
    job: str = ""
    attempt: int = 0
    rank: int = 0


@dataclass(frozen=True, slots=True)
class Start:
    """A rank's own record of its start: the live ranks that it found are (job, attempt, rank)."""

    job: str
    attempt: int
    rank: int
    pid: int
    found: tuple[tuple[str, int, int], ...] = ()


@dataclass(frozen=True, slots=True)
class Logged:
    """One event of the final log."""

    seq: int
    time_ns: int
    event: ev.Event


@dataclass(frozen=True, slots=True)
class Ended:
    """How a command of the service ended: ``code`` is minus the signal where one ended it."""

    what: str
    code: int
    stderr: str = ""


@dataclass(frozen=True, slots=True)
class History:
    """Everything that is checked. ``ledger``: what the ledger's own check found, in sentences."""

    ops: tuple[Op, ...] = ()
    log: tuple[Logged, ...] = ()
    starts: tuple[Start, ...] = ()
    losses: tuple[Loss, ...] = ()
    ended: tuple[Ended, ...] = ()
    ledger: tuple[str, ...] = ()


@dataclass(slots=True)
class Offsets:
    """Turns times of the log into boot time, by the starts of controllers."""

    known: list[tuple[int, int]] = field(default_factory=list)  # seq of the start, offset

    @classmethod
    def of(cls, log: Iterable[Logged]) -> Offsets:
        return cls(
            [(e.seq, e.event.clock_offset_ns) for e in log if isinstance(e.event, ev.ControllerStarted)]
        )

    def boot_ns(self, seq: int, time_ns: int) -> int:
        offset = 0
        for start, value in self.known:
            if start > seq:
                break
            offset = value
        return time_ns - offset
