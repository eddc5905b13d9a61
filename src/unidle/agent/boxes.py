"""The boxes of this host: started in sessions of their own, so that they outlive the agent, and found again by their locks."""

from __future__ import annotations

import json
import os
import shutil
import signal
import sys
import time
from collections.abc import Mapping
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Final

from unidle import private
from unidle.atomic import replaced
from unidle.engine.local.ranks import rundir

FILE: Final = "box.json"  # what the box is to be
LOCK: Final = "box.lock"  # held by the box while it lives; its pid is in it
ERRORS: Final = "box.err"
RUNS: Final = "runs"  # the run root of its ranks
ENTRY: Final = str(Path(__file__).parents[1] / "box" / "entry.py")
"""What `python -m unidle.box` executes in the end: its first interpreter takes 15 ms of processor time."""
KEPT_S: Final = 7 * 86_400.0
"""So long the directory of a box that has ended stays, for its logs."""
_UP_WITHIN_S: Final = 20.0
_QUOTED: Final = 300
_MOST_BYTES: Final = 1024 * 1024  # of what a box is given


@dataclass(frozen=True, slots=True)
class BoxOrder:
    """What a box needs: who it is, where its hub is, and its own token."""

    hub: str
    authority: str
    node: str
    job: str
    token: str


@dataclass(slots=True)
class _Begun:
    pid: int
    until_s: float


