"""Opening the files of a checkpoint that anyone may have written: regular files only, and none outside of it.

A FIFO or device is never read, a name with ``..`` or a leading slash is refused, a link is followed only where it stays inside.
"""

from __future__ import annotations

import errno
import io
import os
import stat
from typing import Final

# A FIFO without a writer would block the open itself.
_FLAGS: Final = os.O_RDONLY | os.O_NONBLOCK | os.O_CLOEXEC | os.O_NOCTTY
_STEP: Final = os.O_PATH | os.O_DIRECTORY | os.O_NOFOLLOW | os.O_CLOEXEC


class Damaged(Exception):
    """Bytes that are not what was written. The text gives the fault in one line."""


class Outside(Damaged):
    """A link that leads out of the checkpoint, so what is behind it is not read."""


def open_file(path: str) -> int:
    """A descriptor of the regular file ``path``, which the caller chose; links in it are followed.

    Raises :class:`Damaged` for anything but a regular file, OSError.
    """
    return _regular(os.open(path, _FLAGS), "it")


def open_inside(folder: str, name: str) -> int:
    """A descriptor of the regular file ``name`` below ``folder``, whatever ``name`` is.

    Raises :class:`Damaged` for a name that leads out and for anything but a regular file, :class:`Outside` for a
    link that leads out, OSError.
    """
    parts = _parts(name)
    root = os.open(folder, os.O_PATH | os.O_DIRECTORY | os.O_CLOEXEC)
    try:
        try:
            return _regular(_walk(root, parts), name)
        except OSError as error:
            if error.errno == errno.ENOENT:
                raise FileNotFoundError(
                    error.errno, os.strerror(errno.ENOENT), os.path.join(folder, name)
                ) from None
            if error.errno not in (errno.ELOOP, errno.ENOTDIR):
                raise
        target = os.path.relpath(os.path.realpath(os.path.join(folder, name)), os.path.realpath(folder))
        if target.split(os.sep)[0] in ("..", "."):
            raise Outside(f"{shown(name)} is a link that leads out of the checkpoint; it is not followed")
        return _regular(_walk(root, target.split(os.sep)), name)  # again without links: they may have changed
    finally:
        os.close(root)


def read_file(path: str, most_bytes: int) -> bytes:
    """The content of a regular file. Raises :class:`Damaged`, also where it has more than ``most_bytes``; OSError."""
    return _content(open_file(path), "it", most_bytes)


def read_inside(folder: str, name: str, most_bytes: int) -> bytes:
    """The content of a file below ``folder``. Raises as :func:`open_inside`; :class:`Damaged` if it is too large."""
    return _content(open_inside(folder, name), name, most_bytes)


def shown(text: object, most: int = 120) -> str:
    """A name out of a checkpoint, for a message: without control characters, and not too long."""
    found = str(text) if isinstance(text, (str, int)) else type(text).__name__
    clean = "".join(c if c.isprintable() else "?" for c in found[: most + 1])
    return clean if len(clean) <= most else f"{clean[:most]}..."


def _parts(name: str) -> list[str]:
    parts = [part for part in name.split("/") if part not in ("", ".")]
    if name.startswith("/") or ".." in parts or not parts or "\0" in name:
        raise Damaged(f"names a file outside of the checkpoint: {shown(name)!r}")
    try:
        os.fsencode(name)
    except UnicodeEncodeError:
        raise Damaged(f"names a file that cannot exist: {shown(name)!r}") from None
    return parts


def _walk(root: int, parts: list[str]) -> int:
    here = root
    try:
        for part in parts[:-1]:
            below = os.open(part, _STEP, dir_fd=here)
            if here != root:
                os.close(here)
            here = below
        return os.open(parts[-1], _FLAGS | os.O_NOFOLLOW, dir_fd=here)
    finally:
        if here != root:
            os.close(here)


def _regular(fd: int, name: str) -> int:
    if not stat.S_ISREG(os.fstat(fd).st_mode):
        os.close(fd)
        raise Damaged(f"{shown(name)} is not a regular file")
    return fd


def _content(fd: int, name: str, most_bytes: int) -> bytes:
    with os.fdopen(fd, "rb", buffering=0):
        size = os.fstat(fd).st_size
        if size > most_bytes:
            raise Damaged(f"{shown(name)} has {size} bytes; at most {most_bytes} are read")
        return FilePart(fd, 0, size).read()


class FilePart(io.RawIOBase):
    """``length`` bytes of an open file from ``start`` on, as a file of its own. No read takes more memory than there are bytes."""

    def __init__(self, fd: int, start: int, length: int) -> None:
        self._fd, self._start = fd, start
        self._length = max(0, min(length, os.fstat(fd).st_size - start))
        self._at = 0

    def readable(self) -> bool:
        return True

    def seekable(self) -> bool:
        return True

    def tell(self) -> int:
        return self._at

    def seek(self, offset: int, whence: int = 0) -> int:
        base = {0: 0, 1: self._at, 2: self._length}[whence]
        if base + offset < 0:
            raise OSError("seek before the start")
        self._at = base + offset
        return self._at

    def read(self, size: int | None = -1) -> bytes:
        left = max(0, self._length - self._at)
        wanted = left if size is None or size < 0 else min(size, left)
        found = []
        while wanted and (data := os.pread(self._fd, wanted, self._start + self._at)):
            found.append(data)
            self._at += len(data)
            wanted -= len(data)
        return found[0] if len(found) == 1 else b"".join(found)
