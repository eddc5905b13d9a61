"""Observes the ranks of running gangs, many times a second and from outside, and reports what they do.

It has its own thread, so that a delay in the controller is not mistaken for a rank that hangs.
A look costs some ten microseconds a rank, most of them for what the caches have lost since the last one; control groups
are read every half second, and so are connections while ranks wait for something.
"""

from __future__ import annotations

import os
import threading
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Final

from unidle.clock import Bell, boottime_ns
from unidle.engine.local.ranks import process_tree
from unidle.engine.local.vitals.process_state import (
    ProcessReader,
    ProcessState,
    quota_of,
    throttled_ns,
    worker_of,
)
from unidle.engine.local.vitals.reachability import Reachability
from unidle.engine.local.vitals.tcp import Connections
from unidle.jobs.vitals import GangVitals, LinkVitals, Pair, RankVitals

LOOK_EVERY_S: Final = 0.1
TELL_EVERY_NS: Final = 500_000_000
_TICK_NS: Final = 1_000_000_000 // os.sysconf("SC_CLK_TCK")
_LINKS_EVERY_NS: Final = 1_900_000_000
_MOSTLY: Final = 0.5
_SOME: Final = 0.25
_KEEP_MOST: Final = 32  # ranks of a gang whose files stay open, five of each
_QUOTA_EVERY: Final = 10  # tells: processes seldom change their group
_WRAPS: Final = ("child", "gone")  # what a process does in whose place another one may work
_WAITS: Final = ("lock", "network", "pipe")

Key = tuple[str, int]


@dataclass(slots=True)
class _Rank:
    pid: int  # of the process that the supervisor started
    worker: ProcessReader
    look: ProcessState
    since_ns: int
    cpu_ns: int = 0
    io_bytes: int = 0
    stuck_ns: int = 0
    looks: int = 0  # since it was last told
    off: int = 0  # of these, how many found it not running
    waits: int = 0  # and how many found it waiting for others
    off_cpu_ns: int = 0  # the worker's time off the CPU then
    quota: str = ""  # where its group's quota can be read
    held_ns: int = 0  # by that quota, so far
    tells: int = 0


@dataclass(slots=True)
class _Gang:
    reach: Reachability
    nodes: Sequence[str]
    connections: Connections
    ranks: dict[int, _Rank] = field(default_factory=dict)
    told_ns: int = 0
    linked_ns: int = 0  # when its connections were read

    def close(self) -> None:
        self.connections.close()
        for rank in self.ranks.values():
            rank.worker.close()


class VitalsWatch:
    """Watches gangs; ``offset_ns`` turns the boot-time clock into the log's time. Starts its thread when needed.

    ``new_reach`` makes what tries the links between nodes, one for each gang. ``outside``: other ranks of a gang may be
    on other machines, so links have the addresses of their ends.
    """

    def __init__(
        self, offset_ns: int, new_reach: Callable[[], Reachability], *, outside: bool = False
    ) -> None:
        self._offset_ns, self._new_reach, self._outside = offset_ns, new_reach, outside
        self._lock = threading.Lock()
        self._gangs: Mapping[Key, tuple[Mapping[int, int], Sequence[str]]] = {}  # replaced, never changed
        self._found: list[GangVitals] = []
        self._thread: threading.Thread | None = None
        self._end = Bell()

    def follow(self, key: Key, pids: dict[int, int], nodes: Sequence[str]) -> None:
        """These are the gang's ranks that are alive, each with the process that its supervisor started.

        ``nodes``: where each rank is.
        """
        if not pids:
            self.forget(key)
            return
        with self._lock:
            self._gangs = {**self._gangs, key: (dict(pids), nodes)}
        if self._thread is None:
            self._thread = threading.Thread(target=self._run, name="unidle-vitals", daemon=True)
            self._thread.start()

    def forget(self, key: Key) -> None:
        with self._lock:
            self._gangs = {other: gang for other, gang in self._gangs.items() if other != key}

    def take(self) -> Sequence[GangVitals]:
        """What was found since the last call, oldest first."""
        with self._lock:
            found, self._found = self._found, []
        return found

    def close(self) -> None:
        self._end.ring()
        if self._thread is not None:
            self._thread.join()
        self._end.close()

    def _run(self) -> None:
        gangs: dict[Key, _Gang] = {}
        while not self._end.wait(LOOK_EVERY_S):
            wanted = self._gangs
            for key in gangs.keys() - wanted.keys():
                gangs.pop(key).close()
            for key, (pids, nodes) in wanted.items():
                if key not in gangs:
                    gangs[key] = _Gang(self._new_reach(), nodes, Connections(outside=self._outside))
                told = _look(key, gangs[key], pids, self._offset_ns)
                if told is not None:
                    with self._lock:
                        self._found.append(told)
                        del self._found[:-256]  # nobody takes them: the controller is gone or stopped
        for gang in gangs.values():
            gang.close()


