"""A decision over all queues on a fleet: where a job could start, on which slices, and what its queue is charged for them.

Actions decide what is done for a job, and ``gang``, ``slices`` and ``network`` where it goes. This is where the two meet:
nodes are numbered per kind of device, one kind after the other, so that an action sees one row of nodes.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import replace
from typing import TypeAlias

import numpy as np

from unidle.jobs import JobSpec, Reason
from unidle.place.admission import JobClass
from unidle.place.gang.fit import GangFit, well_wired
from unidle.place.gang.restart import Restarts
from unidle.place.model import Amounts, Backfill, Demand, Domains, Fits, Ints, Mask, RoundRules, Running
from unidle.place.network.constraint import GangPlan
from unidle.place.network.tree import Bools
from unidle.place.nodes.free import Access, first_choice
from unidle.place.nodes.hardware import Option
from unidle.place.nodes.rank_class import RankClass
from unidle.place.protocol import Place
from unidle.place.queue.reservations import affordable, counted_as
from unidle.place.queue.victims import Candidates
from unidle.place.session import Session
from unidle.place.slices.offers import QuotaParts
from unidle.place.snapshot import SessionCache
from unidle.view.jobs import JobView
from unidle.view.spares import comes_back
from unidle.view.state import View

Options: TypeAlias = tuple[tuple[Option, RankClass], ...]


class FleetSession(Session):
    """See the module. Pure: the view is only read. A queue is charged for no slices but those that were found last."""

    together = True

    def __init__(self, cache: SessionCache, view: View, now_ns: int) -> None:
        self._free_slices, self._view, self.gangs = cache.free_slices, view, cache.gangs(view)
        self._snapshot = snapshot = cache.snapshot_at(view, now_ns)
        # room is reserved for the first that wait where all run times are known and the first are those that came first;
        # else only for those that fell behind
        heads = int(snapshot.in_turn and snapshot.all_known)
        backfill = Backfill(heads=heads, starved_ns=view.fleet.order.bound_ns)
        rules = RoundRules(backfill, view.fleet.migration)
        super().__init__(snapshot.state, snapshot.waiting, now_ns, rules)
        self.kinds, self._width, self.never = snapshot.kinds, snapshot.width, snapshot.never
        self.explains = bool(view.unjudged)
        self.places: list[Place] = []  # of the jobs that start
        self._plans: dict[str, tuple[Option, RankClass, GangPlan, GangFit | None]] = {}  # found last
        self._milli: dict[str, int] = {}  # what these slices count, where the charge depends on that
        self._ordered: dict[tuple[str, str], Options] = {}
        self.parts = self._parts = None
        if (offers := self.gangs.sharing) is not None:
            first = {kind: k * self._width for k, kind in enumerate(self.kinds)}
            self.parts = self._parts = QuotaParts(offers, self.state, first, self._in_parts)
        # jobs that are considered on another kind of devices than the first
        self._other_kind: dict[str, JobClass] = {}
        self._restarts = Restarts(cache.classes, view, self._left)

    def open(self, capacity: Amounts | None = None) -> None:
        if self._parts is not None:
            self._parts.keep_promised(self.pending, self.now_ns)
        super().open(self._snapshot.capacity if capacity is None else capacity)

    def wants_time(self, job: str) -> bool:
        return job in self._view.unjudged

    @property
    def assumed_from_ns(self) -> int | None:
        """From when on a planned start rests on a run time that is only assumed; None: never."""
        return self._snapshot.assumed_from_ns(self.rules.backfill.otherwise_ns)

    def access(self, job: JobView) -> Access:
        """What of the spares and of what is on probation the job may use."""
        return self._free_slices.access(job.spec, job)

    def node(self, index: int) -> str:
        return self._free_slices.nodes[index % self._width].id

    def kind_of(self, job: str) -> str:
        parts = self.job_class(job).parts
        return parts.device if parts is not None else self._options(job)[0][1].kind

    def _options(self, job: str) -> Options:
        """Where the job may go, all on one kind of device, in the order of its preference."""
        job_class = self.job_class(job)
        found = self._ordered.get((job, job_class.alike))
        if found is None:
            found, view = job_class.options, self._view.jobs[job]
            if len(found) > 1 and view.spec.hardware.prefer != "none":
                known = {option.pool: rank_class for option, rank_class in found}
                wished = self._free_slices.pools.options(view.spec, self._view, view)
                found = tuple((option, known[option.pool]) for option in wished if option.pool in known)
            if len(found) > 1 and view.attempts:
                found = tuple(self._restarts.home_first(job, found))
            self._ordered[job, job_class.alike] = found
        return found

    def _first(self, job: str) -> int:
        """The first index of the job's kind of devices."""
        return self.kinds.index(self.kind_of(job)) * self._width

    def job_class(self, job: str) -> JobClass:
        """What the job needs, on the kind of devices that it is considered on now."""
        return self._other_kind.get(job) or self._first_class(job)

    def _first_class(self, job: str) -> JobClass:
        return self._snapshot.job_classes.get(job) or self._snapshot.job_class(self._view.jobs[job])

    def other_kinds(self, demand: Demand) -> tuple[Demand, ...]:
        """What the job requests on another kind of devices, if it accepts any kind."""
        self._other_kind.pop(demand.job, None)
        other = self._first_class(demand.job).other
        return () if other is None else (self._snapshot.demand(self._view.jobs[demand.job], other),)

    def _in_parts(self, demand: Demand) -> JobSpec | None:
        self._consider(demand)
        return self.job_class(demand.job).parts

    def _consider(self, demand: Demand | Running) -> None:
        """From now on the job is considered on the kind of devices of this demand."""
        job_class = self._first_class(demand.job)
        other = job_class.other
        if other is not None and isinstance(demand, Demand) and other.alike == demand.alike:
            self._other_kind[demand.job] = other
        else:
            self._other_kind.pop(demand.job, None)

    def _left(self, kind: str) -> Ints:
        """Devices of a kind, by position, that are free and not kept for any job."""
        first = self.kinds.index(kind) * self._width
        free = self.state.free[first : first + self._width]
        return np.minimum(np.maximum(free, 0), self._free_slices.left(kind))

    # -- asked by actions ----------------------------------------------------------------------

    def find(self, demand: Demand, room: Ints | None) -> Mapping[int, int] | None:
        """Where it could start now: on devices, CPU and memory that are free and not kept for other jobs."""
        self._consider(demand)
        self._milli.pop(demand.job, None)
        if self._parts is not None:
            self._parts.forget(demand.job)
        if self.job_class(demand.job).options:
            found = self._on_declared(demand, room)
            if found is not None or demand.ranks or self._parts is None:
                return found
        return None if self._parts is None else self._parts.at_once(demand, room)

    def _on_declared(self, demand: Demand, room: Ints | None) -> Mapping[int, int] | None:
        """The same on whole devices, and on parts that are declared: first where it had better go."""
        better = self._first_choice(demand.job)
        found = None if better is None else self._on_nodes(demand, room, better)
        return found or self._on_nodes(demand, room)

    def _first_choice(self, job: str) -> Bools | None:
        if self._free_slices.reserve is None:
            return None
        view, last = self._view.jobs[job], self._restarts.last(job)
        own = last.before if last is not None else np.zeros(self._width, np.int64)
        return first_choice(self._free_slices.reserve, self._free_slices.access(view.spec, view), own)

    def _on_nodes(
        self, demand: Demand, room: Ints | None, nodes: Bools | None = None
    ) -> Mapping[int, int] | None:
        """Where it could start now on some of the nodes, (N,); None: on any."""
        gang, first = self.job_class(demand.job).gang, self._first(demand.job)
        here = slice(first, first + self._width)
        returns = self._restarts.last(demand.job) is not None
        for option, rank_class in self._options(demand.job):
            if rank_class.total < gang.ranks:
                continue
            part = rank_class.rooms.room
            anywhere = room is None and nodes is None
            if anywhere and not returns and not self.state.holds and not self._snapshot.stopping:
                plan = rank_class.rooms_for(gang).place(gang)  # sums by tier are kept
                if plan is not None:
                    plan = well_wired(self._free_slices, rank_class, plan, gang, rank_class.free)
            else:
                part = np.minimum(part, self.state.room(demand)[here])
                part = part if room is None else np.minimum(part, room[here])
                part = part if nodes is None else np.where(nodes, part, 0)
                part = part if returns else rank_class.wished(gang, part)
                plan = self._plan(demand, rank_class, part)
                if returns and plan is not None:
                    plan = self._restarts.plan(demand.job, rank_class, gang, part) or plan
            if plan is not None and self._take_up(demand, option, rank_class, plan, part):
                return self._devices(demand)
        return None

    def _take_up(
        self, demand: Demand, option: Option, rank_class: RankClass, plan: GangPlan, room: Ints
    ) -> bool:
        """Record where the job would start; False if it would be charged more there than the demand allows."""
        job_class, fit = self.job_class(demand.job), None
        if job_class.most:
            fit = self._within_charge(demand, rank_class, plan, room)
            if fit is None:
                return False
            plan = fit.plan
        self._plans[demand.job] = (option, rank_class, plan, fit)
        return True

    def _within_charge(
        self, demand: Demand, rank_class: RankClass, plan: GangPlan, room: Ints
    ) -> GangFit | None:
        """The gang on slices that count no more than the demand is charged: on the plan, else on ever cheaper slices."""
        gang = self.job_class(demand.job).gang
        fit = self.gangs.mapped(rank_class, plan, gang, self._view.jobs[demand.job])
        if self._may_charge(demand, fit):
            return fit
        for cheaper in rank_class.cheaper_rooms(room, gang.ranks):
            found = self._plan(demand, rank_class, cheaper)
            if found is not None:
                fit = self.gangs.mapped(rank_class, found, gang)
                if self._may_charge(demand, fit):
                    return fit
        return None

    def _may_charge(self, demand: Demand, fit: GangFit) -> bool:
        milli = self._snapshot.milli_of(self.gangs.seated(fit)[0])
        if milli > max(demand.charged):
            return False
        self._milli[demand.job] = milli
        return True

    def _devices(self, demand: Demand) -> Mapping[int, int]:
        """The devices by node on which the job would start."""
        plan, first = self._plans[demand.job][2], self._first(demand.job)
        held = zip(plan.nodes.tolist(), plan.counts.tolist(), strict=True)
        return {first + node: count * demand.each for node, count in held}

    def charge_there(self, demand: Demand) -> Amounts | None:
        """What the job would be charged where it could start now, were there no quota; None where it could not."""
        as_ = replace(demand, charged=demand.most)
        if self.find(as_, None) is None:
            return None
        given = self._parts.given.get(demand.job) if self._parts is not None else None
        return counted_as(as_.charged, self._milli[demand.job] if given is None else given.milli)

    def start(
        self, demand: Demand, devices: Mapping[int, int], because: Reason, as_: Demand | None = None
    ) -> None:
        super().start(demand, devices, because, as_)
        job = self._view.jobs[demand.job]
        made = self._placed(job)
        self.places.append(made)
        if not job.spec.gives_way:
            self._free_slices.keep_firm(place.node for place in made.places)

    def _placed(self, job: JobView) -> Place:
        """The slices that were found for the job last, given to it."""
        given = self._parts.given.get(job.id) if self._parts is not None else None
        if given is not None:
            return Place(job.id, self.gangs.take_parts(given), given.because)
        option, rank_class, plan, known = self._plans[job.id]
        fit = known or self.gangs.mapped(rank_class, plan, self.job_class(job.id).gang, job)
        fit = self.gangs.chosen(fit, option, job.spec, job)
        return Place(job.id, self.gangs.take(fit), fit.because())

    def charged(self, run: Running) -> Running:
        """The job that starts now, with the parts that it gets and what it is charged for them."""
        if (milli := self._milli.get(run.job)) is not None:
            run = replace(run, charged=counted_as(run.charged, milli))
        return run if self._parts is None else self._parts.started(run)

    def _plan(self, demand: Demand, rank_class: RankClass, room: Ints) -> GangPlan | None:
        job_class = self.job_class(demand.job)
        if int(room.sum()) < job_class.gang.ranks:
            return None
        return rank_class.whole.with_room(room).place(job_class.gang)

    def fits(self, demand: Demand | Running) -> Fits:
        """For a job that runs: were it to run elsewhere, on such devices."""
        if isinstance(demand, Running):
            kind = self.kinds[next(iter(demand.devices)) // self._width]
            if self.kind_of(demand.job) != kind:
                return lambda _: None
        self._consider(demand)
        options, first = self._options(demand.job), self._first(demand.job)
        gang = self.job_class(demand.job).gang

        def fits(room: Ints) -> Ints | None:
            for _, rank_class in options:
                # who holds the CPU and memory of a node later is not known: what it has in all bounds the room
                part = rank_class.in_time(room[first : first + self._width])
                if int(part.sum()) < gang.ranks:
                    continue
                held = rank_class.whole.with_room(part).counts(gang)
                if held is not None:
                    counts = np.zeros(len(room), np.int64)
                    counts[first + held[0]] = held[1]
                    return counts
            return None

        return fits

    def filler(self, demand: Demand) -> Candidates | None:
        reserve, jobs = self._free_slices.reserve, self._view.jobs.open
        if reserve is None or not reserve.spares or not demand.ranks or demand.level == "low":
            return None
        if not comes_back(jobs[demand.job]):
            return None

        def fills(run: Running) -> bool:
            if run.level != "low" or not jobs[run.job].spec.gives_way:
                return False
            return any(reserve.spare_at[index % self._width] for index in run.devices)

        known = Candidates(self.state, self.now_ns, fills)
        return known if known.jobs else None

    def took_spares(self, nodes: Iterable[int]) -> None:
        self._free_slices.keep_firm(self.node(index) for index in nodes)

    def allowed(self, demand: Demand) -> Mask | None:
        """The nodes that hold a single rank; None where more than their devices counts."""
        options, first = self._options(demand.job), self._first(demand.job)
        if demand.ranks > 1 or options[0][1].asks:
            return None
        mask = np.zeros(len(self.state.free), np.bool_)
        for _, rank_class in options:
            mask[first : first + self._width] |= rank_class.in_time(rank_class.whole.room) > 0
        return mask

    def domains(self, demand: Demand) -> Domains:
        every = [(k * self._width, (k + 1) * self._width) for k in range(len(self.kinds))]
        return self._domains(demand) or every

    def _domains(self, demand: Demand) -> list[tuple[int, int]]:
        """Ranges of nodes of which one must hold the gang whole, by its hard wish on all of it."""
        first = self._first(demand.job)
        topology = self._view.jobs[demand.job].spec.topology
        tree = self._free_slices.tree
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

    def ready(self, job: str) -> bool:
        """Whether what is kept for the job is free by now."""
        self._other_kind.pop(job, None)
        if self._parts is not None and self.job_class(job).parts is not None:
            return self._parts.ready(self.pending.jobs[job])
        first, held = self._first(job), self.state.holds[job].devices
        gang, demand = self.job_class(job).gang, self._affordable(job)
        for option, rank_class in self._options(job):
            now, room = rank_class.rooms.room, np.zeros(self._width, np.int64)
            for index, count in held.items():
                room[index - first] = min(count // rank_class.each, int(now[index - first]))
            plan = self._plan(demand, rank_class, room)
            if plan is not None:
                plan = self._restarts.plan(job, rank_class, gang, room) or plan
                if self._take_up(demand, option, rank_class, plan, room):
                    return True
        return False

    def _affordable(self, job: str) -> Demand:
        """What a job for which devices are kept may be charged, were nothing kept for it."""
        demand, state = self.pending.jobs[job], self.state
        if not demand.most:
            return demand
        before = state.log.checkpoint()
        state.release(job)
        found = affordable(state.shares, state.shares.tree.leaf(demand.queue), demand)
        state.log.rollback(before)
        return found
