"""Block devices whose file systems are in use: what an abandoned one reports does not make a node unfit.

Only the tables of the kernel are read, never the file system itself: it may have failed, and a read could hang.
"""

from __future__ import annotations

import os
import re
import tempfile
from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import Final

from unidle.probe.mount_table import Mount, mount_point, mounts_in

_SYSTEM: Final = (  # looked up in the table of mounts, never opened
    "/", "/boot", "/dev/shm", "/etc", "/home", "/opt", "/root", "/run", "/tmp", "/usr", "/usr/lib", "/usr/local",  # noqa: S108
    "/var", "/var/lib", "/var/lib/containerd", "/var/lib/docker", "/var/lib/kubelet", "/var/log", "/var/tmp",  # noqa: S108
)  # fmt: skip
_JOURNAL = re.compile(r"-\d+$")  # the kernel names a journal after its device and inode: sda1-8


def _is_other(device: str, names: frozenset[str]) -> bool:
    """Whether a device of the kernel's log is none of those names."""
    return device not in names and _JOURNAL.sub("", device) not in names


def used_at(device: str, places: Iterable[str] = (), root: Path = Path("/")) -> str:
    """A path that is in use on the file system of ``device`` (as the kernel's log names it); empty without one.

    ``places`` are directories that count, in addition to those of the system and what processes run, have open or
    work in. A mount that is in another mount namespace only is in use there. Without a device, and where the table of
    mounts cannot be read, the answer is "unknown", so that the fault counts.
    """
    proc, sys = str(root / "proc"), str(root / "sys")
    texts = _tables(proc)
    if not device or not texts:
        return "unknown"
    tables = [_places(text, sys) for text in texts]
    on = [{place for place, names in table.items() if not _is_other(device, names)} for table in tables]
    for others in on[1:]:
        if others - on[0]:
            return f"{min(others - on[0])} (in another mount namespace)"
    if not on[0]:
        return ""
    needed = (*_SYSTEM, str(Path.home()), tempfile.gettempdir(), *places)
    return next(
        (path for path in (*needed, *_of_processes(proc)) if mount_point(path, tables[0]) in on[0]), ""
    )


def _tables(proc: str) -> list[str]:
    """The tables of mounts: the own one, and that of each other mount namespace that can be read. Empty without the first."""
    try:
        texts = [Path(proc, "self/mountinfo").read_text(encoding="utf-8", errors="replace")]
    except OSError:
        return []
    seen = {_namespace(f"{proc}/self")}
    for entry in os.listdir(proc):  # noqa: PTH208
        if entry.isdigit() and (space := _namespace(f"{proc}/{entry}")) not in (None, *seen):
            seen.add(space)
            try:
                texts.append(Path(proc, entry, "mountinfo").read_text(encoding="utf-8", errors="replace"))
            except OSError:
                continue
    return texts


def _places(text: str, sys: str) -> dict[str, frozenset[str]]:
    """The names of the devices of a table, by the place that they are mounted at; a later mount hides an earlier one."""
    return {mount.place: frozenset(_names(mount, number, sys)) for mount, number in mounts_in(text)}


def _of_processes(proc: str) -> Iterator[str]:
    """Paths of all processes that may be seen: what they run and have open, and where they work."""
    for process in Path(proc).glob("[0-9]*"):
        links = [process / name for name in ("cwd", "root", "exe")]
        try:
            links += (process / "fd").iterdir()
        except OSError:  # of another user, or gone
            pass
        for link in links:
            try:
                path = os.readlink(link)  # noqa: PTH115 - as text: a file that was deleted has more behind its name
            except OSError:
                continue
            if path.startswith("/"):
                yield path.removesuffix(" (deleted)")


def _namespace(process: str) -> str | None:
    try:
        return os.fspath(Path(process, "ns/mnt").readlink())
    except OSError:
        return None


def _names(mount: Mount, number: str, sys: str) -> list[str]:
    found = [Path(mount.source).resolve().name] if mount.source.startswith("/") else []
    try:
        found.append(Path(sys, "dev/block", number).readlink().name)
    except OSError:
        pass  # not of a block device
    return found
