"""First fit, best fit and spread: gangs in queue order on a first, a tightest or an emptiest node. For replays.

Best fit takes the node on which the fewest devices are left over, which keeps large holes. Spread takes
the node with the most, so that few jobs share a node. A gang that no node holds whole gets the fewest
nodes: those with the most room, and for its last ranks the tightest node that holds them (best fit) or
again the emptiest (spread). First fit takes the first nodes that hold it together. Ties are broken by
the order of the fleet.

What a rank needs of its node is always respected: devices that the job may use, CPU and memory, labels and
taints. Wishes about the network, queues and preemption are ignored: these policies are the baselines of
the policy ``unidle``.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from typing import TypeAlias

import numpy as np

from unidle.jobs import JobSpec, Reason
from unidle.place.explain import GangRefusal
from unidle.place.gang.fit import GangFit, GangRound
from unidle.place.network.constraint import GangPlan
from unidle.place.network.tree import Ints
from unidle.place.nodes.free import Access
from unidle.place.nodes.rank_class import RankClass
from unidle.place.protocol import Plan
from unidle.place.slices.fit import SliceFit
from unidle.place.snapshot import SessionCache
from unidle.view.jobs import JobView
from unidle.view.state import View
from unidle.words import counted

Chosen: TypeAlias = list[tuple[int, int]]  # nodes by their order in the fleet, and how many ranks go there
Choose: TypeAlias = Callable[[Ints, Ints, int], Chosen]
"""Free devices and room for ranks, both (N,) in the fleet's order, and the number of ranks; empty where there is no room."""


class NodeOrder:
    """A gang policy that chooses nodes one by one (see the module). Use ``first_fit``, ``best_fit`` or ``spread``."""

    def __init__(self, code: str, first: str, choose: Choose) -> None:
        """``code`` is that of its reasons; ``first`` as in "first node n3 with 2 free"."""
        self._code, self._first, self._choose = code, first, choose
        self._cache: SessionCache | None = None

    def decide(self, view: View, now_ns: int) -> Plan:
        cache = self._on(view)
        try:
            return self._round(cache, view).decide(now_ns)
        finally:
            cache.log.rollback()

    def why_not(self, view: View, spec: JobSpec) -> Reason | None:
        round_ = self._round(self._on(view), view)
        if isinstance(round_.part("", spec), SliceFit):
            return None
        answer = round_.fit(spec)
        return answer.because if isinstance(answer, GangRefusal) else None

    def ever(self, view: View, spec: JobSpec) -> bool:
        return self._round(self._on(view), view).ever(spec)

    def _on(self, view: View) -> SessionCache:
        cache = self._cache
        if cache is None or not cache.follow(view):
            cache = self._cache = SessionCache(view, keeps_back=False)
        return cache

    def _round(self, cache: SessionCache, view: View) -> PeerRound:
        return PeerRound(cache, view, self._choose, (self._code, self._first))


