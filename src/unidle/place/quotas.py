"""Gangs under queues and quotas: fairness, levels, reclaim and backfill on top of the network.

Whose turn it is, what a queue may use, who is stopped for whom and who waits for a planned start is
decided by ``place.queue``; where a gang goes, by ``place.gang``. This is where the two meet: nodes are
numbered per kind of device, one kind after the other, so that a round sees one row of nodes.
"""

from __future__ import annotations

from collections.abc import Collection, Sequence
from dataclasses import dataclass, field
from typing import Final, NamedTuple

import numpy as np

from unidle.fleet import WHOLE_PPM, Fleet, slices_of
from unidle.fleet.queues import QueueSpec
from unidle.jobs import JobSpec, Reason
from unidle.place.constraint import Blocked, GangPlan, gang_of
from unidle.place.gang import plan_gang
from unidle.place.ground import Ground, RankClass, Taken
from unidle.place.queue.backfill import Backfill
from unidle.place.queue.cluster import Cluster
from unidle.place.queue.fair import Fairness, QueueShare, Shares
from unidle.place.queue.model import Amounts, Demand, Fits, Hold, Ints, Running
from unidle.place.queue.round import Round, Rules, decide
from unidle.place.queue.spec import MILLI, amounts_of
from unidle.place.queue.tree import QueueTree, Quota
from unidle.place.queue.victims import Mask
from unidle.place.queue.waiting import Waiting
from unidle.place.queued import KINDS
from unidle.place.sharing import Given, SharingRound
from unidle.place.sharing_queues import Parts, milli_of
from unidle.share.mig_models import mig_models
from unidle.view.state import AttemptView, JobView, View

S: Final = 1_000_000_000
RESTART_NS: Final = 30 * S  # until a stopped job is at work again, where nothing was measured
_ALL: Final = "jobs"  # the one queue of a fleet that declares none


@dataclass(frozen=True, slots=True)
class Placement:
    """A job of this round that starts: its class, its plan, and why now."""

    job: str
    rank_class: RankClass
    plan: GangPlan
    because: Reason


@dataclass(slots=True)
class _Memo:
    """What stays the same from round to round on one ground."""

    tree: QueueTree
    whole: Amounts
    bounds: Bounds
    runs: dict[str, tuple[tuple[object, ...], Running]] = field(default_factory=dict)

    @classmethod
    def of(cls, ground: Ground) -> _Memo:
        if not isinstance(ground.memo, cls):
            tree = _tree(ground.fleet)
            ground.memo = cls(
                tree, _totals(ground.fleet, tree.resources, frozenset()), Bounds.of(ground.fleet)
            )
        return ground.memo


