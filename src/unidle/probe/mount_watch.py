"""Checks whether network file systems, and those served from user space, still respond.

A process that accesses a dead file server may block in the kernel without end and cannot be killed. So a small process
of its own checks each mount, never two at a time, also over restarts of the controller: the process holds a file lock.
"""

from __future__ import annotations

import contextlib
import errno
import fcntl
import hashlib
import os
import signal
import sys
import time
from collections.abc import Collection, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Final, NamedTuple

from unidle.probe.mount_table import Mount, mount_point, mounts_in

ASK_EVERY_NS: Final = 10_000_000_000
_TABLE_EVERY_NS: Final = 5_000_000_000
_MOST_LINKS: Final = 40  # as many symbolic links on one path as the kernel follows
_REMOTE: Final = frozenset(
    {"nfs", "nfs4", "cifs", "smb3", "smbfs", "ceph", "lustre", "gpfs", "beegfs", "wekafs", "afs", "9p", "virtiofs",
     "pvfs2", "orangefs", "glusterfs", "gfs2", "ocfs2", "panfs", "fuse", "fuseblk"}
)  # fmt: skip
_OWN: Final = frozenset({"fuse.lxcfs"})  # shows the container's own /proc
_DEAD: Final = (
    errno.EIO, errno.ENOTCONN, errno.ESTALE, errno.ETIMEDOUT, errno.EHOSTDOWN, errno.EHOSTUNREACH, errno.ESHUTDOWN,
    errno.ECONNABORTED, errno.ECONNREFUSED, errno.ECONNRESET, errno.ENODEV, errno.ENXIO,
)  # fmt: skip
_ERRORS_FROM: Final = 100  # exit codes: 0 it answered, else this much and the error
_LOCK: Final = 9  # the descriptor that the asking process holds the lock by
_CODE: Final = f"""
import os, sys
try:
    os.statvfs(sys.argv[1])
except OSError as error:
    os._exit({_ERRORS_FROM} + error.errno if error.errno in {_DEAD} else 0)
os._exit(0)
"""


class MountState(NamedTuple):
    """Since when a mount has not answered, or only with ``error`` (of ``errno``); None: it answers."""

    since_ns: int | None = None
    error: int = 0


def remote_mounts(mountinfo: str) -> dict[str, Mount | None]:
    """All mounts of a ``/proc/self/mountinfo`` by place, None for those of the machine itself; a later one hides an earlier."""
    found: dict[str, Mount | None] = {}
    for mount, _ in mounts_in(mountinfo):
        remote = mount.kind in _REMOTE or (mount.kind.startswith("fuse.") and mount.kind not in _OWN)
        found[mount.place] = mount if remote else None
    return found


def mount_of(path: str, mounts: Mapping[str, Mount | None]) -> Mount | None:
    """The mount to ask about ``path`` (absolute); None where that is on the machine itself.

    Symbolic links are followed as far as they are on the machine itself: reading one on a dead mount never returns.
    """
    todo, here = _parts(path), ""
    for _ in range(_MOST_LINKS):
        target = ""
        while todo and not target:
            one = todo.pop(0)
            if one == "..":
                here = here.rpartition("/")[0]
                continue
            here = f"{here}/{one}"
            if mounts.get(mount_point(here, mounts)) is not None:
                return mounts.get(mount_point(os.path.normpath("/".join((here, *todo))), mounts))
            target = _link_at(here)
        if not target:
            return mounts.get(mount_point(here, mounts))
        here = "" if target.startswith("/") else here.rpartition("/")[0]
        todo = _parts(target) + todo
    return None


def _link_at(path: str) -> str:
    """The target of the symbolic link; empty if the path is none."""
    try:
        return os.readlink(path)  # noqa: PTH115 - as text: ``Path`` would change it
    except OSError:
        return ""


def _parts(path: str) -> list[str]:
    return [part for part in path.split("/") if part not in ("", ".")]


@dataclass(slots=True)
class _Asked:
    """The state of one mount. ``pid``: the process that checks it; 0: none, -1: one that an earlier controller started."""

    pid: int = 0
    begun_ns: int | None = None
    bad_ns: int | None = None
    error: int = 0


