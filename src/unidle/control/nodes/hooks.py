"""Starts remedies and checks as processes of their own, and reports their outcomes.

Each name is started only once: its directory is made first, and stays.
"""

from __future__ import annotations

import fcntl
import json
import os
import shutil
import sys
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Final, Protocol

from unidle.control.nodes import hook_process
from unidle.engine.local.ranks import rundir

_KEPT: Final = 200


@dataclass(frozen=True, slots=True)
class HookOrder:
    """Run ``words`` under this name, at most ``limit_ns``."""

    name: str
    words: tuple[str, ...]
    limit_ns: int


@dataclass(frozen=True, slots=True)
class HookOutcome:
    """How it ended: ``code`` is None where it was killed (``late``), or its end was not seen."""

    code: int | None
    late: bool
    text: str


class HookEngine(Protocol):
    """The part that carries out remedies and checks."""

    def begin(self, order: HookOrder) -> None:
        """Start it; does nothing if it was started before, also by another process."""

    def look(self, name: str) -> HookOutcome | None:
        """How it ended; None while it runs, or if it was not started."""

    def end(self, name: str) -> None:
        """The caller does not wait for it any more."""


class HookRunner:
    """:class:`HookEngine` of this machine. ``root`` keeps one directory for each name, to be read later."""

    def __init__(self, root: Path) -> None:
        self._root = root
        self._children: list[int] = []

    def begin(self, order: HookOrder) -> None:
        directory = self._root / order.name
        try:
            self._root.mkdir(parents=True, exist_ok=True)
            directory.mkdir()
        except OSError:  # begun before; or no room, which the time limit will tell
            return
        self._prune()
        (directory / "order.json").write_text(
            json.dumps({"words": order.words, "limit_s": order.limit_ns / 1e9})
        )
        with open(directory / "lock", "w") as lock:
            fcntl.flock(lock, fcntl.LOCK_EX)
            self._children.append(_spawn(str(directory), lock.fileno()))

    def look(self, name: str) -> HookOutcome | None:
        self._children = [pid for pid in self._children if not _collected(pid)]
        directory = self._root / name
        if (found := _result(directory)) is not None:
            return found
        if not directory.is_dir() or rundir.is_held(directory / "lock"):
            return None
        return _result(directory) or HookOutcome(None, False, "its end was not seen")

    def end(self, name: str) -> None:
        """It ends by itself, at its time limit."""

    def _prune(self) -> None:
        done = [entry for entry in self._root.iterdir() if (entry / "result.json").exists()]
        if len(done) > _KEPT:
            for entry in sorted(done, key=lambda e: e.stat().st_mtime_ns)[: len(done) - _KEPT]:
                shutil.rmtree(entry, ignore_errors=True)


def _spawn(directory: str, lock_fd: int) -> int:
    """The process that runs the order, in a session of its own; it takes the lock over, as its descriptor 3."""
    words = [sys.executable, "-I", "-S", hook_process.__file__, directory]
    nowhere = [(os.POSIX_SPAWN_OPEN, fd, os.devnull, os.O_RDWR, 0) for fd in (0, 1, 2)]
    os.set_inheritable(lock_fd, True)  # where it is 3 itself, the copy alone would not do that
    actions = [(os.POSIX_SPAWN_DUP2, lock_fd, 3), *nowhere]
    return os.posix_spawn(sys.executable, words, os.environ, file_actions=actions, setsid=True)


def _collected(pid: int) -> bool:
    """Whether the child has ended."""
    try:
        return os.waitpid(pid, os.WNOHANG)[0] != 0
    except ChildProcessError:
        return True


def _result(directory: Path) -> HookOutcome | None:
    with suppress(OSError, ValueError, KeyError):
        told = json.loads((directory / "result.json").read_text())
        return HookOutcome(told["code"], told["late"], told["text"])
    return None
