"""One round of gangs: where each fits, which slices it gets, and why."""

from __future__ import annotations

from collections.abc import Callable, Collection, Container, Sequence
from typing import Final, TypeAlias

import numpy as np

from unidle.jobs import JobSpec, Layout, RankPlace, Reason
from unidle.place.explain import GangRefusal, most_devices, never_fits, waits, why_blocked, with_models
from unidle.place.gang.restart import Restarts
from unidle.place.network.constraint import Gang, GangPlan, gang_of
from unidle.place.network.rank_order import RankOrder, map_ranks
from unidle.place.network.traffic import usual_traffic
from unidle.place.network.tree import Ints
from unidle.place.nodes.free import Access, FreeSlices
from unidle.place.nodes.hardware import DevicePool, Option
from unidle.place.nodes.links import Seats, text_of
from unidle.place.nodes.rank_class import RankClass, RankClasses
from unidle.place.protocol import InQueueOrder, Place, Plan, Recut, Wait
from unidle.place.slices.devices import SliceMemo
from unidle.place.slices.fit import SliceBounds, SliceFit
from unidle.place.slices.offers import Apart, SliceOffers
from unidle.share.refusal import PartRefused as NoPart
from unidle.view.jobs import JobView
from unidle.view.occupancy import NodeSlots
from unidle.view.state import View
from unidle.view.waiting import Shape
from unidle.words import are, counted, latency

_LOOKED_AT: Final = 64  # nodes whose links are compared for one gang


def well_wired(
    free_slices: FreeSlices, rank_class: RankClass, plan: GangPlan, gang: Gang, free: Callable[[int], int]
) -> GangPlan:
    """Of the nodes that hold a gang of one node equally tightly, one on which its GPUs are best connected.

    ``free`` returns the mask of the slices that the ranks may take on a node, by its position.
    """
    count = gang.ranks * rank_class.each
    if plan.vertex >= 0 or count < 2 or not _links_count(free_slices, rank_class):
        return plan
    first = at = int(plan.nodes[0])
    best = -1
    for position in rank_class.rooms.alike(plan)[:_LOOKED_AT].tolist():
        node = free_slices.nodes[position]
        here = free_slices.inner.weakest(node, count, free(position))
        if here is None and position == first:
            return plan  # nothing is known of where it would go
        if here is not None and here > best:
            at, best = position, here
            if here == free_slices.inner.weakest(node, count):
                break  # as good as it gets on such a node
    return plan if at == first else rank_class.rooms.moved(gang, plan, at)