class QuotaRound:
    """One round over all queues. Pure: the view is only read, and the ground left as it was."""

    def __init__(self, ground: Ground, view: View, now_ns: int, sharing: SharingRound | None = None) -> None:
        self._ground, self._view, self._now_ns = ground, view, now_ns
        if sharing is None and view.cuttable_nodes():
            sharing = SharingRound(ground, view, Taken())
        self._parts = Parts(sharing, ground) if sharing is not None else None
        self.kinds = tuple(kind for kind in ("gpu", "cpu") if ground.occupancy.nodes.get(kind))
        self._width = len(ground.nodes)
        self._memo = _Memo.of(ground)
        self.tree = self._memo.tree
        self._declared = bool(view.fleet.queues)
        self.never: dict[str, Reason] = {}
        self._classes: dict[str, RankClass] = {}
        self._plans: dict[str, GangPlan] = {}
        self.shares = Shares(self.tree, self._capacity(), now_ns, Fairness(firm_borrows=True))
        rules = Rules(Backfill(heads=self._heads()))
        self._rules, self.waiting = rules, Waiting(self.shares, rules.backfill)
        self.cluster = self._cluster()
        for queue in view.waiting.values():
            for _, _, job_id in queue:
                self._add(view.jobs[job_id])

    def decide(self) -> Round:
        """Who starts, who is stopped, who waits."""
        domains = [(k * self._width, (k + 1) * self._width) for k in range(len(self.kinds))]
        return decide(
            self.cluster, self.waiting, self._fits, self._now_ns, self._rules,
            capacity=self._capacity(), domains_of=lambda demand: self._domains(demand) or domains,
            allowed_of=self._allowed, ready=self._ready,
        )  # fmt: skip

    def parts(self, answer: Round) -> list[Given]:
        """Parts of devices that jobs of this round start on, to be taken before whole devices are."""
        return self._parts.of([start.job for start in answer.starts]) if self._parts is not None else []

    def placement(self, job: str, because: Reason) -> Placement:
        return Placement(job, self._classes[job], self._plans[job], because)

    def node(self, index: int) -> str:
        return self._ground.nodes[index % self._width].id

    def kind_of(self, job: str) -> str:
        return self._classes[job].kind

    def report(self) -> tuple[QueueShare, ...]:
        return self.shares.report()

    # -- from the view ---------------------------------------------------------------------------

    def _capacity(self) -> Amounts:
        unfit = self._view.unfit()
        return _totals(self._view.fleet, self.tree.resources, unfit) if unfit else self._memo.whole

    def _cluster(self) -> Cluster:
        view, ground = self._view, self._ground
        devices = np.zeros(len(self.kinds) * self._width, np.int64)
        for k, kind in enumerate(self.kinds):
            for position, slots in zip(ground.positions[kind], ground.occupancy.nodes[kind], strict=True):
                devices[k * self._width + position] = slots.free.bit_count()
        running: list[Running] = []
        for job_id in sorted(view.live):
            job = view.jobs[job_id]
            run = self._running(job, job.attempts[-1])
            for index, count in run.devices.items():
                devices[index] += count
            stop = job.attempts[-1].stop
            if stop is None or stop.why != "preempted":
                running.append(run)
        if len(self._memo.runs) > 2 * len(view.live) + 64:
            self._memo.runs = {job: run for job, run in self._memo.runs.items() if job in view.live}
        cluster = Cluster(devices, self.shares, running)
        for job_id, promise in view.promised.items():
            if promise.expires_ns > self._now_ns and promise.kind in self.kinds:
                self._hold(cluster, view.jobs[job_id], promise.kind, promise.devices, promise.expires_ns)
        return cluster

    def _hold(
        self, cluster: Cluster, job: JobView, kind: str, devices: dict[str, int], expires_ns: int
    ) -> None:
        first = self.kinds.index(kind) * self._width
        places = {node.id: first + k for k, node in enumerate(self._ground.nodes)}
        kept = {places[name]: count for name, count in devices.items() if name in places}
        if all(cluster.free[index] >= count for index, count in kept.items()):
            spec = job.spec
            rank_class = self._ground.rank_class(spec, kind, self._view, Taken())
            charged = self._charged(spec, kind, self._milli_on(rank_class, spec))
            cluster.hold(Hold(job.id, self._queue(spec), charged, spec.preemption != "low", kept, expires_ns))

    def _held(self, attempt: AttemptView) -> dict[int, int]:
        held: dict[int, int] = {}
        where = self._ground.where()
        for place in attempt.places:
            for slice_id in place.slices:
                if self._ground.occupancy.is_part(slice_id):
                    continue  # the device is nobody's as a whole, and what ends here frees no whole one
                found = where.get(slice_id)
                if found is not None and found[0] in self.kinds:
                    index = self.kinds.index(found[0]) * self._width + found[1]
                    held[index] = held.get(index, 0) + 1
        return held

    def _running(self, job: JobView, attempt: AttemptView) -> Running:
        saves = [rank.saves[-1][0] for rank in attempt.ranks if rank.saves]
        saved_ns = max(saves, default=None)
        key = (attempt.number, saved_ns, attempt.stop is None)
        known = self._memo.runs.get(job.id)
        if known is not None and known[0] == key:
            return known[1]
        spec, held = job.spec, self._held(attempt)
        kind = self._ground.occupancy.kind_of(attempt.places[0].slices[0]) or "gpu"
        stopping = attempt.stop is not None  # its devices come back by themselves
        run = Running(
            job.id, self._queue(spec), "medium" if stopping else spec.preemption, attempt.placed_ns, held,
            self._charged(spec, kind, self._milli_of(attempt)), saved_ns, int(spec.min_runtime_s * S), RESTART_NS,
            None if spec.estimate_s is None else int(spec.estimate_s * S),
            checkpoints=spec.checkpoint_path is not None, ranks=spec.ranks, each=spec.devices_per_rank,
        )  # fmt: skip
        self._memo.runs[job.id] = (key, run)
        return run

    def _add(self, job: JobView) -> None:
        spec = job.spec
        if job.not_before_ns > self._now_ns:
            return
        least = least_milli(spec, self.kinds, self._ground.whole_kinds, self._memo.bounds)
        refused = _never(self.tree, self.shares.quota, spec, self._queue(spec), self.kinds, least)
        if refused is not None:
            self.never[job.id] = refused
            return
        gang = gang_of(spec)
        if self._parts is not None and (kind := self._parts.kind_for(job, self.kinds)):
            if kind in self.kinds:
                self._classes[job.id] = self._ground.rank_class(spec, kind, self._view, Taken())
            self.waiting.add(self._demand(job, kind))
            return
        verdicts: list[Blocked] = []
        for kind in KINDS[spec.device]:
            if kind in self.kinds:
                rank_class = self._ground.rank_class(spec, kind, self._view, Taken())
                verdict = rank_class.never(gang)
                if verdict is None:
                    self._classes[job.id] = rank_class
                    break
                verdicts.append(verdict)
        else:
            text = verdicts[0].what if verdicts else "no such device"
            self.never[job.id] = Reason("never_fits", f"{text}: it can never start here")
            return
        self.waiting.add(self._demand(job, self._classes[job.id].kind))

    def _demand(self, job: JobView, kind: str) -> Demand:
        spec, parts = job.spec, self._parts is not None and self._parts.asks(job.id)
        return Demand(
            job.id, self._queue(spec), spec.preemption, 0 if parts else spec.ranks, spec.devices_per_rank,
            self._charged(spec, kind, self._milli_for(job.id, spec)),
            job.waiting_since_ns, None if spec.estimate_s is None else int(spec.estimate_s * S), spec.priority,
            int(spec.min_runtime_s * S), RESTART_NS, spec.checkpoint_path is not None, f"{kind} {spec.layout} {spec.requests} {spec.where} {spec.topology} {spec.share}"
            + (f" {spec.name} {spec.ranks}" if parts else ""),
        )  # fmt: skip

    def _queue(self, spec: JobSpec) -> str:
        return spec.queue if self._declared else _ALL

    def _charged(self, spec: JobSpec, kind: str, milli: int) -> Amounts:
        """What the job's queue is charged, of devices and of those of a model where it names just one."""
        model = spec.where.models.include[0] if len(spec.where.models.include) == 1 else None
        resources = {kind: milli}
        if model is not None:
            resources[f"{kind}:{model}"] = milli
        return tuple(resources.get(resource, 0) for resource in self.tree.resources)

    def _milli_of(self, attempt: AttemptView) -> int:
        """Thousandths of devices that an attempt holds: a part of a device counts by its share."""
        book = self._view.book
        held = book.indexes(s for place in attempt.places for s in place.slices)
        return sum(milli_of(book.slices[k].share_ppm) for k in held)

    def _milli_for(self, job: str, spec: JobSpec) -> int:
        """Thousandths of devices that a job which waits would hold, at most where that is not known yet."""
        if self._parts is not None and self._parts.asks(job):
            least, most = self._parts.milli(job)
            queue, quota = self._queue(spec), self.shares.quota
            if _never(self.tree, quota, spec, queue, self.kinds, most * spec.ranks) is not None:
                self._parts.at_most(job, least)  # only where it counts least can it ever start
                return least * spec.ranks
            return most * spec.ranks
        return self._milli_on(self._classes[job], spec)

    def _milli_on(self, rank_class: RankClass, spec: JobSpec) -> int:
        """The same for devices as they are declared: parts where parts are asked for, or where there is nothing else."""
        if spec.share is None and rank_class.kind in self._ground.whole_kinds:
            return spec.devices * MILLI
        return rank_class.least_ppm(spec.devices) * MILLI // WHOLE_PPM

    def _heads(self) -> int:
        """Room is reserved for the first that wait where all run times are known; else only for those that starve."""
        open_jobs = [self._view.jobs[job] for job in self._view.live]
        return int(bool(open_jobs) and all(job.spec.estimate_s is not None for job in open_jobs))

    # -- asked by the round ----------------------------------------------------------------------

    def _fits(self, demand: Demand) -> Fits:
        job = self._view.jobs[demand.job]
        spec = job.spec
        rank_class, gang = self._classes[demand.job], gang_of(spec)
        first = self.kinds.index(rank_class.kind) * self._width
        # what a node could hold if others were stopped; the CPU and memory that they would leave are not counted
        most = rank_class.bound

        def fits(room: Ints) -> Ints | None:
            part = np.minimum(room[first : first + self._width], most)
            if int(part.sum()) < gang.ranks:
                return None
            plan = plan_gang(self._ground.tree, part, gang)
            if not isinstance(plan, GangPlan):
                return None
            self._plans[demand.job] = plan
            counts = np.zeros(len(room), np.int64)
            counts[first + plan.nodes] = plan.counts
            return counts

        if self._parts is not None and not demand.ranks:
            return self._parts.fits(job, fits, self.kinds, self._width, self.cluster.running)
        return fits

    def _allowed(self, demand: Demand) -> Mask | None:
        """The nodes that hold a single rank; None where more than their devices counts."""
        rank_class = self._classes[demand.job]
        if demand.ranks > 1 or rank_class.asks:
            return None
        mask = np.zeros(len(self.cluster.free), np.bool_)
        first = self.kinds.index(rank_class.kind) * self._width
        mask[first : first + self._width] = rank_class.whole.room > 0
        return mask

    def _domains(self, demand: Demand) -> list[tuple[int, int]] | None:
        """Ranges of nodes of which one must hold the gang whole, by its hard wish on all of it."""
        first = self.kinds.index(self._classes[demand.job].kind) * self._width
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
        rank_class = self._classes[job]
        first = self.kinds.index(rank_class.kind) * self._width
        held = self.cluster.holds[job].devices
        ready = all(
            rank_class.free(index - first, Taken()).bit_count() >= count for index, count in held.items()
        )
        if ready:  # the plan on just these nodes
            room = np.zeros(len(self.cluster.free), np.int64)
            for index, count in held.items():
                room[index] = count // rank_class.each
            ready = self._fits(self.waiting.jobs[job])(room) is not None
        return ready


