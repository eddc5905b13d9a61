"""Directories that other users reach, too: pytest's own, and at times TMPDIR, are closed to them."""

from __future__ import annotations

import fcntl
import os
import pwd
import shutil
import stat
import struct
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path

import needs

_GETFLAGS, _SETFLAGS, _IMMUTABLE = 0x80086601, 0x40086602, 0x10


@contextmanager
def open_directory(prefix: str = "unidle-") -> Iterator[Path]:
    """A new directory that every user may enter, removed at the end."""
    with tempfile.TemporaryDirectory(prefix=prefix, dir=open_parent()) as place:
        Path(place).chmod(0o755)
        yield Path(place)


def open_parent() -> str:
    """The first of the usual places for temporary files that no directory above closes to others."""
    for place in (tempfile.gettempdir(), "/tmp", "/var/tmp"):
        path = Path(place).resolve()
        if all(above.stat().st_mode & stat.S_IXOTH for above in (path, *path.parents)):
            return place
    return tempfile.gettempdir()


def server_user(place: Path) -> list[str]:
    """How to start a program as the user that the server runs as: PostgreSQL refuses root."""
    if not needs.is_root():
        return ["setpriv"]
    known = {entry.pw_name: entry for entry in pwd.getpwall()}
    user = known.get("postgres") or known["nobody"]
    shutil.chown(place, user.pw_uid, user.pw_gid)
    return ["setpriv", f"--reuid={user.pw_uid}", f"--regid={user.pw_gid}", "--clear-groups"]


def set_immutable(path: Path, on: bool) -> None:
    """Whether no process, of root too, may open the file for writing or delete it. Errors: OSError where that cannot be set."""
    fd = os.open(path, os.O_RDONLY)
    try:
        flags = struct.unpack("l", fcntl.ioctl(fd, _GETFLAGS, bytes(8)))[0]
        flags = flags | _IMMUTABLE if on else flags & ~_IMMUTABLE
        fcntl.ioctl(fd, _SETFLAGS, struct.pack("l", flags))
    finally:
        os.close(fd)


def fill(path: Path) -> None:
    """Write into a file until its disk is full."""
    with path.open("wb", 0) as file, suppress(OSError):
        while True:
            file.write(b"x" * 4096)