class Boxes:
    """The boxes below ``root``, one directory for each job. ``command`` is what runs one, given its directory."""

    def __init__(self, root: Path, command: tuple[str, ...] = ()) -> None:
        self._root = root
        self._command = command or (sys.executable, "-I", "-S", "-E", ENTRY)
        self._begun: dict[str, _Begun] = {}  # those of which it is not known yet whether they came up
        self._children: set[int] = set()
        self._live = set(self.running())

    def begin(self, order: BoxOrder, env: Mapping[str, str]) -> None:
        """Start a box, unless it runs; :meth:`answer` has the result. ``env`` is added to the agent's environment.

        Errors: ValueError for a job that cannot be a directory, else OSError.
        """
        directory = self.directory(order.job)
        self._root.mkdir(mode=0o700, exist_ok=True)
        private.make_directory(directory)
        at = private.open_folder(str(directory), private=True)
        try:
            _write(at, {name: getattr(order, name) for name in BoxOrder.__slots__})
            if order.job not in self._begun and not rundir.is_held(directory / LOCK):
                self._begun[order.job] = _Begun(
                    self._spawn(directory, at, env), time.monotonic() + _UP_WITHIN_S
                )
        finally:
            os.close(at)

    def point(self, hub: str, authority: str) -> list[str]:
        """Have all boxes that run dial ``hub`` once they have no connection; why some could not get it.

        The controller may have moved, and orders no box for ranks that run or jobs that are over. The token is that of their order,
        so a box whose order was of another authority is left as it is.
        """
        failed = []
        for job in self.running():
            try:
                self._point(self.directory(job), hub, authority)
            except (OSError, ValueError, KeyError, TypeError) as error:
                failed.append(f"the box of {job} was not given the address of the controller: {error!r:.200}")
        return failed

    def _point(self, directory: Path, hub: str, authority: str) -> None:
        at = private.open_folder(str(directory), private=True)
        try:
            given = json.loads(private.read(FILE, at, _MOST_BYTES))
            if given["authority"] == authority and given["hub"] != hub:
                _write(at, {**given, "hub": hub})
        finally:
            os.close(at)

    def answer(self, job: str) -> str | None:
        """Empty once the box of a job that was begun runs; why it does not; None while that is open."""
        begun = self._begun.get(job)
        self._reap()
        if self._is_up(job, begun):
            self._begun.pop(job, None)
            self._live.add(job)
            return ""
        if begun is None:
            return "the box is not there"
        if begun.pid in self._children and time.monotonic() < begun.until_s:
            return None
        del self._begun[job]
        ended = begun.pid not in self._children
        why = "the box ended as it started" if ended else f"the box did not come up in {_UP_WITHIN_S:.0f} s"
        return f"{why}{self._last_words(job)}"

    def running(self) -> list[str]:
        """Jobs of which a box runs here."""
        try:
            names = sorted(entry.name for entry in self._root.iterdir())
        except FileNotFoundError:
            return []
        return [
            name for name in names if name not in self._begun and rundir.is_held(self._root / name / LOCK)
        ]

    def live(self) -> list[str]:
        """Jobs of the boxes that ran at the last call of :meth:`ended`, or have come up since."""
        return sorted(self._live)

    def ended(self) -> list[str]:
        """Jobs whose boxes have ended since the last call."""
        self._reap()
        gone = {job for job in self._live if not rundir.is_held(self._root / job / LOCK)}
        self._live -= gone
        return sorted(gone)

    def end(self) -> bool:
        """Ask all boxes to end; whether none runs any more."""
        self._reap()
        running = self.running()
        pids = {begun.pid for begun in self._begun.values()} & self._children
        pids |= {pid for job in running if (pid := self._pid(job)) is not None}
        for pid in pids:
            with suppress(ProcessLookupError, PermissionError):
                os.kill(pid, signal.SIGTERM)
        return not running and not pids

    def prune(self, now_s: float) -> None:
        """Remove directories of boxes that ended :data:`KEPT_S` ago, at ``now_s`` of the wall clock."""
        with suppress(OSError):
            for entry in list(self._root.iterdir()):
                lock = entry / LOCK
                with suppress(OSError):
                    last_s = (lock if lock.exists() else entry).stat().st_mtime
                    if now_s - last_s > KEPT_S and not rundir.is_held(lock):
                        shutil.rmtree(entry, ignore_errors=True)

    def directory(self, job: str) -> Path:
        """Where the files of a job's box are. Errors: ValueError for a job that cannot be a directory."""
        return self._root / rundir.path_part(job)

    def _spawn(self, directory: Path, at: int, env: Mapping[str, str]) -> int:
        errors = private.open_file(
            ERRORS, at, os.O_WRONLY | os.O_CREAT | os.O_TRUNC | os.O_APPEND, str(directory)
        )
        actions = [
            (os.POSIX_SPAWN_OPEN, 0, os.devnull, os.O_RDONLY, 0),
            (os.POSIX_SPAWN_DUP2, errors, 1),
            (os.POSIX_SPAWN_DUP2, errors, 2),
        ]
        words = [*self._command, str(directory)]
        try:
            pid = os.posix_spawn(words[0], words, {**os.environ, **env}, file_actions=actions, setsid=True)
        finally:
            os.close(errors)
        self._children.add(pid)
        return pid

    def _reap(self) -> None:
        for pid in list(self._children):
            with suppress(ChildProcessError):
                if os.waitpid(pid, os.WNOHANG)[0] == 0:
                    continue
            self._children.discard(pid)

    def _is_up(self, job: str, begun: _Begun | None) -> bool:
        """Whether the box holds its lock. One that was just begun is not tried: that would take the lock for a moment, and the box would
        find it taken. It writes its pid when it has the lock, if the disk is not full.
        """
        if begun is None or time.monotonic() > begun.until_s - _UP_WITHIN_S / 2:
            return rundir.is_held(self.directory(job) / LOCK)
        return self._pid(job) == begun.pid and begun.pid in self._children

    def _pid(self, job: str) -> int | None:
        try:
            return int((self._root / job / LOCK).read_text().split()[0])
        except (OSError, ValueError, IndexError):
            return None

    def _last_words(self, job: str) -> str:
        try:
            lines = (self._root / job / ERRORS).read_text("utf-8", "replace").strip().splitlines()
        except OSError:
            lines = []
        return f": {lines[-1][:_QUOTED]}" if lines else ""


def _write(at: int, given: Mapping[str, str]) -> None:
    with replaced(FILE, at=at, durable=True) as file:
        file.write(json.dumps(given).encode())
