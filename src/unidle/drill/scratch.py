"""What a drill makes on the machine, and its end: also when the drill was killed, the next one sweeps it.

Everything of a drill is in one directory; every process of it has the directory's name in its environment.
"""

from __future__ import annotations

import contextlib
import ctypes
import json
import os
import shutil
import signal
import stat
import subprocess
import tempfile
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any, Final

from unidle import private
from unidle.engine.local.ranks import cgroups
from unidle.probe.mount_table import unescaped

PREFIX: Final = "unidle-drill-"
MARKER: Final = "UNIDLE_DRILL"
_RECORD: Final = "drill.json"
_END_S: Final = 20.0
_LEAVE_S: Final = 3.0
_MEMORY: Final = Path("/dev/shm")  # noqa: S108
_RECORD_MOST_BYTES: Final = 1 << 16
_MNT_DETACH: Final = 2
_UMOUNT_NOFOLLOW: Final = 8


class Scratch:
    """The place of one drill. Errors: OSError where no directory can be made."""

    def __init__(self) -> None:
        sweep()
        self.directory = Path(tempfile.mkdtemp(prefix=PREFIX))
        # held to the end: what is removed then is this directory, whatever has its name
        self._open: int | None = private.open_folder(str(self.directory), private=True)
        self.name = self.directory.name
        record = {
            "pid": os.getpid(), "ticks": ticks_of(os.getpid()), "lab": self.lab_tag,
            "groups": cgroups.own_hierarchies(),
        }  # fmt: skip
        (self.directory / _RECORD).write_text(json.dumps(record))
        os.close(private.open_folder(str(self.memory), create=True, private=True))

    @property
    def lab_tag(self) -> str:
        """What the namespaces of the drill are called by."""
        return f"ud{os.getpid()}"

    @property
    def memory(self) -> Path:
        """Where copies of checkpoints are held in memory."""
        return _memory_of(self.directory)

    def environment(self) -> dict[str, str]:
        """What all processes of the drill inherit."""
        env = {name: value for name, value in os.environ.items() if name != "UNIDLE_STORE"}
        if "PYTHONPATH" in env:
            env["PYTHONPATH"] = os.pathsep.join(
                str(Path(p).absolute()) for p in env["PYTHONPATH"].split(os.pathsep)
            )
        return env | {MARKER: self.name, "UNIDLE_HOLD_DIR": str(self.memory)}

    def close(self) -> None:
        """End every process of the drill, undo its mounts, remove its files."""
        if self._open is not None:
            clear(self.directory, self._open)
            os.close(self._open)
            self._open = None


def sweep() -> None:
    """Clear what drills left that were killed. What another user made, or may write to, is neither read nor removed."""
    for directory in Path(tempfile.gettempdir()).glob(f"{PREFIX}*"):
        try:
            opened = private.open_folder(str(directory), private=True)
        except OSError:
            continue
        try:
            record = _dead(opened)
            if record is not None:
                clear(directory, opened)
                _remove_spaces(str(record.get("lab") or ""))
        finally:
            os.close(opened)


def _dead(opened: int) -> dict[str, Any] | None:
    """The record of a drill that was killed; None of one that runs, or without a record."""
    try:
        record = _record(opened)
        return record if ticks_of(int(record["pid"])) != record["ticks"] else None
    except (OSError, ValueError, KeyError, TypeError):
        return None


def clear(directory: Path, opened: int) -> None:
    """End the processes that a drill's name marks; then its mounts, disks, control groups, files.

    ``opened``: the descriptor of ``directory``. Files are found and removed through it: since it was checked, another
    directory may have got the name.
    """
    end_processes(directory.name)
    _remove_groups(directory, opened)  # named by directories that may be in a mount
    _unmount(opened)
    for image in _images(opened):
        for line in _quiet("losetup", "--noheadings", "--output", "NAME", "--associated", image).split():
            _quiet("losetup", "--detach", line)
    memory = _memory_of(directory)
    with (
        contextlib.suppress(OSError),
        private.folder(str(memory)) as held,
    ):  # of another user: not this drill's
        _remove(memory, held)
    _remove(directory, opened)


def _remove(directory: Path, opened: int) -> None:
    """Remove all that is in an open directory, and its name if it still is the name of this one."""
    for name in os.listdir(opened):
        # both never follow a link at the name, nor below it
        with contextlib.suppress(OSError):
            if stat.S_ISDIR(os.lstat(name, dir_fd=opened).st_mode):
                shutil.rmtree(name, ignore_errors=True, dir_fd=opened)
            else:
                os.unlink(name, dir_fd=opened)
    with contextlib.suppress(OSError):
        if os.path.samestat(directory.lstat(), os.fstat(opened)):
            directory.rmdir()


