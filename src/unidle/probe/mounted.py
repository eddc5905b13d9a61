"""Block devices whose file systems are in use: what an abandoned one reports does not make a node unfit."""

from __future__ import annotations

import os
import re
from pathlib import Path

_JOURNAL = re.compile(r"-\d+$")  # the kernel names a journal after its device and inode: sda1-8


def mounted_devices(proc: str = "/proc", sys: str = "/sys") -> frozenset[str] | None:
    """Names such as ``sda1`` or ``dm-0`` of all mounted devices, in every mount namespace that can be read.

    None if the own mounts cannot be read. A device without a name there has the last part of its mount's source.
    """
    try:
        texts = [Path(proc, "self/mountinfo").read_text(encoding="utf-8", errors="replace")]
    except OSError:
        return None
    seen = {_namespace(f"{proc}/self")}
    for entry in (found.name for found in Path(proc).iterdir()):
        if entry.isdigit() and (space := _namespace(f"{proc}/{entry}")) not in (None, *seen):
            seen.add(space)
            try:
                texts.append(Path(proc, entry, "mountinfo").read_text(encoding="utf-8", errors="replace"))
            except OSError:
                continue
    return frozenset(name for text in texts for line in text.splitlines() for name in _names(line, sys))


def is_abandoned(device: str | None, mounted: frozenset[str] | None) -> bool:
    """Whether the file system of a line in the kernel's log is no longer mounted; False where that is unknown."""
    if not device or mounted is None:
        return False
    return device not in mounted and _JOURNAL.sub("", device) not in mounted


def _namespace(process: str) -> str | None:
    try:
        return os.fspath(Path(process, "ns/mnt").readlink())
    except OSError:
        return None


def _names(line: str, sys: str) -> list[str]:
    fields, _, rest = line.partition(" - ")
    number, source = fields.split(" ")[2:3], rest.split(" ")[1:2]
    found = [Path(text).resolve().name for text in source if text.startswith("/")]
    try:
        found += [Path(sys, "dev/block", text).readlink().name for text in number]
    except OSError:
        pass  # not of a block device
    return found
