"""Holders of copies in memory: one process per node of a gang that requests them, outside of its ranks.

They outlive the gang's attempts and this engine, and end with the job. A file per job lists them, so that
the next engine can adopt them. The copies are files, so that a new holder can replace one that was killed.
"""

from __future__ import annotations

import os
import signal
import time
from collections.abc import Collection, Mapping
from contextlib import suppress
from dataclasses import dataclass, field
from pathlib import Path
from typing import Final

from unidle.boot import boottime_ns
from unidle.checkpoint.holder import hold_paths, wire
from unidle.checkpoint.layout import INNER
from unidle.engine.local.ranks import netns, process_tree, rundir, side_process
from unidle.engine.local.ranks.side_process import SideProcess
from unidle.engine.protocol import StartGang

_LOOK_EVERY_NS: Final = 200_000_000
_AGAIN_NS: Final = 200_000_000  # after a holder was killed; doubled with each further time
_AGAIN_MOST_NS: Final = 60_000_000_000
_LASTED_NS: Final = 60_000_000_000
_FAREWELL_S: Final = 3.0


@dataclass(slots=True)
class _Holder:
    host: str
    space: str
    pid: int = 0
    ticks: int | None = None
    process: SideProcess | None = None  # where this engine started it
    began_ns: int = 0
    again_ns: int | None = None  # when to start it again; None: when the next attempt starts
    tries: int = 0

    @property
    def alive(self) -> bool:
        if self.process is not None:
            return self.process.alive
        return (
            self.pid > 0 and process_tree.ticks_of(self.pid) == self.ticks and process_tree.is_live(self.pid)
        )


@dataclass(slots=True)
class _JobHolders:
    storage: str
    nodes: dict[str, _Holder] = field(default_factory=dict)
    ending: bool = False


