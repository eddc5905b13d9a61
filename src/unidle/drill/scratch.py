"""What a drill makes on the machine, and its end: also when the drill was killed, the next one sweeps it.

Everything of a drill is in one directory; every process of it has the directory's name in its environment.
"""

from __future__ import annotations

import contextlib
import json
import os
import shutil
import signal
import subprocess
import tempfile
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Final

from unidle.engine.local import cgroups
from unidle.private import check_directory, make_directory

PREFIX: Final = "unidle-drill-"
MARKER: Final = "UNIDLE_DRILL"
_RECORD: Final = "drill.json"
_END_S: Final = 20.0
_LEAVE_S: Final = 3.0
_MEMORY: Final = Path("/dev/shm")  # noqa: S108


class Scratch:
    """The place of one drill. Errors: OSError where no directory can be made."""

    def __init__(self) -> None:
        sweep()
        self.directory = Path(tempfile.mkdtemp(prefix=PREFIX))
        self.name = self.directory.name
        record = {
            "pid": os.getpid(), "ticks": ticks_of(os.getpid()), "lab": self.lab_tag,
            "groups": cgroups.own_hierarchies(),
        }  # fmt: skip
        (self.directory / _RECORD).write_text(json.dumps(record))
        make_directory(self.memory)

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
        clear(self.directory)


def sweep() -> None:
    """Clear what drills left that were killed."""
    for directory in Path(tempfile.gettempdir()).glob(f"{PREFIX}*"):
        try:
            # before anything in it is read: a link, or a directory that another user made, may lead anywhere
            check_directory(directory)
            if directory.lstat().st_uid != os.geteuid():
                continue
            record = json.loads((directory / _RECORD).read_text())
            alive = ticks_of(int(record["pid"])) == record["ticks"]
        except (OSError, ValueError, KeyError, TypeError):
            continue
        if not alive:
            clear(directory)
            _remove_spaces(str(record.get("lab") or ""))


def clear(directory: Path) -> None:
    """End the processes that a drill's name marks; then its mounts, disks, control groups, files."""
    end_processes(directory.name)
    _remove_groups(directory)  # named by directories that may be in a mount
    for place in _mounts(directory):
        _quiet("umount", "--lazy", place)
    for image in directory.rglob("*.img"):
        for line in _quiet("losetup", "--noheadings", "--output", "NAME", "--associated", str(image)).split():
            _quiet("losetup", "--detach", line)
    shutil.rmtree(_memory_of(directory), ignore_errors=True)
    shutil.rmtree(directory, ignore_errors=True)


def end_processes(name: str) -> None:
    """SIGKILL to every process of the drill ``name``; returns when none is left, or after :data:`_END_S`."""
    end = time.monotonic() + _END_S
    while (left := list(marked(name))) and time.monotonic() < end:
        for pid in left:
            with contextlib.suppress(OSError):
                os.kill(pid, signal.SIGKILL)
        time.sleep(0.02)


def _remove_groups(directory: Path) -> None:
    """Remove the control groups of all ranks; what was killed needs a moment to leave them."""
    try:
        record = json.loads((directory / _RECORD).read_text())
        parents = [str(parent) for parents in record["groups"].values() for parent in parents]
    except (OSError, ValueError, KeyError, TypeError, AttributeError):
        return
    names = [cgroups.group_name(str(runs.absolute())) for runs in directory.glob("*/*.d/runs")]
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


def _mounts(directory: Path) -> list[str]:
    lines = Path("/proc/self/mounts").read_text().splitlines()
    places = (line.split()[1].encode().decode("unicode_escape") for line in lines)
    return sorted((place for place in places if Path(place).is_relative_to(directory)), reverse=True)


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
