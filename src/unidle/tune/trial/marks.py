"""Marks that a program's steps set: the parent reads them from a pipe, and takes times with its own clocks."""

from __future__ import annotations

import contextlib
import os
import select
import time
from collections.abc import Iterable
from dataclasses import dataclass, field
from pathlib import Path
from typing import Final

_POLL_MS: Final = 10


@dataclass(frozen=True, slots=True)
class StepMark:
    """The end of a step, from the start of the program, in seconds. ``cpu_s`` is of the process that trains and of what it started."""

    step: int
    at_s: float
    cpu_s: float
    queued_s: float
    """Of the process's first thread: ready to run, but another one had the CPU."""


@dataclass(frozen=True, slots=True)
class WindowTimes:
    """A window of steps. ``quiet_s`` is its time without that in the queue for a CPU, ``setup_s`` the quiet time before it."""

    steps: int
    wall_s: float
    cpu_s: float
    quiet_s: float
    setup_s: float

    @property
    def step_s(self) -> float:
        """The quiet time of a step."""
        return self.quiet_s / self.steps


def times_between(first: StepMark, last: StepMark) -> WindowTimes:
    """The window between two marks."""
    wall = last.at_s - first.at_s
    quiet = max(wall / 1000, wall - (last.queued_s - first.queued_s))
    return WindowTimes(
        last.step - first.step, wall, last.cpu_s - first.cpu_s, quiet, max(0.0, first.at_s - first.queued_s)
    )


@dataclass(slots=True)
class StepWatch:
    """What steps to mark, and the pipe in ``scratch``. ``at``: empty for the steps 1, 2, 4, 8 and so on. ``stop``: the program waits after the last one to be killed."""

    scratch: Path
    at: tuple[int, ...] = ()
    stop: bool = False
    marks: list[StepMark] = field(default_factory=list)
    begin: float = 0.0
    _pipe: int = -1
    _pid: int = 0
    _rest: bytes = b""

    def open(self, name: str) -> dict[str, str]:
        """Make the pipe; what the environment of the program has to have. Errors: OSError."""
        path = self.scratch / f"{name}.steps"
        os.mkfifo(path)
        self._pipe = os.open(path, os.O_RDONLY | os.O_NONBLOCK)
        self.begin = time.monotonic()
        return {
            "TUNE_TRIAL_STEPS": str(path), "TUNE_TRIAL_MARKS": ",".join(map(str, self.at)), "TUNE_TRIAL_WAIT": "1" if self.stop else "",
        }  # fmt: skip

    def close(self, name: str) -> None:
        """Remove the pipe."""
        if self._pipe >= 0:
            os.close(self._pipe)
            (self.scratch / f"{name}.steps").unlink()
            self._pipe = -1

    def wait(self) -> bool:
        """Wait for a mark, for at most 10 ms. Whether the last step that was requested is done."""
        if not select.select([self._pipe], [], [], _POLL_MS / 1000)[0]:
            return False
        at = time.monotonic() - self.begin
        with contextlib.suppress(BlockingIOError):
            found = os.read(self._pipe, 4096)
            if not found:
                time.sleep(_POLL_MS / 1000)  # no program has the pipe open
            *lines, self._rest = (self._rest + found).split(b"\n")
            for line in lines:
                self._mark(line, at)
        return self.stop and bool(self.marks) and self.marks[-1].step >= self.at[-1]

    def _mark(self, line: bytes, at: float) -> None:
        step, pid = map(int, line.split())
        self._pid = self._pid or pid
        if pid == self._pid:  # one rank of several
            self.marks.append(StepMark(step, at, _cpu_s(pid), _queued_s(pid)))


def _queued_s(pid: int) -> float:
    try:
        return int(Path(f"/proc/{pid}/schedstat").read_text().split()[1]) / 1e9
    except (OSError, ValueError, IndexError):
        return 0.0


def _cpu_s(pid: int) -> float:
    """CPU seconds of a process and of its living descendants."""
    return sum(_clock(one) for one in [pid, *_descendants(pid)])


def _clock(pid: int) -> float:
    try:
        return time.clock_gettime((~pid << 3) | 2)  # the kernel's number for the CPU clock of a process
    except OSError:
        return 0.0


def _descendants(pid: int) -> Iterable[int]:
    waiting = [pid]
    while waiting:
        one = waiting.pop()
        for file in Path(f"/proc/{one}/task").glob("*/children"):
            with contextlib.suppress(OSError):
                for child in map(int, file.read_text().split()):
                    waiting.append(child)
                    yield child