class MemoryHolders:
    """The holders of one engine's jobs; ``root`` is its run root."""

    def __init__(self, root: Path) -> None:
        self._folder = root / rundir.HOLDERS
        self._jobs: dict[str, _JobHolders] = {}
        self._looked_ns = 0

    def ensure(self, command: StartGang, where: Mapping[str, tuple[str, str]]) -> None:
        """See that each node of the gang has one; ``where``: address and network namespace of each node."""
        if not command.spec.checkpoint_memory or command.spec.checkpoint_path is None:
            return
        path = os.path.join(os.path.abspath(command.spec.workdir), command.spec.checkpoint_path)
        job = self._jobs.get(command.job) or self._recorded(command.job) or _JobHolders(path)
        self._jobs[command.job] = job
        now_ns, begun = boottime_ns(), False
        for place in command.places:
            host, space = where[place.node]
            holder = job.nodes.setdefault(place.node, _Holder(host, space))
            if not holder.alive:
                self._start(command.job, place.node, job.storage, holder, now_ns)
                begun = True
        if begun:
            self._record(command.job, job)

    def tend(self) -> None:
        """Start again what was killed, and clear up after jobs that ended. Looks a few times a second."""
        now_ns = boottime_ns()
        if not self._jobs or now_ns < self._looked_ns + _LOOK_EVERY_NS:
            return
        self._looked_ns = now_ns
        for name, job in list(self._jobs.items()):
            if job.ending:
                if not any(holder.alive for holder in job.nodes.values()):
                    self._remove(name, job)
                continue
            for node, holder in job.nodes.items():
                self._tend_one(name, node, job, holder, now_ns)

    def finish(self, job: str) -> None:
        """The job is over: its holders write what is on its way to storage, and go with their copies."""
        known = self._jobs.get(job) or self._recorded(job)
        if known is None:
            return
        self._jobs[job] = known
        known.ending = True
        for holder in known.nodes.values():
            if holder.alive:
                with suppress(ProcessLookupError):
                    os.kill(holder.pid, signal.SIGUSR1)

    def keep(self, jobs: Collection[str]) -> None:
        """Finish what an earlier engine left of other jobs."""
        try:
            names = [
                name.removesuffix(".json") for name in os.listdir(self._folder) if name.endswith(".json")
            ]
        except OSError:
            return  # no job ever asked for one
        for name in names:
            if name not in jobs:
                self.finish(name)

    def close(self) -> None:
        """Wait a moment for the holders that are to end; the others continue."""
        end_s = time.monotonic() + _FAREWELL_S
        while any(job.ending for job in self._jobs.values()) and time.monotonic() < end_s:
            self._looked_ns = 0
            self.tend()
            time.sleep(0.02)

    # ---- one holder

    def _tend_one(self, name: str, node: str, job: _JobHolders, holder: _Holder, now_ns: int) -> None:
        if holder.alive:
            return
        if holder.pid:
            by_itself = _ended_in_order(job.storage, node, holder)
            holder.pid = 0
            if now_ns - holder.began_ns > _LASTED_NS:
                holder.tries = 0
            wait_ns = min(_AGAIN_NS << min(holder.tries, 20), _AGAIN_MOST_NS)
            holder.again_ns = None if by_itself else now_ns + (wait_ns if holder.tries else 0)
        if holder.again_ns is not None and now_ns >= holder.again_ns:
            self._start(name, node, job.storage, holder, now_ns)
            self._record(name, job)

    def _start(self, name: str, node: str, storage: str, holder: _Holder, now_ns: int) -> None:
        arguments = [
            "-m", "unidle.checkpoint.holder", "--storage", storage, "--node", node, "--host", holder.host, "--foreground",
        ]  # fmt: skip
        errors = str(self._folder / f"{name}.err")
        holder.began_ns, holder.again_ns = now_ns, None
        holder.tries += 1
        try:
            self._folder.mkdir(mode=0o700, parents=True, exist_ok=True)
            holder.process = netns.within(
                holder.space, lambda: side_process.start(arguments, wire.environment(), errors=errors)
            )
            holder.pid = holder.process.pid
            holder.ticks = process_tree.ticks_of(holder.pid)
        except OSError:
            holder.process, holder.pid = None, 0  # ranks start one of their own, or say why they cannot
            holder.again_ns = now_ns + min(_AGAIN_NS << min(holder.tries, 20), _AGAIN_MOST_NS)

    # ---- what the next engine finds

    def _record(self, name: str, job: _JobHolders) -> None:
        nodes = {
            node: {"pid": h.pid, "ticks": h.ticks, "host": h.host, "netns": h.space}
            for node, h in job.nodes.items()
        }
        with suppress(OSError):  # a full disk: then they end by themselves, some time after the last rank
            rundir.write_json(str(self._folder / f"{name}.json"), {"storage": job.storage, "nodes": nodes})

    def _recorded(self, name: str) -> _JobHolders | None:
        found = rundir.read_json(str(self._folder / f"{name}.json"))
        if found is None or not isinstance(nodes := found.get("nodes"), dict):
            return None
        known = {
            str(node): _Holder(str(h["host"]), str(h["netns"]), int(h["pid"]), h["ticks"])
            for node, h in nodes.items()
        }
        return _JobHolders(str(found["storage"]), known)

    def _remove(self, name: str, job: _JobHolders) -> None:
        """What a holder that did not end cleanly leaves, and the record."""
        theirs = {
            node
            for other in self._jobs.values()
            if other.storage == job.storage and not other.ending
            for node in other.nodes
        }  # of another job in the same directory
        for node in job.nodes:
            hold = _hold_of(job.storage, node)
            if hold is not None and node not in theirs:
                hold_paths.clear(hold)
                with suppress(OSError):
                    os.unlink(_published(job.storage, hold))
        for ending in ("json", "err"):
            (self._folder / f"{name}.{ending}").unlink(missing_ok=True)
        del self._jobs[name]


def _hold_of(storage: str, node: str) -> str | None:
    """Where a node's copies are; None where there never were any."""
    try:
        identity = hold_paths.known_id(storage)
    except OSError:
        return None
    return wire.hold_directory(storage, node, identity)


def _published(storage: str, hold: str) -> str:
    return os.path.join(storage, INNER, "holders", os.path.basename(hold) + ".json")


def _ended_in_order(storage: str, node: str, holder: _Holder) -> bool:
    """Whether a holder that is gone had nothing to do any more, rather than being killed: it then removed its addresses.

    The one next to its copies is written first.
    """
    if holder.process is not None:
        return holder.process.code == 0
    places_of = [str(path) for path in Path(storage, INNER, "holders").glob("*.json")]
    if (hold := _hold_of(storage, node)) is not None:
        places_of.append(os.path.join(hold, wire.ADDRESS))
    said = [rundir.read_json(path) for path in places_of]
    return not any(one is not None and one.get("pid") == holder.pid for one in said)