def _look(key: Key, gang: _Gang, pids: Mapping[int, int], offset_ns: int) -> GangVitals | None:
    """One look at a gang; what to tell of it when that is due."""
    now_ns = boottime_ns()
    for rank in gang.ranks.keys() - pids.keys():
        gang.ranks.pop(rank).worker.close()
    for rank, pid in pids.items():
        known = gang.ranks.get(rank)
        if known is None or known.pid != pid:
            if known is not None:
                known.worker.close()
            eye = ProcessReader(pid, keep=len(pids) <= _KEEP_MOST)
            known = gang.ranks[rank] = _Rank(pid, eye, eye.look(), now_ns)
        look = known.worker.look()
        if look.doing != known.look.doing:
            known.since_ns = now_ns
        known.look = look
        known.looks += 1
        known.off += look.doing != "running"
        known.waits += look.doing in _WAITS
    if now_ns - gang.told_ns < TELL_EVERY_NS:
        return None
    from_ns, gang.told_ns = gang.told_ns or now_ns, now_ns
    return _told(key, gang, from_ns + offset_ns, now_ns, offset_ns)


def _told(key: Key, gang: _Gang, from_ns: int, now_ns: int, offset_ns: int) -> GangVitals:
    links = _links(gang, now_ns, now_ns + offset_ns - from_ns)
    throttled: dict[str, int] = {}
    found = []
    for number, rank in sorted(gang.ranks.items()):
        wraps = rank.worker.pid != rank.pid or rank.look.doing in _WRAPS
        if wraps and (worker := worker_of(rank.pid)) != rank.worker.pid:
            rank.worker.close()
            rank.worker = ProcessReader(worker, keep=len(gang.ranks) <= _KEEP_MOST)
            rank.off, rank.off_cpu_ns = 0, now_ns - rank.worker.on_cpu_ns()
        eyes = _eyes_below(rank)
        seen = [(eye.pid, *eye.state_and_ticks()) for eye in eyes]
        halted = sum(pid != rank.worker.pid and state in "Tt" for pid, state, _ in seen)
        on_disk = any(state == "D" for _, state, _ in seen)
        cpu_ns = sum(ticks for _, _, ticks in seen) * _TICK_NS
        moved = sum(eye.io_bytes() for eye in eyes)
        used_ns, bytes_ = max(cpu_ns - rank.cpu_ns, 0), max(moved - rank.io_bytes, 0)
        rank.cpu_ns, rank.io_bytes = cpu_ns, moved
        mine = (links or {}).get(number, ())
        stuck = any(link.stuck for link in mine)
        rank.stuck_ns = (rank.stuck_ns or now_ns) if stuck else 0
        wakes_ns = rank.look.wakes_ns
        found.append(
            RankVitals(
                number, rank.look.doing, rank.since_ns + offset_ns, used_ns, bytes_, rank.look.timed,
                None if wakes_ns is None else wakes_ns + offset_ns, halted, on_disk,
                rank.stuck_ns + offset_ns if stuck else 0, _waited_ns(rank, now_ns), _held_ns(rank, throttled), mine,
                gang.connections.ends.get(number, ()) if links is not None else (),
            )
        )  # fmt: skip
    return GangVitals(
        *key, from_ns, now_ns + offset_ns, tuple(found), *_reached(gang, found), links_read=links is not None
    )


