"""Checksums next to checkpoints that others wrote: taken when one becomes durable, compared when it is needed.

Kept in ``.unidle/sums/NAME.json`` of the directory that holds the checkpoint.
"""

from __future__ import annotations

import json
import os
import zlib
from typing import Final

from unidle.atomic import replaced
from unidle.checkpoint.holder import hold_paths
from unidle.checkpoint.layout import INNER, Damaged, file_chunks
from unidle.checkpoint.safe_open import open_file, open_inside, read_file, shown
from unidle.words import counted

_FORMAT: Final = "unidle-sums"
_MOST_BYTES: Final = 64 << 20


def side_file(path: str) -> str:
    """Where the checksums of the checkpoint ``path`` are kept."""
    parent, name = os.path.split(os.path.abspath(path))
    return os.path.join(parent, INNER, "sums", f"{name}.json")


def remember(path: str) -> bool:
    """Take the checksums of a checkpoint that has just become durable.

    False where nothing was kept, because it changed meanwhile, cannot be read, or the directory cannot be written.
    """
    try:
        found = _take(path)
        if not found or found != _take_states(path, found):
            return False
        side = side_file(path)
        body = {"format": _FORMAT, "version": 1, "files": found}
        with (
            hold_paths.inner(os.path.dirname(os.path.abspath(path)), "sums", create=True) as folder,
            replaced(os.path.basename(side), at=folder, durable=True) as file,
        ):
            file.write(json.dumps(body, separators=(",", ":")).encode())
    except (Damaged, OSError):
        return False
    return True


def forget(path: str) -> None:
    """Drop the checksums of a checkpoint that was removed."""
    try:
        os.unlink(side_file(path))
    except OSError:
        pass


def compare(path: str, *, deep: bool) -> str | None:
    """The reason to trust the file, by the checksums kept of it; None if there are none, or none that is still valid.

    They are no longer valid for a file that was rewritten since (another modification time). Raises :class:`Damaged`
    where size or bytes changed though the time did not.
    """
    try:
        outer = json.loads(read_file(side_file(path), _MOST_BYTES))
        files = {
            str(name): (int(size), int(time), int(crc)) for name, (size, time, crc) in outer["files"].items()
        }
        if outer["format"] != _FORMAT:
            return None
    except (Damaged, OSError, ValueError, KeyError, TypeError, AttributeError, OverflowError, RecursionError):
        return None
    for name, (size, mtime_ns, crc) in files.items():
        try:
            target = _open(path, name)
        except FileNotFoundError:
            raise Damaged(f"{shown(name) or 'it'} is missing since it was durable") from None
        with os.fdopen(target, "rb", buffering=0):
            if not _compare_one(target, shown(name) or "it", size, mtime_ns, crc, deep):
                return None
    return f"the same checksums as when it was durable ({counted(len(files), 'file')})" if deep else None


def _compare_one(fd: int, name: str, size: int, mtime_ns: int, crc: int, deep: bool) -> bool:
    """Whether a file is the one that was durable; False where it was rewritten since. Raises :class:`Damaged`."""
    state = os.fstat(fd)
    if state.st_size < size:
        raise Damaged(f"{name} has {state.st_size} bytes; it had {size} when it was durable")
    if state.st_mtime_ns != mtime_ns:
        return _crc(fd) == crc
    if deep and _crc(fd) != crc:
        raise Damaged(f"{name} does not match the checksum of when it was durable")
    return True


def _take(path: str) -> dict[str, list[int]]:
    found = {}
    for name in _names(path):
        fd = _open(path, name)
        try:
            state = os.fstat(fd)
            found[name] = [state.st_size, state.st_mtime_ns, _crc(fd)]
        finally:
            os.close(fd)
    return found


def _take_states(path: str, before: dict[str, list[int]]) -> dict[str, list[int]]:
    """The same without reading: what changed while it was read shows in size or time."""
    found = {}
    for name in _names(path):
        state = os.stat(os.path.join(path, name) if name else path)
        found[name] = [state.st_size, state.st_mtime_ns, before.get(name, [0, 0, -1])[2]]
    return found


def _names(path: str) -> list[str]:
    """The files of a checkpoint, relative to it; one empty name where it is a file."""
    if not os.path.isdir(path):
        return [""]
    return sorted(
        os.path.relpath(os.path.join(folder, name), path)
        for folder, _, names in os.walk(path)
        for name in names
    )


def _open(path: str, name: str) -> int:
    return open_inside(path, name) if name else open_file(path)


def _crc(fd: int) -> int:
    crc = 0
    for data in file_chunks(fd, os.fstat(fd).st_size):
        crc = zlib.crc32(data, crc)
    return crc
