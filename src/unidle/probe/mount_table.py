"""The kernel's table of mounts (``/proc/self/mountinfo``), as proc(5) describes it."""

from __future__ import annotations

import os
from collections.abc import Container, Iterator
from typing import NamedTuple


class Mount(NamedTuple):
    """One line: where it is mounted, the type of its file system, and what is mounted."""

    place: str
    kind: str
    source: str


def mounts_in(mountinfo: str) -> Iterator[tuple[Mount, str]]:
    """The mounts of a table with ``major:minor`` of their devices; a later one hides an earlier one at its place."""
    for line in mountinfo.splitlines():
        before, _, after = line.partition(" - ")
        left, right = before.split(" "), after.split(" ")
        if len(left) >= 5 and len(right) >= 2:
            yield Mount(unescaped(left[4]), right[0], unescaped(right[1])), left[2]


def mount_point(path: str, places: Container[str]) -> str:
    """The innermost of ``places`` that holds ``path`` (absolute); ``/`` without one."""
    while path.strip("/") and path not in places:
        path = path.rpartition("/")[0]
    return path or "/"


def unescaped(escaped: str) -> str:
    """A path of the table as it is: blanks, tabs, line ends and backslashes are octal in the table."""
    return os.fsdecode(
        b"".join(
            bytes([int(part[:3], 8)]) + os.fsencode(part[3:]) if k else os.fsencode(part)
            for k, part in enumerate(escaped.split("\\"))
        )
    )
