"""What befalls simulated hosts at given times, in the words of an engine's reports: each comes true, then is reported."""

from __future__ import annotations

import heapq
from dataclasses import replace
from itertools import count

from unidle.engine.protocol import Disrupted, JobArrived, Landed, NodesChanged, Silent, Taken
from unidle.engine.sim.contention import Key
from unidle.fleet import Fleet

Befalls = NodesChanged | Silent | Disrupted | Landed | Taken | JobArrived


class HostReports:
    """Reports in the order of their times; ``silent`` has the ranks that do not answer, each with how many of its marks were reported."""

    def __init__(self) -> None:
        self._heap: list[tuple[int, int, Befalls]] = []
        self._order = count()
        self.told: dict[object, Befalls] = {}  # by what it is of, the last
        self.silent: dict[tuple[Key, int], int] = {}

    def add(self, at_ns: int, what: Befalls) -> None:
        heapq.heappush(self._heap, (at_ns, next(self._order), what))

    @property
    def next_ns(self) -> int | None:
        """When the next one is due."""
        return self._heap[0][0] if self._heap else None

    def take(self) -> Befalls:
        """The next one; it is reported again to a controller that takes over."""
        what = heapq.heappop(self._heap)[2]
        if not isinstance(what, NodesChanged):
            self.told.pop(of := _is_of(what), None)
            self.told[of] = what
        return what

    def forget(self, key: Key) -> None:
        """The attempt has ended."""
        self.silent = {rank: marks for rank, marks in self.silent.items() if rank[0] != key}
        ended = (
            of
            for of, one in self.told.items()
            if isinstance(one, Silent | Disrupted | Landed) and (one.job, one.attempt) == key
        )
        for of in list(ended):
            del self.told[of]


def _is_of(what: Befalls) -> object:
    """What the report is of; the last one of it counts."""
    match what:
        case Taken():
            return "taken", what.node
        case Silent():
            return "silent", what.job, what.attempt, what.ranks
        case Landed():
            return "landed", what.job, what.attempt, what.rank
        case Disrupted():
            return "disrupted", what.job, what.attempt
        case JobArrived():
            return "arrived", what.source, what.identity
        case NodesChanged():
            return "nodes"


def with_nodes(fleet: Fleet, change: NodesChanged) -> Fleet:
    """The fleet with nodes put and gone."""
    put = {node.id: node for node in change.put}
    nodes = [put.pop(node.id, node) for node in fleet.nodes]
    return replace(fleet, nodes=tuple(n for n in (*nodes, *put.values()) if n.id not in change.gone))
