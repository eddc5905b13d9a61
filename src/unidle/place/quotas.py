"""Gangs under queues and quotas: fairness, levels, reclaim and backfill on top of the network.

Whose turn it is, what a queue may use, who is stopped for whom and who waits for a planned start is
decided by ``place.queue``; where a gang goes, by ``place.gang``. This is where the two meet: nodes are
numbered per kind of device, one kind after the other, so that a round sees one row of nodes.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass

import numpy as np

from unidle.fleet import Device
from unidle.jobs import Reason
from unidle.place.books import Books
from unidle.place.constraint import GangPlan
from unidle.place.ground import Ground, RankClass
from unidle.place.queue.backfill import Backfill
from unidle.place.queue.fair import QueueShare
from unidle.place.queue.model import Demand, Fits, Ints
from unidle.place.queue.round import Round, Rules, Start, decide
from unidle.place.queue.victims import Mask
from unidle.place.sharing import Given, SharingRound
from unidle.view.state import View


@dataclass(frozen=True, slots=True)
class Placement:
    """A job of this round that starts: its class, its plan, and why now."""

    job: str
    rank_class: RankClass | None
    plan: GangPlan | None
    because: Reason
    given: Given | None = None  # parts of devices that are cut on demand


class QuotaRound:
    """One round over all queues. Pure: the view is only read, and the ground left as it was."""

    def __init__(self, ground: Ground, view: View, now_ns: int, sharing: SharingRound | None = None) -> None:
        self._sharing = sharing
        self._given: dict[str, Given] = {}
        self._ground, self._view, self._now_ns = ground, view, now_ns
        if not isinstance(ground.memo, Books):
            ground.memo = Books(ground, now_ns)
        self._books = books = ground.memo
        books.follow(view, now_ns)
        self.kinds, self._width, self.tree, self.shares = books.kinds, books.width, books.tree, books.shares
        self.cluster, self.waiting, self.never = books.cluster, books.waiting, books.never
        self._plans: dict[str, GangPlan] = {}
        # room is reserved for the first that wait where all run times are known; else only for those that starve
        self._rules = Rules(Backfill(heads=int(books.all_known)))

    def decide(self, on_start: Callable[[Placement], None]) -> Round:
        """Who starts, who is stopped, who waits. Nothing of it stays in the books."""
        domains = [(k * self._width, (k + 1) * self._width) for k in range(len(self.kinds))]
        unjudged = self._view.unjudged
        try:
            return decide(
                self.cluster, self.waiting, self._fits, self._now_ns, self._rules, capacity=self._books.capacity,
                domains_of=lambda demand: self._domains(demand) or domains, allowed_of=self._allowed,
                ready=self._ready, at_once=self._at_once, on_start=lambda start: on_start(self._placement(start)),
                wants_time=unjudged.__contains__, settle=False,
            )  # fmt: skip
        finally:
            self.cluster.journal.back_to(0)

    def node(self, index: int) -> str:
        return self._ground.nodes[index % self._width].id

    def kind_of(self, job: str) -> str:
        return self._class(job).kind

    def report(self) -> tuple[QueueShare, ...]:
        return self.shares.report()

    def _placement(self, start: Start) -> Placement:
        if start.job in self._given:
            return Placement(start.job, None, None, start.because, self._given[start.job])
        return Placement(start.job, self._class(start.job), self._plans[start.job], start.because)

    def _class(self, job: str) -> RankClass:
        rank_class = self._books.families[job].rank_class
        assert rank_class is not None  # who can never start does not wait in line
        return rank_class

    # -- asked by the round ----------------------------------------------------------------------

    def _at_once(self, demand: Demand, room: Ints | None) -> Mapping[int, int] | None:
        """Where it could start now: on devices, CPU and memory that are free and kept for nobody else."""
        self._given.pop(demand.job, None)
        if self._books.families[demand.job].rank_class is not None:
            found = self._on_declared(demand, room)
            if found is not None or demand.ranks:
                return found
        return self._in_parts(demand, room)

    def _in_parts(self, demand: Demand, room: Ints | None) -> Mapping[int, int] | None:
        """The devices that it would open for parts, on which nothing is kept for others; none where it joins."""
        family = self._books.families[demand.job]
        if self._sharing is None or family.parts is None:
            return None

        def at(device: Device) -> int:
            return self.kinds.index(device.kind) * self._width + self._ground.place[device.node]

        def may_open(device: Device, count: int) -> bool:
            index = at(device)
            return int(self.cluster.free[index]) >= count and (room is None or int(room[index]) >= count)

        given = self._sharing.find(demand.job, family.parts, may_open, most_ppm=family.most_ppm)
        if not isinstance(given, Given):
            return None
        self._given[demand.job] = given
        devices = given.devices.values()
        return {at(device): given.opened[device.node] for device in devices if device.node in given.opened}

    def _on_declared(self, demand: Demand, room: Ints | None) -> Mapping[int, int] | None:
        """The same on whole devices, and on parts that are declared."""
        rank_class, gang = self._class(demand.job), self._books.families[demand.job].gang
        first = self.kinds.index(rank_class.kind) * self._width
        rooms = rank_class.rooms
        if room is None and not self.cluster.holds and not self._books.stopping:
            plan = rooms.place(gang)  # sums by tier are kept
        else:
            here = slice(first, first + self._width)
            part = np.minimum(rooms.room, self.cluster.room(demand)[here])
            plan = self._plan(demand, part if room is None else np.minimum(part, room[here]))
        if plan is None:
            return None
        self._plans[demand.job] = plan
        each = demand.each
        return {
            first + node: count * each
            for node, count in zip(plan.nodes.tolist(), plan.counts.tolist(), strict=True)
        }

    def _plan(self, demand: Demand, room: Ints) -> GangPlan | None:
        family = self._books.families[demand.job]
        if int(room.sum()) < family.gang.ranks:
            return None
        return self._class(demand.job).whole.beside(room).place(family.gang)

    def _fits(self, demand: Demand) -> Fits:
        rank_class = self._class(demand.job)
        first = self.kinds.index(rank_class.kind) * self._width
        # who holds the CPU and memory of a node later is not known: what it has in all bounds the room
        whole, gang = rank_class.whole, self._books.families[demand.job].gang

        def fits(room: Ints) -> Ints | None:
            part = np.minimum(room[first : first + self._width], whole.room)
            if int(part.sum()) < gang.ranks:
                return None
            held = whole.beside(part).counts(gang)
            if held is None:
                return None
            counts = np.zeros(len(room), np.int64)
            counts[first + held[0]] = held[1]
            return counts

        return fits

    def _allowed(self, demand: Demand) -> Mask | None:
        """The nodes that hold a single rank; None where more than their devices counts."""
        rank_class = self._class(demand.job)
        if demand.ranks > 1 or rank_class.asks:
            return None
        mask = np.zeros(len(self.cluster.free), np.bool_)
        first = self.kinds.index(rank_class.kind) * self._width
        mask[first : first + self._width] = rank_class.whole.room > 0
        return mask

    def _domains(self, demand: Demand) -> list[tuple[int, int]] | None:
        """Ranges of nodes of which one must hold the gang whole, by its hard wish on all of it."""
        first = self.kinds.index(self._class(demand.job).kind) * self._width
        topology = self._view.jobs[demand.job].spec.topology
        tree = self._ground.tree
        if topology is None or topology.require is None:
            return [(first, first + self._width)]
        if topology.require == "node":
            return [(first + k, first + k + 1) for k in range(self._width)]
        kind = tree.kind_code(topology.require)
        spans = [
            (int(lo), int(hi))
            for lo, hi, code in zip(tree.lo, tree.hi, tree.kind, strict=True)
            if code == kind
        ]
        return [(first + lo, first + hi) for lo, hi in spans if hi > lo]

    def _ready(self, job: str) -> bool:
        """Whether what is kept for the job is free by now."""
        rank_class = self._class(job)
        first = self.kinds.index(rank_class.kind) * self._width
        held, rooms = self.cluster.holds[job].devices, rank_class.rooms
        room = np.zeros(self._width, np.int64)
        for index, count in held.items():
            room[index - first] = min(count // rank_class.each, int(rooms.room[index - first]))
        plan = self._plan(self.waiting.jobs[job], room)
        if plan is not None:
            self._plans[job] = plan
        return plan is not None