def _eyes_below(rank: _Rank) -> list[ProcessReader]:
    """On each process of the rank."""
    first = rank.worker.children() if rank.worker.pid == rank.pid else process_tree.children(rank.pid)
    pids = process_tree.below(rank.pid, first)
    return [rank.worker if pid == rank.worker.pid else ProcessReader(pid, keep=False) for pid in pids]


def _links(gang: _Gang, now_ns: int, span_ns: int) -> dict[int, tuple[LinkVitals, ...]] | None:
    """Each rank's links as in the last ``span_ns``; None if they are not read.

    While ranks mostly work, none waits for a link. Then a reading now and then is enough to learn what is usual.
    """
    ranks = gang.ranks.values()
    waits = sum(rank.waits for rank in ranks) >= _SOME * sum(rank.looks for rank in ranks)
    if not waits and now_ns - gang.linked_ns < _LINKS_EVERY_NS and not any(rank.stuck_ns for rank in ranks):
        return None
    idle = all(rank.waits >= _MOSTLY * rank.looks for rank in ranks)
    workers = {number: rank.worker.pid for number, rank in gang.ranks.items()}
    passed_ns, gang.linked_ns = now_ns - (gang.linked_ns or now_ns - span_ns), now_ns
    found = gang.connections.read(workers, passed_ns, idle=idle)
    return {
        rank: tuple(replace(link, busy_ns=link.busy_ns * span_ns // max(passed_ns, 1)) for link in links)
        for rank, links in found.items()
    }


def _reached(gang: _Gang, ranks: Sequence[RankVitals]) -> tuple[tuple[Pair, ...], tuple[Pair, ...]]:
    """Ranks on nodes that reach each other, and on nodes that do not; none while all gets through."""
    stuck = {end for rank in ranks for peer in rank.stuck for end in (rank.rank, peer) if end >= 0}
    if not stuck or not gang.nodes:
        return (), ()
    gang.reach.ask(set(gang.nodes), {gang.nodes[end] for end in stuck})
    first = {node: rank for rank, node in reversed(list(enumerate(gang.nodes)))}
    works, fails = (
        tuple(sorted((min(first[a], first[b]), max(first[a], first[b])) for a, b in links))
        for links in gang.reach.answer()
    )
    return works, fails


def _held_ns(rank: _Rank, throttled: dict[str, int]) -> int:
    """How long the CPU quota of the worker's group has held it since the last call.

    ``throttled``: what was read just now, by file: ranks without a quota of their own mostly share one.
    """
    before = rank.quota
    if rank.tells % _QUOTA_EVERY == 0:
        rank.quota = quota_of(rank.worker.pid)
    rank.tells += 1
    if rank.quota and rank.quota not in throttled:
        throttled[rank.quota] = throttled_ns(rank.quota)
    before_ns, rank.held_ns = rank.held_ns, throttled.get(rank.quota, 0)
    return max(rank.held_ns - before_ns, 0) if rank.quota == before else 0


def _waited_ns(rank: _Rank, now_ns: int) -> int:
    """How long the worker's main thread waited since the last call, for a lock or the network.

    The time in which it neither ran nor was ready to run is exact. The result is the share of that time in which
    looks found it waiting for one of these, and not asleep, stopped or at a disk.
    """
    off_ns = now_ns - rank.worker.on_cpu_ns()
    passed_ns, rank.off_cpu_ns = max(off_ns - rank.off_cpu_ns, 0), off_ns
    off, waits = rank.off, rank.waits
    rank.looks = rank.off = rank.waits = 0
    return passed_ns * waits // off if off else 0