def end_processes(name: str) -> None:
    """SIGKILL to every process of the drill ``name``; returns when none is left, or after :data:`_END_S`."""
    end = time.monotonic() + _END_S
    while (left := list(marked(name))) and time.monotonic() < end:
        for pid in left:
            with contextlib.suppress(OSError):
                os.kill(pid, signal.SIGKILL)
        time.sleep(0.02)


def _record(opened: int) -> dict[str, Any]:
    """The record of a drill. Errors: OSError, also where it is a link or another user's; ValueError; TypeError."""
    found = json.loads(private.read(_RECORD, opened, _RECORD_MOST_BYTES))
    if not isinstance(found, dict):
        raise TypeError("the record of a drill is a JSON object")
    return found


def _remove_groups(directory: Path, opened: int) -> None:
    """Remove the control groups of all ranks; what was killed needs a moment to leave them."""
    try:
        record = _record(opened)
        parents = [str(parent) for parents in record["groups"].values() for parent in parents]
    except (OSError, ValueError, KeyError, TypeError, AttributeError):
        return
    place = _through(opened)
    runs = [directory.absolute() / found.relative_to(place) for found in place.glob("*/*.d/runs")]
    names = [cgroups.group_name(str(path)) for path in runs]
    left = [f"{parent}/{name}" for parent in parents for name in names]
    end = time.monotonic() + _LEAVE_S
    while (left := [path for path in left if not cgroups.remove_tree(path)]) and time.monotonic() < end:
        time.sleep(0.05)


def marked(name: str) -> Iterator[int]:
    """Living processes of the drill ``name``, this one excepted."""
    wanted = f"{MARKER}={name}".encode()
    for entry in Path("/proc").iterdir():
        if entry.name.isdigit() and int(entry.name) != os.getpid():
            with contextlib.suppress(OSError):
                if wanted in (entry / "environ").read_bytes().split(b"\0"):
                    yield int(entry.name)


def ticks_of(pid: int) -> int | None:
    """When a process started, in clock ticks since boot; None if it does not run, or is a zombie."""
    try:
        fields = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
    except OSError:
        return None
    return None if fields[0] == "Z" else int(fields[19])


def tree(pid: int) -> list[int]:
    """A process and all below it."""
    found = [pid]
    with contextlib.suppress(OSError):
        for task in Path(f"/proc/{pid}/task").iterdir():
            for child in (task / "children").read_text().split():
                found += tree(int(child))
    return found


def _memory_of(directory: Path) -> Path:
    return (_MEMORY if os.access(_MEMORY, os.W_OK) else directory) / f"{directory.name}-memory"


def _through(opened: int) -> Path:
    """A path of an open directory that no rename can lead elsewhere; also for children of this process."""
    return Path(f"/proc/{os.getpid()}/fd/{opened}")


def _unmount(opened: int) -> None:
    """Take the mounts below an open directory away, the innermost first."""
    place = _through(opened).readlink()  # as the kernel names it now
    lines = Path("/proc/self/mounts").read_text().splitlines()
    mounts = [Path(unescaped(line.split()[1])) for line in lines]
    libc = ctypes.CDLL(None, use_errno=True)
    for mount in sorted((path for path in mounts if path.is_relative_to(place)), reverse=True):
        libc.umount2(os.fsencode(_through(opened) / mount.relative_to(place)), _MNT_DETACH | _UMOUNT_NOFOLLOW)


def _images(opened: int) -> list[str]:
    """The images of disks below an open directory; none of a link."""
    return [
        str(_through(opened) / inside / name)
        for inside, _, names, at in os.fwalk(".", dir_fd=opened)
        for name in names
        if name.endswith(".img") and stat.S_ISREG(os.lstat(name, dir_fd=at).st_mode)
    ]


def _remove_spaces(tag: str) -> None:
    if tag.startswith("ud"):
        spaces = Path("/run/netns")
        for entry in list(spaces.iterdir()) if spaces.is_dir() else ():
            if entry.name.startswith(f"{tag}-"):
                _quiet("ip", "netns", "del", entry.name)


def _quiet(*words: str) -> str:
    try:
        return subprocess.run(
            words, capture_output=True, text=True, check=False, stdin=subprocess.DEVNULL
        ).stdout
    except FileNotFoundError:
        return ""