class MountWatch:
    """Checks mounts. ``locks``: directory for the checking processes' lock files. Errors: none, see :meth:`why_not`."""

    def __init__(self, locks: Path, mountinfo: Path = Path("/proc/self/mountinfo")) -> None:
        self._locks, self._table = locks, mountinfo
        self._asked: dict[str, _Asked] = {}
        self._found: dict[str, Mount] = {}
        self._looked_for: frozenset[str] = frozenset()
        self._read_ns = 0
        self._why = ""

    def look(self, directories: Collection[str], now_ns: int) -> dict[str, tuple[Mount, MountState]]:
        """By directory of ``directories`` (absolute paths) that is on a mount to ask: the mount, and what came. Never waits."""
        self._why = ""
        found = self._mounts_of(frozenset(directories), now_ns)
        for place in dict.fromkeys(mount.place for mount in found.values()):
            self._follow(place, self._asked.setdefault(place, _Asked()), now_ns)
        wanted = {mount.place for mount in found.values()}
        for place in [place for place in self._asked if place not in wanted]:
            asked = self._asked[place]
            if self._ended(asked) is not None:
                del self._asked[place]
        return {path: (mount, self._answer(self._asked[mount.place])) for path, mount in found.items()}

    def _mounts_of(self, directories: frozenset[str], now_ns: int) -> dict[str, Mount]:
        """The mounts to ask; a machine may have thousands, so the table is not read at every look."""
        if directories == self._looked_for and 0 <= now_ns - self._read_ns < _TABLE_EVERY_NS:
            return self._found
        try:
            mounts = remote_mounts(self._table.read_text(errors="surrogateescape")) if directories else {}
        except OSError as error:
            self._why = f"{self._table}: {error.strerror}"
            self._looked_for = frozenset()
            return {}
        self._looked_for, self._read_ns = directories, now_ns
        self._found = {path: mount for path in directories if (mount := mount_of(path, mounts)) is not None}
        return self._found

    def why_not(self) -> str:
        """Why mounts cannot be checked now; empty where they can."""
        return self._why

    def close(self) -> None:
        """End those who ask, as far as the kernel releases them; the others end when their mount answers."""
        for asked in self._asked.values():
            if asked.pid > 0 and self._ended(asked) is None:
                with contextlib.suppress(OSError):
                    os.kill(asked.pid, signal.SIGKILL)
                with contextlib.suppress(OSError):
                    os.waitpid(asked.pid, os.WNOHANG)
        self._asked = {}

    def _answer(self, asked: _Asked) -> MountState:
        if asked.bad_ns is not None:
            return MountState(asked.bad_ns, asked.error)
        return MountState(asked.begun_ns if asked.pid else None)

    def _follow(self, place: str, asked: _Asked, now_ns: int) -> None:
        code = self._ended(asked)
        if code is None:
            if asked.pid > 0:
                return
        elif code == 0:
            asked.bad_ns, asked.error = None, 0
        elif code > _ERRORS_FROM:
            asked.bad_ns = asked.begun_ns if asked.bad_ns is None else asked.bad_ns
            asked.error = code - _ERRORS_FROM
        else:
            self._why = f"{place}: the process that reads it ended with {code}"
        if asked.pid < 0 or asked.begun_ns is None or now_ns - asked.begun_ns >= ASK_EVERY_NS:
            self._ask(place, asked, now_ns)

    def _ended(self, asked: _Asked) -> int | None:
        """The exit code of the checking process, once after it ended; None otherwise."""
        if asked.pid <= 0:
            return None
        try:
            pid, status = os.waitpid(asked.pid, os.WNOHANG)
        except ChildProcessError:
            pid, status = asked.pid, 1 << 8
        if not pid:
            return None
        asked.pid = 0
        return os.waitstatus_to_exitcode(status)

    def _ask(self, place: str, asked: _Asked, now_ns: int) -> None:
        """Start a check, unless the process of an earlier controller still waits for the answer."""
        try:
            self._locks.mkdir(parents=True, exist_ok=True)
            name = hashlib.sha256(os.fsencode(place)).hexdigest()[:16]
            lock = os.open(self._locks / name, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o644)
        except OSError as error:
            self._why = f"{self._locks}: {error.strerror}: mounts cannot be checked"
            return
        try:
            fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
            os.utime(lock)
            asked.pid, asked.begun_ns = _started(place, lock), now_ns
        except BlockingIOError:
            asked.pid = -1
            asked.begun_ns = now_ns - max(int((time.time() - os.fstat(lock).st_mtime) * 1e9), 0)
        except OSError as error:
            self._why = f"{place}: no process could be started to check it: {error.strerror}"
        finally:
            os.close(lock)


def _started(place: str, lock: int) -> int:
    """Start the process that checks ``place`` and holds ``lock`` while it lives; its pid. Errors: OSError."""
    words = [sys.executable, "-I", "-S", "-c", _CODE, place]
    held = os.dup(lock)  # moved to itself it would be closed
    try:
        moved = [(os.POSIX_SPAWN_DUP2, lock if lock != _LOCK else held, _LOCK)]
        return os.posix_spawn(words[0], words, os.environ, file_actions=moved, setpgroup=0)
    finally:
        os.close(held)
