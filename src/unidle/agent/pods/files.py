"""Files that a pod wrote, read by an agent with more rights than the pod: no link is followed, and nothing is read without a bound."""

from __future__ import annotations

import json
import os
import stat
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any, Final

MOST_BYTES: Final = 1 << 20
_FOLDER: Final = os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW | os.O_CLOEXEC
_FILE: Final = os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_NOCTTY | os.O_CLOEXEC


@contextmanager
def opened(root: str, *parts: str) -> Iterator[int]:
    """A descriptor of the directory below ``root``; none of ``parts`` is a link. Errors: OSError."""
    at = os.open(root, _FOLDER)
    try:
        for part in parts:
            below = os.open(part, _FOLDER, dir_fd=at)
            os.close(at)
            at = below
        yield at
    finally:
        os.close(at)


def head(name: str, at: int, most_bytes: int = MOST_BYTES) -> bytes:
    """The beginning of a file of the directory ``at``. Errors: OSError, also for what is no regular file."""
    fd = os.open(name, _FILE, dir_fd=at)
    try:
        if not stat.S_ISREG(os.fstat(fd).st_mode):
            raise OSError(f"{name} is no regular file")
        return os.read(fd, most_bytes)
    finally:
        os.close(fd)


def json_object(name: str, at: int) -> dict[str, Any]:
    """The object in a file; empty without one."""
    try:
        found = json.loads(head(name, at))
    except (OSError, ValueError, RecursionError):
        return {}
    return found if isinstance(found, dict) else {}


def numbered(at: int, prefix: str = "") -> dict[int, str]:
    """The names in a directory that are the prefix and a number, by that number."""
    found = {}
    for name in os.listdir(at):
        rest = name[len(prefix) :] if name.startswith(prefix) else ""
        if rest.isascii() and rest.isdigit() and len(rest) < 10:
            found[int(rest)] = name
    return found