def never(fleet: Fleet, spec: JobSpec, now_ns: int) -> Reason | None:
    """Why no state of these queues lets the job start; None where one does."""
    if not fleet.queues:
        return None
    tree = _tree(fleet)
    quota = tree.quota(_totals(fleet, tree.resources, frozenset()), now_ns)
    devices = fleet.devices()
    kinds = tuple(dict.fromkeys(device.kind for device in devices))
    whole = {device.kind for device in devices if len(device.slices_ppm) == 1}
    return _never(tree, quota, spec, spec.queue, kinds, least_milli(spec, kinds, whole, Bounds.of(fleet)))


class Bounds(NamedTuple):
    """What bounds a part from below: how much at most may be promised of a device, and the largest memory of one."""

    factor_ppm: int
    memory_bytes: int

    @classmethod
    def of(cls, fleet: Fleet) -> Bounds:
        devices = fleet.devices()
        factors = (d.sharing.compute_ppm for d in devices if d.sharing is not None)
        return cls(max(factors, default=WHOLE_PPM), max((d.memory_bytes for d in devices), default=0))


def least_milli(spec: JobSpec, kinds: Collection[str], whole_kinds: Collection[str], bounds: Bounds) -> int:
    """The least that a queue is charged for the job, wherever it runs, in thousandths of devices."""
    share = spec.share
    if share is None:
        whole = all(kind in whole_kinds for kind in KINDS[spec.device] if kind in kinds)
        return spec.devices * MILLI if whole else 0
    ppm = share.compute_ppm
    if share.profile:
        sizes = [m.compute_ppm(m.profile(share.profile)) for m in mig_models() if m.knows(share.profile)]
        return spec.ranks * (min(sizes, default=0) * MILLI // WHOLE_PPM)
    if not ppm and bounds.memory_bytes:
        ppm = share.memory_bytes * WHOLE_PPM // bounds.memory_bytes
    return spec.ranks * (ppm * MILLI // bounds.factor_ppm)


def _never(
    tree: QueueTree, quota: Quota, spec: JobSpec, queue: str, kinds: Sequence[str], asked: int
) -> Reason | None:
    index = tree.index.get(queue)
    if index is None or tree.children[index]:
        leaves = sorted(name for name, k in tree.index.items() if not tree.children[k])
        known = ", ".join(leaves[:8])
        return Reason("no_queue", f"there is no queue {queue} that takes jobs; there are {known}")
    if any(spec.windows for spec in tree.specs):
        return None  # at other hours it may
    kind = next((k for k in KINDS[spec.device] if k in kinds), "gpu")
    resource = tree.resources.index(kind)
    for at in tree.path(index)[:-1]:
        bound = quota.bound[at][resource]
        if asked > bound:
            text = f"{tree.name(at)} may use at most {bound / MILLI:g} {kind}, and the job asks for {asked / MILLI:g}"
            return Reason("over_limit", f"{text}: it can never start here", {"bound": bound, "asked": asked})
    return None


def check_queues(fleet: Fleet) -> None:
    """:class:`BadInput` for the first mistake in a fleet's queues, with the field ``queues.NAME...``."""
    tree = _tree(fleet)
    tree.check_capacity(_totals(fleet, tree.resources, frozenset()))


def _totals(fleet: Fleet, resources: Sequence[str], unfit: Collection[str]) -> Amounts:
    """Devices that are healthy, in thousandths, by resource."""
    totals = dict.fromkeys(resources, 0)
    for device in fleet.devices():
        if slices_of(device)[0].id in unfit:
            continue
        for resource in (device.kind, f"{device.kind}:{device.model}"):
            if resource in totals:
                totals[resource] += MILLI
    return tuple(totals[resource] for resource in resources)


def _tree(fleet: Fleet) -> QueueTree:
    specs = fleet.queues or (QueueSpec(_ALL),)
    named = {resource for spec in specs for _, amounts in amounts_of(spec) for resource in amounts}
    models = sorted({f"{d.kind}:{d.model}" for d in fleet.devices() if d.model}) if named else []
    if named <= {"gpu", "cpu", *models}:
        models = [model for model in models if model in named]
    return QueueTree.of(specs, ("gpu", "cpu", *models), fleet.zone)
