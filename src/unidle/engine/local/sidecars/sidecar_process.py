"""Small Python processes next to the ranks, each in its own session, so that they can outlive the engine."""

from __future__ import annotations

import os
import sys
from collections.abc import Sequence

from unidle.checkpoint.holder import wire


class SidecarProcess:
    """A child of this process that may outlive it."""

    def __init__(self, pid: int) -> None:
        self.pid = pid
        self.code: int | None = None  # how it ended, once it has: as in subprocess

    @property
    def alive(self) -> bool:
        if self.code is None:
            try:
                done, status = os.waitpid(self.pid, os.WNOHANG)
            except ChildProcessError:
                done, status = self.pid, 0  # somebody else collected it
            if done:
                self.code = os.waitstatus_to_exitcode(status)
        return self.code is None


def start(arguments: Sequence[str], out: int | None = None, errors: str = os.devnull) -> SidecarProcess:
    """``python ARGUMENTS`` with unidle to import, and nothing from the working directory; ``out`` is its standard output. OSError where there can be none."""
    actions: list[tuple[int, ...] | tuple[int, int, str, int, int]] = [
        (os.POSIX_SPAWN_OPEN, 0, os.devnull, os.O_RDWR, 0),
        (os.POSIX_SPAWN_DUP2, 0 if out is None else out, 1),
        (os.POSIX_SPAWN_OPEN, 2, errors, os.O_WRONLY | os.O_CREAT | os.O_APPEND, 0o600),
    ]
    command = [sys.executable, "-P", *arguments]
    return SidecarProcess(
        os.posix_spawn(sys.executable, command, wire.environment(), file_actions=actions, setsid=True)
    )