def seats_of(
    free_slices: FreeSlices,
    rank_class: RankClass,
    tp: int,
    node_of_rank: Sequence[int],
    positions: Sequence[int],
    masks: Sequence[int],
    seated: Container[int] = (),
) -> dict[int, Seats]:
    """The GPUs of each rank that is not ``seated`` yet, where the links of its node are known.

    ``node_of_rank`` indexes ``positions``, and so do the keys of the answer; ``masks`` are the slices that each node
    has to give. ``tp`` ranks in a row are a tensor group.
    """
    if not _links_count(free_slices, rank_class):
        return {}
    groups: list[dict[int, int]] = [{} for _ in positions]  # ranks of each tensor group, in rank order
    for rank, at in enumerate(node_of_rank):
        if rank not in seated:
            groups[at][rank // tp] = groups[at].get(rank // tp, 0) + 1
    found = {}
    for at, position in enumerate(positions):
        sizes = tuple(groups[at].values())
        if sizes:
            node = free_slices.nodes[position]
            if (seats := free_slices.inner.seats(node, masks[at], sizes, rank_class.each)) is not None:
                found[at] = seats
    return found


def _links_count(free_slices: FreeSlices, rank_class: RankClass) -> bool:
    """Whether any links are known, and the ranks take whole GPUs."""
    return bool(free_slices.fleet.gpu_links) and rank_class.kind == "gpu" and not rank_class.by_size


Like: TypeAlias = tuple[Shape, Apart | None]
"""See :meth:`GangRound.like`."""


def _may(_spec: JobSpec) -> None:
    """Nothing keeps such a job from starting ever."""


class GangFit:
    """Where a gang can go: its nodes, the order of its ranks, and the reason. ``seats`` are known once it is taken."""

    def __init__(
        self, rank_class: RankClass, plan: GangPlan, node_of_rank: Ints, mapping: RankOrder | None, tp: int = 1,
        own: dict[int, tuple[str, ...]] | None = None, theirs: frozenset[str] = frozenset(),
    ) -> None:  # fmt: skip
        """``own``: slices that a rank had before and gets again, by rank; ``theirs``: those to be taken last."""
        self.rank_class, self.plan, self.node_of_rank, self.mapping = rank_class, plan, node_of_rank, mapping
        self.choice: tuple[str, dict[str, int | float | str]] = ("", {})  # why on these devices
        self.tp = tp  # ranks of one tensor group
        self.own, self.theirs = own or {}, theirs
        self.seats: dict[str, Seats] = {}

    def because(self) -> Reason:
        reason = self.plan.because
        if self.choice[0]:
            reason = Reason(
                reason.code, f"{reason.text}; {self.choice[0]}", {**reason.figures, **self.choice[1]}
            )
        if self.seats:
            reason = Reason(reason.code, f"{reason.text}; {text_of(self.seats)}", reason.figures)
        if self.mapping is None:
            return reason
        times = {f"{group}_ns": time.time_ns for group, time in self.mapping.groups.items() if time.ranks > 1}
        slowest = max(self.mapping.groups.items(), key=lambda item: item[1].time_ns)
        text = reason.text
        if slowest[1].time_ns:
            takes = latency(self.mapping.time_ns)
            text += (
                f"; modelled collectives take {takes} a step, bound by {slowest[0]} over {slowest[1].tier}"
            )
        return Reason(reason.code, text, {**reason.figures, **times})


class GangRound:
    """One round of decisions on top of free slices that are left as they were found."""

    def __init__(self, classes: RankClasses, memo: SliceMemo, view: View) -> None:
        self._classes, self._view = classes, view
        self._free_slices = free_slices = classes.free_slices
        self._restarts = Restarts(classes, view, free_slices.left)
        self.sharing = SliceOffers(free_slices, view, memo) if view.cuttable_nodes() else None

    def decide(
        self, now_ns: int, but: Collection[Shape] = (), never: Callable[[JobSpec], Reason | None] = _may
    ) -> Plan:
        """Who starts in queue order, but for jobs of some shapes; those with a reason never to are not tried."""
        view = self._view
        unjudged = sorted((view.jobs[j] for j in view.unjudged), key=lambda job: job.order)
        # to say why takes longer than to know that it does not fit
        new = {self.like(job) for job in unjudged}
        places: dict[str, Place] = {}
        why: dict[Like, Reason | None] = {}
        blocked: set[Shape] = set(but)
        refused: dict[str, Reason] = {}  # by job
        for shape, job_id in InQueueOrder(view, now_ns, blocked):
            job = view.jobs[job_id]
            spec, like = job.spec, self.like(job, shape)
            if like in why:
                continue
            if (because := never(spec)) is not None:
                refused[job_id] = because
                continue
            fit = self.find(spec, job)
            if fit is not None:
                places[job_id] = Place(job_id, self.take(fit), fit.because())
            elif isinstance(given := self.part(job_id, spec), SliceFit):
                places[job_id] = Place(job_id, self.take_parts(given), given.because)
            else:  # what is free only shrinks within one round
                why[like] = self.refusal(spec, job_id).because if like in new else None
                if self.sharing is None or spec.share is None:  # else others of the shape may still fit
                    blocked.add(shape)
        waits = [
            Wait(job.id, because)
            for job in unjudged
            if job.id not in places
            and job.not_before_ns <= now_ns
            and (because := refused.get(job.id) or why.get(self.like(job))) is not None
        ]
        return Plan(tuple(places.values()), tuple(waits), cuts=self.recuts())

    def like(self, job: JobView, shape: Shape | None = None) -> Like:
        """Jobs of which none fits where one does not: those of a shape, and of parts those of one load besides.

        ``shape``: that of the job, where it is known: to find it takes long.
        """
        shape = job.shape if shape is None else shape
        if self.sharing is None or job.spec.share is None:
            return shape, None
        return shape, self.sharing.apart(job)

    def part(self, job: str, spec: JobSpec) -> SliceFit | NoPart | None:
        """Parts of devices that are cut on demand for the job, or why it gets none; None if it requests none."""
        if self.sharing is None or spec.share is None:
            return None
        return self.sharing.find(job, spec)

    def ever_in_parts(self, spec: JobSpec) -> bool:
        """Whether the whole fleet, empty and healthy, has a part that is cut on demand for each rank."""
        return self.sharing is not None and spec.share is not None and self.sharing.never(spec) is None

    def take_parts(self, given: SliceFit) -> tuple[RankPlace, ...]:
        """Give the gang its parts of devices."""
        assert self.sharing is not None
        return self.sharing.take(given)

    def recuts(self) -> tuple[Recut, ...]:
        return self.sharing.recuts() if self.sharing is not None else ()

    def fit(self, spec: JobSpec, access: Access | None = None) -> GangFit | GangRefusal:
        """Where a gang of such a job goes now, or why it cannot."""
        return self.find(spec, access=access) or self.refusal(spec, access=access)

    def find(self, spec: JobSpec, job: JobView | None = None, access: Access | None = None) -> GangFit | None:
        """Where a gang of this job goes now; where it was, as far as it can."""
        gang, options = gang_of(spec), self._classes.of_job(spec, self._view, job, access)
        for option, rank_class in options if job is None else self._restarts.home_first(job.id, options):
            plan = rank_class.rooms_for(gang).place(gang) if rank_class.total >= gang.ranks else None
            if plan is not None:
                again = None
                if job is not None:
                    again = self._restarts.plan(job.id, rank_class, gang, rank_class.rooms.room)
                plan = again or well_wired(self._free_slices, rank_class, plan, gang, rank_class.free)
                return self.chosen(self.mapped(rank_class, plan, gang, job), option, spec, job)
        return None

    def chosen(self, fit: GangFit, option: Option, spec: JobSpec, job: JobView | None = None) -> GangFit:
        """The fit, with the reason why on the devices of this option."""
        pools = self._free_slices.pools
        if option.pool.models:
            options = pools.options(spec, self._view, job)  # those of a kept family know no speeds
            fit.choice = pools.why(options, next(o for o in options if o.pool == option.pool))
        if fit.rank_class.asks and (strands := int(fit.rank_class.strands()[fit.plan.nodes].sum())) > 0:
            text = f"it leaves {counted(strands, 'free GPU')} there without their share of cores or memory"
            fit.choice = "; ".join(filter(None, (fit.choice[0], text))), {**fit.choice[1], "strands": strands}
        return fit

    def refusal(self, spec: JobSpec, job: str = "", access: Access | None = None) -> GangRefusal:
        """Why a gang of this job, for which no place was found, has none."""
        gang = gang_of(spec)
        if access is None:
            access = self._free_slices.access(spec, self._view.jobs.open.get(job))
        reasons, models = [], []
        for option, rank_class in self._classes.of_job(spec, self._view, access=access):
            if not rank_class.fits_ever(gang):
                continue
            refused = waits(spec, rank_class, why_blocked(rank_class.rooms, gang))
            reasons.append(refused)
            if option.pool.models and not option.mixed:
                figures = refused.because.figures
                models.append(f"{option.name} {figures['free']} of {figures['devices']} free")
        static = never_fits(self._classes, spec, access) or with_models(most_devices(reasons), models)
        if self.sharing is not None and spec.share is not None:
            return self._no_part(spec, job, static)
        return static

    def _no_part(self, spec: JobSpec, job: str, static: GangRefusal) -> GangRefusal:
        """Why neither a part that is declared nor one that is made on demand will do."""
        assert self.sharing is not None
        never = self.sharing.never(spec)
        if never is not None:
            if static.because.code != "never_fits":
                return static
            return GangRefusal(
                Reason("never_fits", f"{never.because.text}: it can never start here", never.because.figures)
            )
        answer = self.sharing.find(job, spec, SliceBounds(every=True))
        if not isinstance(answer, SliceFit):
            return GangRefusal(answer.because)
        text = f"{counted(spec.ranks, 'part')} for it {are(spec.ranks)} free, and kept for jobs before it"
        return GangRefusal(Reason("kept", text, {"needs": spec.ranks, "devices": len(answer.devices)}))

    def classes(self, spec: JobSpec, access: Access | None = None) -> list[RankClass]:
        """The classes of the job's ranks on the pools that it may use."""
        return [one for _, one in self._classes.of_job(spec, self._view, access=access)]

    def rank_class(self, spec: JobSpec, pool: DevicePool) -> RankClass:
        """The class of the job's ranks on the devices of a pool, with what this round gave away."""
        return self._classes.of(spec, pool)

    def map(self, plan: GangPlan, layout: Layout) -> RankOrder:
        """The order of ranks on the plan's nodes."""
        tree, traffic = self._free_slices.tree, usual_traffic(layout)
        return map_ranks(tree, plan.nodes, plan.counts, layout, traffic, plan.fabric, plan.kept)

    def mapped(
        self, rank_class: RankClass, plan: GangPlan, gang: Gang, job: JobView | None = None
    ) -> GangFit:
        """The plan with an order of ranks: that of the job's last attempt where it comes back."""
        if job is not None and self._restarts.last(job.id) is not None:
            free = [rank_class.free(p) for p in plan.nodes.tolist()]
            again = self._restarts.order(job.id, rank_class, plan, free)
            if again is not None:
                return GangFit(
                    rank_class, again.plan, again.node_of_rank, again.mapping, gang.size("tp"), again.own,
                    again.theirs,
                )  # fmt: skip
        if gang.layout is None or len(plan.nodes) == 1:
            there = np.repeat(np.arange(len(plan.nodes)), plan.counts)
            return GangFit(rank_class, plan, there, None, gang.size("tp"))
        mapping = self.map(plan, gang.layout)
        return GangFit(rank_class, plan, mapping.node_of_rank, mapping, gang.size("tp"))

    def take(self, fit: GangFit) -> tuple[RankPlace, ...]:
        """Give the gang its slices."""
        places, used = self.seated(fit)
        rank_class, plan = fit.rank_class, fit.plan
        for position, mask, ranks in zip(plan.nodes.tolist(), used, plan.counts.tolist(), strict=True):
            self._free_slices.take(rank_class.kind, position, mask, rank_class.requests, ranks)
        return places

    def seated(self, fit: GangFit) -> tuple[tuple[RankPlace, ...], list[int]]:
        """The slices that the gang would get, and these as a mask by node of its plan: those that ranks had before;
        else of each node the best connected, where that is known, or the lowest free ones."""
        rank_class, positions = fit.rank_class, fit.plan.nodes.tolist()
        slots = [rank_class.slots(p) for p in positions]
        masks = [rank_class.free(p) for p in positions]
        used = [0] * len(positions)
        places: list[RankPlace] = []
        order = fit.node_of_rank.tolist()
        for rank, own in fit.own.items():
            mask = slots[order[rank]].mask(own)
            masks[order[rank]] ^= mask
            used[order[rank]] |= mask
        if fit.theirs:
            rest = [at for rank, at in enumerate(order) if rank not in fit.own]
            masks = _left_to_others(fit, slots, masks, rest)
        seats = seats_of(self._free_slices, rank_class, fit.tp, order, positions, masks, fit.own)
        fit.seats = {} if fit.own else {slots[at].node: there for at, there in seats.items()}
        seated = {at: iter(there.ranks) for at, there in seats.items()}
        for rank, at in enumerate(order):
            if rank in fit.own:
                places.append(RankPlace(rank, slots[at].node, fit.own[rank]))
                continue
            ids = []
            bits = next(seated[at]) if at in seated else None
            for k in range(rank_class.each):
                bit = rank_class.pick(positions[at], masks[at]) if bits is None else bits[k]
                masks[at] ^= bit
                used[at] |= bit
                ids.append(slots[at].slices[bit.bit_length() - 1])
            places.append(RankPlace(rank, slots[at].node, tuple(ids)))
        return tuple(places), used


def _left_to_others(
    fit: GangFit, slots: Sequence[NodeSlots], masks: Sequence[int], rest: Sequence[int]
) -> list[int]:
    """The masks without what other gangs had, on nodes that have enough besides for those of ``rest``."""
    found = []
    for at, (slot, mask) in enumerate(zip(slots, masks, strict=True)):
        unclaimed = mask & ~slot.mask(s for s in slot.slices if s in fit.theirs)
        enough = unclaimed.bit_count() >= rest.count(at) * fit.rank_class.each
        found.append(unclaimed if enough else mask)
    return found
