"""Checksums next to checkpoints that others wrote: taken when one becomes durable, compared when it is needed.

Kept in ``.unidle/sums/NAME.json`` of the directory that holds the checkpoint.
"""

from __future__ import annotations

import json
import os
import zlib
from typing import Final

from unidle.checkpoint.layout import INNER, Damaged, file_chunks, write_durably
from unidle.words import counted

_FORMAT: Final = "unidle-sums"


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
        os.makedirs(os.path.dirname(side), exist_ok=True)
        body = {"format": _FORMAT, "version": 1, "files": found}
        write_durably(side, json.dumps(body, separators=(",", ":")).encode())
    except OSError:
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
        with open(side_file(path), "rb") as file:
            outer = json.load(file)
        files = dict(outer["files"])
        if outer["format"] != _FORMAT:
            return None
    except (OSError, ValueError, KeyError, TypeError):
        return None
    for name, (size, mtime_ns, crc) in files.items():
        target = os.path.join(path, name) if name else path
        try:
            state = os.stat(target)
        except FileNotFoundError:
            raise Damaged(f"{name or 'it'} is missing since it was durable") from None
        if state.st_size < size:
            raise Damaged(f"{name or 'it'} has {state.st_size} bytes; it had {size} when it was durable")
        if state.st_mtime_ns != mtime_ns and not _same(target, crc):
            return None
        if deep and state.st_mtime_ns == mtime_ns and not _same(target, crc):
            raise Damaged(f"{name or 'it'} does not match the checksum of when it was durable")
    return f"the same checksums as when it was durable ({counted(len(files), 'file')})" if deep else None


def _take(path: str) -> dict[str, list[int]]:
    found = {}
    for name, target in _targets(path):
        state = os.stat(target)
        found[name] = [state.st_size, state.st_mtime_ns, _crc(target)]
    return found


def _take_states(path: str, before: dict[str, list[int]]) -> dict[str, list[int]]:
    """The same without reading: what changed while it was read shows in size or time."""
    found = {}
    for name, target in _targets(path):
        state = os.stat(target)
        found[name] = [state.st_size, state.st_mtime_ns, before.get(name, [0, 0, -1])[2]]
    return found


def _targets(path: str) -> list[tuple[str, str]]:
    if not os.path.isdir(path):
        return [("", path)]
    found = []
    for folder, _, names in os.walk(path):
        for name in names:
            target = os.path.join(folder, name)
            found.append((os.path.relpath(target, path), target))
    return sorted(found)


def _same(path: str, crc: int) -> bool:
    return _crc(path) == crc


def _crc(path: str) -> int:
    crc = 0
    fd = os.open(path, os.O_RDONLY)
    try:
        for data in file_chunks(fd, os.fstat(fd).st_size):
            crc = zlib.crc32(data, crc)
    finally:
        os.close(fd)
    return crc