class PeerRound(GangRound):
    """A round in which nodes are chosen one by one; ``within``: only so many devices of each, (N,), topological."""

    within: Ints | None = None

    def __init__(self, cache: SessionCache, view: View, choose: Choose, words: tuple[str, str]) -> None:
        super().__init__(cache.classes, cache.slices, view)
        self._choose, self._words = choose, words

    def find(
        self,
        spec: JobSpec,
        job: JobView | None = None,  # noqa: ARG002
        access: Access | None = None,  # noqa: ARG002
    ) -> GangFit | None:
        for pool in self._free_slices.pools.vendors(spec):
            rank_class = self.rank_class(spec, pool)
            room = rank_class.rooms.room
            if self.within is not None:
                room = np.minimum(room, np.maximum(self.within, 0) // max(rank_class.each, 1))
            if int(room.sum()) >= spec.ranks:
                return self._fit(rank_class, spec.ranks, room)
        return None

    def refusal(self, spec: JobSpec, job: str = "", access: Access | None = None) -> GangRefusal:  # noqa: ARG002
        return super().refusal(_bare(spec))

    def ever(self, spec: JobSpec) -> bool:
        pools = self._free_slices.pools.vendors(spec)
        held = any(int(self.rank_class(spec, pool).whole.room.sum()) >= spec.ranks for pool in pools)
        return held or self.ever_in_parts(spec)

    def _fit(self, rank_class: RankClass, ranks: int, rooms: Ints) -> GangFit:
        place = self._free_slices.by_fleet
        room, free = rooms[place], rank_class.left()[place]
        chosen = np.array(self._choose(free, room, ranks), np.int64)
        nodes, counts = place[chosen[:, 0]], chosen[:, 1]
        ascending = np.argsort(nodes)
        node_of_rank = np.repeat(np.argsort(ascending), counts)
        because = self._because(rank_class, nodes, ranks)
        vertex = -1 if len(nodes) == 1 else 0  # the whole fleet: which tier holds it plays no part
        plan = GangPlan(nodes[ascending], counts[ascending], vertex, 0, None, (), because)
        return GangFit(rank_class, plan, node_of_rank, None)

    def _because(self, rank_class: RankClass, nodes: Ints, ranks: int) -> Reason:
        code, first = self._words
        devices, name = ranks * rank_class.each, self._free_slices.nodes[int(nodes[0])].id
        where = f"node {name}" if len(nodes) == 1 else f"{counted(len(nodes), 'node')} from {name} on"
        return Reason(code, f"{first} {where} with {devices} free", {"nodes": len(nodes), "devices": devices})


def _bare(spec: JobSpec) -> JobSpec:
    """The job without its wishes about the network."""
    if spec.topology is None and spec.layout is None:
        return spec
    return replace(spec, topology=None, layout=None)


def first_fit() -> NodeOrder:
    """The first node that holds the gang."""
    return NodeOrder("first_fit", "first", first_nodes)


def best_fit() -> NodeOrder:
    """The node with the least left over first."""
    return NodeOrder("best_fit", "tightest", _tightest)


def spread() -> NodeOrder:
    """The node with the most free first."""
    return NodeOrder("spread", "emptiest", _roomiest)


def first_nodes(free: Ints, room: Ints, ranks: int) -> Chosen:  # noqa: ARG001  (one signature for all)
    """The first node that holds the gang, else the first nodes that hold it together."""
    whole = room >= ranks
    at = int(whole.argmax())
    return [(at, ranks)] if whole[at] else _in_turn(np.flatnonzero(room), room, ranks)


def _tightest(free: Ints, room: Ints, ranks: int) -> Chosen:
    whole = np.flatnonzero(room >= ranks)
    if len(whole):
        return [(int(whole[free[whole].argmin()]), ranks)]
    some = np.flatnonzero(room)
    order = some[np.lexsort((some, free[some], -room[some]))]
    chosen = _in_turn(order, room, ranks)
    # the last ranks go on the tightest node that holds them, among those not taken
    left, rest = chosen[-1][1], order[len(chosen) - 1 :]
    rest = np.sort(rest[room[rest] >= left])
    return [*chosen[:-1], (int(rest[free[rest].argmin()]), left)]


def _roomiest(free: Ints, room: Ints, ranks: int) -> Chosen:
    whole = np.flatnonzero(room >= ranks)
    if len(whole):
        return [(int(whole[free[whole].argmax()]), ranks)]
    some = np.flatnonzero(room)
    return _in_turn(some[np.argsort(-free[some], kind="stable")], room, ranks)


def _in_turn(order: Ints, room: Ints, ranks: int) -> Chosen:
    """As many ranks on each node as it has room for, in this order of nodes, until all have a place."""
    rooms = room[order]
    reached = rooms.cumsum()
    last = int(np.searchsorted(reached, ranks))
    some: Chosen = list(zip(order[:last].tolist(), rooms[:last].tolist(), strict=True))
    return [*some, (int(order[last]), ranks - int(reached[last] - rooms[last]))]
