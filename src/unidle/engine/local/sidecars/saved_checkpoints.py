"""What is done for checkpoints that scripts write themselves, in small processes next to the ranks.

Checksums of each checkpoint are taken when it becomes durable. Before a gang starts again, the newest one is read,
and a bad one is reported. One process at a time takes checksums, in CPU time that no other process needs.
"""

from __future__ import annotations

import json
import os
import signal
from collections import deque
from dataclasses import dataclass
from typing import Final

from unidle.boot import boottime_ns
from unidle.engine.local.sidecars import sidecar_process
from unidle.engine.local.sidecars.sidecar_process import SidecarProcess
from unidle.engine.protocol import CheckpointLook, StartGang
from unidle.events.marks import Mark

_MOST_WAITING: Final = 8  # older ones are let go of: a restart needs the newest
_PATIENCE_NS: Final = 300_000_000_000  # then a gang starts without the answer


@dataclass(slots=True)
class _Look:
    process: SidecarProcess
    pipe: int
    began_ns: int
    holds: bool  # the gang waits for it
    said: bytes = b""


class SavedCheckpoints:
    """Checksums and verification for the jobs of one engine."""

    def __init__(self) -> None:
        self._workdirs: dict[str, str] = {}
        self._waiting: deque[str] = deque(maxlen=_MOST_WAITING)
        self._taking: SidecarProcess | None = None
        self._looks: dict[tuple[str, int], _Look] = {}

    def follow(self, command: StartGang) -> None:
        """Take checksums of what this gang saves from now on."""
        self._workdirs[command.job] = os.path.abspath(command.spec.workdir)

    def look(self, command: StartGang) -> None:
        """Read the newest checkpoint of a gang that starts again."""
        key = (command.job, command.attempt)
        if key in self._looks or command.spec.checkpoint_path is None:
            return
        aside = command.spec.quarantine_bad
        path = os.path.join(os.path.abspath(command.spec.workdir), command.spec.checkpoint_path)
        pipe, out = os.pipe()
        os.set_blocking(pipe, False)
        try:
            process = _attend(["judge", *(["--aside"] if aside else []), path], out)
        finally:
            os.close(out)
        if process is None:
            os.close(pipe)
        else:
            self._looks[key] = _Look(process, pipe, boottime_ns(), aside)

    def holds(self, job: str, attempt: int) -> bool:
        """Whether the gang's start waits for what is being read."""
        look = self._looks.get((job, attempt))
        if look is None or not look.holds:
            return False
        return look.process.alive and boottime_ns() < look.began_ns + _PATIENCE_NS

    @property
    def busy(self) -> bool:
        """Whether a gang waits."""
        return any(look.holds for look in self._looks.values())

    def saw(self, job: str, marks: tuple[Mark, ...]) -> None:
        """Marks of a rank: what became durable is on them."""
        if job not in self._workdirs:
            return
        for mark in marks:
            if mark.k == "saved" and mark.text:
                path = os.path.join(self._workdirs[job], mark.text)
                if path not in self._waiting:
                    self._waiting.append(path)

    def poll(self) -> list[CheckpointLook]:
        """What was found bad since the last call."""
        if self._taking is not None and not self._taking.alive:
            self._taking = None
        if self._taking is None and self._waiting:
            self._taking = _attend(["remember", *self._waiting])
            self._waiting.clear()
        found: list[CheckpointLook] = []
        for (job, attempt), look in list(self._looks.items()):
            ended = not look.process.alive
            look.said += _read(look.pipe)
            if ended:
                del self._looks[job, attempt]
                os.close(look.pipe)
            *lines, look.said = look.said.split(b"\n")
            found += [_told(job, attempt, line) for line in lines]
        return found

    def forget(self, job: str) -> None:
        self._workdirs.pop(job, None)

    def close(self) -> None:
        """What is being read is of no use any more; checksums that are being taken are taken to the end."""
        for look in self._looks.values():
            os.close(look.pipe)
            if look.process.alive:
                os.kill(look.process.pid, signal.SIGKILL)
                os.waitpid(look.process.pid, 0)
        self._looks.clear()


def _attend(words: list[str], out: int | None = None) -> SidecarProcess | None:
    try:
        return sidecar_process.start(["-m", "unidle.checkpoint.attend", *words], out)
    except OSError:
        return None  # no process can be had: training takes precedence


def _read(pipe: int) -> bytes:
    data = b""
    try:
        while more := os.read(pipe, 65536):
            data += more
    except BlockingIOError:
        pass
    return data


def _told(job: str, attempt: int, line: bytes) -> CheckpointLook:
    said = json.loads(line)
    return CheckpointLook(job, attempt, said["path"], said["because"], said["moved_to"], said["step"])
