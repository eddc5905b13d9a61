"""``cluster.json``: what a cluster consists of, and which processes it started. Written before each thing is made."""

from __future__ import annotations

import contextlib
import fcntl
import json
import os
import threading
from collections.abc import Iterator
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any

from kube_cluster.layout import OWN_ENTRIES, Layout
from unidle import atomic
from unidle.errors import BadInput, UnidleError


class InUse(UnidleError):
    """The directory has a cluster already, or another command works on it."""

    exit_code = 4


@dataclass(frozen=True, slots=True)
class Process:
    """One process of the cluster, which runs ``words`` in the namespaces of ``node``.

    ``start`` (clock ticks since boot) tells it from a later one with the same number.
    """

    name: str
    node: str
    pid: int
    start: int
    words: tuple[str, ...] = ()

    @property
    def alive(self) -> bool:
        return start_of(self.pid) == self.start


def start_of(pid: int) -> int:
    """When a process started, in clock ticks since boot; 0 for one that has ended.

    One that was killed still has its ports while a thread of it is left, also where its first thread has ended.
    """
    try:
        after_name = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
        threads = len(list(Path(f"/proc/{pid}/task").iterdir()))
    except OSError:
        return 0
    return 0 if after_name[0] in "ZX" and threads <= 1 else int(after_name[19])


@dataclass(slots=True)
class State:
    """What is in the file. Threads may add processes at once."""

    folder: str
    octet: int = 0
    nodes: int = 0
    kwok: int = 0
    ready: bool = False
    processes: dict[str, Process] = field(default_factory=dict)

    @property
    def layout(self) -> Layout:
        return Layout(Path(self.folder), self.octet)

    def write(self) -> None:
        with atomic.replaced(self.layout.state) as file:
            file.write((json.dumps(asdict(self), indent=1) + "\n").encode())

    def add(self, process: Process) -> None:
        with _LOCK:
            self.processes[process.name] = process
            self.write()


_LOCK = threading.Lock()


def read(layout: Layout) -> State | None:
    """The cluster of a directory; None where there is none. Errors: BadInput for a file that is no such state."""
    try:
        told: dict[str, Any] = json.loads(layout.state.read_bytes())
        processes = {
            name: Process(**{**process, "words": tuple(process["words"])})
            for name, process in told.pop("processes").items()
        }
        return State(**told, processes=processes)
    except FileNotFoundError:
        return None
    except (ValueError, TypeError, KeyError) as error:
        raise BadInput(
            f"is no state of a cluster: {error}",
            field=str(layout.state),
            remedy="scripts/kube down removes it with all that the cluster made",
        ) from error


def running(layout: Layout) -> State:
    """The cluster of a directory. Errors: BadInput where there is none."""
    if (found := read(layout)) is None:
        raise BadInput(
            "has no cluster", field="--dir", value=str(layout.folder), remedy="start one: scripts/kube up"
        )
    return found


def claim(layout: Layout, nodes: int, kwok: int) -> State:
    """A new cluster's state in its directory, which has to be new, empty, or what ``down`` left.

    Errors: InUse where a cluster is in it, BadInput where other files are.
    """
    if layout.state.exists():
        raise InUse(
            "this directory has a cluster already",
            field="--dir",
            value=str(layout.folder),
            remedy="run scripts/kube down first, or choose another directory",
        )
    if others := others_in(layout):
        raise BadInput(
            f"the directory of a cluster has to be new or empty, and it has {others[0]}",
            field="--dir",
            value=str(layout.folder),
            remedy="choose another directory",
        )
    return State(str(layout.folder), nodes=nodes, kwok=kwok)


def others_in(layout: Layout) -> list[str]:
    """Names in the directory that are not of a cluster."""
    names = {entry.name for entry in layout.folder.iterdir()} - set(OWN_ENTRIES)
    return sorted(name for name in names if not is_draft(name))


def is_draft(name: str) -> bool:
    """Whether a file is a state that was not written to its end, as its writer was killed."""
    return name.startswith(".cluster.json.") and name.endswith(".tmp")


@contextlib.contextmanager
def locked(layout: Layout) -> Iterator[None]:
    """Nobody else works on the cluster meanwhile. Errors: InUse where somebody does."""
    descriptor = os.open(layout.folder / "lock", os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600)
    try:
        fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        os.close(descriptor)
        raise InUse(
            "another scripts/kube up or down works on this cluster",
            field="--dir",
            value=str(layout.folder),
            remedy="wait for it, or end it",
        ) from None
    try:
        yield
    finally:
        os.close(descriptor)
