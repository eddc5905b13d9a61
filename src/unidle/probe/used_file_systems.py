"""Whether the file system on a block device is in use: by the system, by named directories, or by any process.

Only the tables of the kernel are read, never the file system itself: it may have failed, and a read could hang.
"""

from __future__ import annotations

import os
import re
import tempfile
from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import Final

from unidle.fleet.pci import read_text
from unidle.probe.mounts import mounted

_SYSTEM: Final = (  # looked up in the table of mounts, never opened
    "/", "/boot", "/dev/shm", "/etc", "/home", "/opt", "/root", "/run", "/tmp", "/usr", "/usr/lib", "/usr/local",  # noqa: S108
    "/var", "/var/lib", "/var/lib/containerd", "/var/lib/docker", "/var/lib/kubelet", "/var/log", "/var/tmp",  # noqa: S108
)  # fmt: skip
_JOURNAL: Final = re.compile(r"-\d+$")  # the kernel names a journal by its device and the number of its inode
_NUMBER: Final = re.compile(r"\d+:\d+")


def used_at(device: str, places: Iterable[str] = (), root: Path = Path("/")) -> str:
    """A path that is in use on the file system of ``device`` (as the kernel's log names it); empty without one.

    ``places`` are directories that count, besides those of the system and what processes have open, run or work in.
    Without a device, and where the table of mounts cannot be read, the answer is "unknown", so that the fault counts.
    """
    table = read_text(root / "proc/self/mountinfo")
    if not device or not table:
        return "unknown"
    mounts = dict(mounted(table))
    own = {place for place, one in mounts.items() if _is_on(device, one, root)}
    if not own:
        return ""
    needed = (*_SYSTEM, str(Path.home()), tempfile.gettempdir(), *places)
    for path in (*needed, *_of_processes(root)):
        if _mount_above(path, mounts) in own:
            return path
    return ""


def _is_on(device: str, mount: tuple[str, str], root: Path) -> bool:
    """Whether a mount (its number, and what is mounted) is of the device, or of the one that has this journal."""
    number, source = mount
    for name in dict.fromkeys((device, _JOURNAL.sub("", device))):
        told = read_text(root / "sys/class/block" / name.replace("/", "!") / "dev")
        if (_NUMBER.fullmatch(told) and told == number) or source == f"/dev/{name}":
            return True
    return False


def _mount_above(path: str, mounts: Iterable[str]) -> str:
    """The mount point that holds ``path`` (absolute, without links)."""
    known = mounts if isinstance(mounts, dict) else set(mounts)
    while path not in known and path.strip("/"):
        path = path.rpartition("/")[0]
    return path or "/"


def _of_processes(root: Path) -> Iterator[str]:
    """Paths of all processes that may be seen: where they work, what they run, and what they have open."""
    for process in (root / "proc").glob("[0-9]*"):
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
