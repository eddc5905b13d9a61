"""What is done for checkpoints that scripts write themselves, in small processes next to the ranks.

Checksums of each checkpoint are taken when it becomes durable. Before a gang starts again, the newest one is read,
and a bad one is reported. One process at a time takes checksums, in CPU time that no other process needs.
"""

from __future__ import annotations

import json
import os
import signal
from collections import deque

from unidle.boot import boottime_ns
from unidle.engine.local.ranks import side_process

TYPE_CHECKING = False  # a box at rest has no use for typing
if TYPE_CHECKING:
    from collections.abc import Callable, Mapping
    from typing import Any

    from unidle.engine.local.ranks.side_process import SideProcess

MODULE = "unidle.checkpoint.attend"
PATIENCE_NS = 300_000_000_000  # then a gang starts without the answer
_MOST_WAITING = 8  # older ones are let go of: a restart needs the newest


class FoundBad:
    """A bad checkpoint that a look found: ``moved_to`` is where it is now, ``step`` what it holds as far as its name shows it."""

    def __init__(self, path: str, because: str, moved_to: str, step: int | None) -> None:
        self.path, self.because, self.moved_to, self.step = path, because, moved_to, step

    def as_json(self) -> dict[str, Any]:
        return dict(self.__dict__)


class CheckpointReading:
    """A process that reads the newest checkpoint below a path. ``holds``: a start waits for it."""

    def __init__(self, process: SideProcess, pipe: int, *, holds: bool) -> None:
        self.process, self.pipe, self.holds = process, pipe, holds
        self.began_ns = boottime_ns()
        self.said = b""

    def is_waited_for(self) -> bool:
        return self.holds and self.process.alive and boottime_ns() < self.began_ns + PATIENCE_NS


class SavedCheckpoints:
    """Checksums and verification for jobs. ``env`` gives the environment of the processes."""

    def __init__(self, env: Callable[[], Mapping[str, str]]) -> None:
        self._env = env
        self._waiting: deque[str] = deque(maxlen=_MOST_WAITING)
        self._taking: SideProcess | None = None
        self._readings: dict[tuple[str, int], CheckpointReading] = {}

    def look(self, job: str, attempt: int, path: str, *, aside: bool) -> None:
        """Read the newest checkpoint below ``path`` before an attempt starts; ``aside``: move a bad one away, and let the start wait."""
        key = (job, attempt)
        if key in self._readings:
            return
        pipe, out = os.pipe()
        os.set_blocking(pipe, False)
        try:
            process = self._attend(["judge", *(["--aside"] if aside else []), path], out)
        finally:
            os.close(out)
        if process is None:
            os.close(pipe)
        else:
            self._readings[key] = CheckpointReading(process, pipe, holds=aside)

    def holds(self, job: str, attempt: int) -> bool:
        """Whether the attempt's start waits for what is being read."""
        reading = self._readings.get((job, attempt))
        return reading is not None and reading.is_waited_for()

    def reads(self, job: str, attempt: int) -> bool:
        """Whether there is more to come from :meth:`poll` for the attempt."""
        return (job, attempt) in self._readings

    @property
    def busy(self) -> bool:
        """Whether a gang waits."""
        return any(reading.holds for reading in self._readings.values())

    def saved(self, path: str) -> None:
        """A checkpoint has become durable."""
        if path not in self._waiting:
            self._waiting.append(path)

    def poll(self) -> list[tuple[str, int, FoundBad]]:
        """What was found bad since the last call: job, attempt and what."""
        if self._taking is not None and not self._taking.alive:
            self._taking = None
        if self._taking is None and self._waiting:
            self._taking = self._attend(["remember", *self._waiting])
            self._waiting.clear()
        found: list[tuple[str, int, FoundBad]] = []
        for (job, attempt), reading in list(self._readings.items()):
            ended = not reading.process.alive
            reading.said += _read(reading.pipe)
            if ended:
                del self._readings[job, attempt]
                os.close(reading.pipe)
            *lines, reading.said = reading.said.split(b"\n")
            found += [(job, attempt, _found(line)) for line in lines]
        return found

    def close(self) -> None:
        """What is being read is of no use any more; checksums that are being taken are taken to the end."""
        for reading in self._readings.values():
            os.close(reading.pipe)
            if reading.process.alive:
                os.kill(reading.process.pid, signal.SIGKILL)
                os.waitpid(reading.process.pid, 0)
        self._readings.clear()

    def _attend(self, words: list[str], out: int | None = None) -> SideProcess | None:
        try:
            return side_process.start(["-m", MODULE, *words], self._env(), out)
        except OSError:
            return None  # no process can be had: training takes precedence


def _read(pipe: int) -> bytes:
    data = b""
    try:
        while True:
            more = os.read(pipe, 65536)
            if not more:
                break
            data += more
    except BlockingIOError:
        pass
    return data


def _found(line: bytes) -> FoundBad:
    said = json.loads(line)
    return FoundBad(said["path"], said["because"], said["moved_to"], said["step"])
