"""Gangs on the network tree: all or nothing, in queue order, each in the lowest tier that holds it.

A gang goes where its hard wishes hold (``place.gang``), its ranks are ordered so that tensor, data and
pipeline groups cross as few tiers as possible (``place.mapping``), and who cannot be placed gets the
reason: which wish is in the way, on how many domains, and what would help. A job that does not fit is
passed over.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from typing import TYPE_CHECKING, Final, NamedTuple

import numpy as np

from unidle.jobs import JobSpec, Layout, RankPlace, Reason
from unidle.place.blocked import why_blocked
from unidle.place.constraint import Barrier, Blocked, Gang, GangPlan, gang_of
from unidle.place.ground import Ground, RankClass
from unidle.place.inner import Seats, text_of
from unidle.place.mapping import Mapping, map_ranks
from unidle.place.plan import Keep, Place, Plan, Recut, Stop, Wait
from unidle.place.pools import Option, Pool, candidates
from unidle.place.queue.round import PARTS_WAIT
from unidle.place.queue.why import why_moved
from unidle.place.queued import InQueueOrder, in_words, noun, starves, starves_ns
from unidle.place.repairing import Returning
from unidle.place.sharing import Given, SharingRound
from unidle.place.shortage import narrowed, scattered, wanted
from unidle.place.traffic import usual_traffic
from unidle.place.tree import Ints
from unidle.place.wired import seats_of, well_wired
from unidle.share.refusal import Refused as NoPart
from unidle.view.fold import collector_paused
from unidle.view.occupancy import NodeSlots
from unidle.view.state import JobView, Shape, View
from unidle.words import are

if TYPE_CHECKING:
    from unidle.place.queue.round import Round
    from unidle.place.quotas import Placement, QuotaRound


class Scheduler:
    """The policy ``unidle`` (see the module). What it keeps between calls follows from the view."""

    def __init__(self) -> None:
        self._ground: Ground | None = None

    def decide(self, view: View, now_ns: int) -> Plan:
        with collector_paused():
            return self._decide(view, now_ns)

    def _decide(self, view: View, now_ns: int) -> Plan:
        if _needs_quotas(view) or starves(view, now_ns):
            return self._decide_by_quota(view, now_ns)
        round_ = GangRound(self._on(view), view)
        try:
            plan = round_.decide(now_ns)
            return replace(plan, again_ns=starves_ns(view, now_ns))
        finally:
            round_.undo()

    def why_not(self, view: View, spec: JobSpec) -> Reason | None:
        """Why a gang of this job cannot be placed now; None where it can."""
        never = _never_by_quota(view, spec)
        round_ = GangRound(self._on(view), view)
        if isinstance(round_.part("", spec), Given):
            return never
        answer = round_.fit(spec)
        return never or (answer.because if isinstance(answer, Refused) else None)

    def _decide_by_quota(self, view: View, now_ns: int) -> Plan:
        from unidle.place.quotas import QuotaRound

        ground = self._on(view)
        round_ = GangRound(ground, view)
        queues = QuotaRound(ground, view, now_ns, round_.sharing)
        places: list[Place] = []

        def place(start: Placement) -> None:
            if start.given is not None:
                places.append(Place(start.job, round_.take_parts(start.given), start.given.because))
                return
            assert start.rank_class is not None
            assert start.plan is not None
            assert start.option is not None
            job = view.jobs[start.job]
            fit = round_.mapped(start.rank_class, start.plan, start.gang, job)
            fit = round_.chosen(fit, start.option, job.spec, job)
            places.append(Place(start.job, round_.take(fit), fit.because()))

        try:
            answer = queues.decide(place)
            waits = _waiting(view, now_ns, round_, queues, answer)
        finally:
            round_.undo()
        keeps, stops = _stops(queues, answer)
        # what was reserved before these starts were known may have kept others from theirs
        again_ns = now_ns if places and answer.kept_back else answer.again_ns
        return Plan(tuple(places), waits, keeps, stops, again_ns, round_.recuts())

    def try_one(self, view: View, spec: JobSpec, job: str | None = None) -> Placed | Refused:
        """What a gang of this job would get now, with all that is known of it, or why it gets nothing.

        ``job`` is its id where it waits in the view: it may have ranks that stay where they were.
        """
        round_ = GangRound(self._on(view), view)
        found = round_.find(spec, None if job is None else view.jobs.open.get(job))
        given = round_.part("", spec) if found is None else None
        if isinstance(given, Given):
            return _placed_in_parts(self._on(view), given, spec)
        fit = found or round_.refusal(spec)
        if isinstance(fit, Refused):
            return fit
        if fit.mapping is None:
            fit.mapping = round_.map(fit.plan, spec.layout or Layout(dp=spec.ranks))
        try:
            return Placed(round_.take(fit), fit.because(), fit.mapping)
        finally:
            round_.undo()

    def ever(self, view: View, spec: JobSpec) -> bool:
        """Whether the whole fleet, empty and healthy, holds a gang of this job."""
        if _never_by_quota(view, spec) is not None:
            return False
        ground = self._on(view)
        if never_fits(ground, spec) is None:
            return True
        sharing = _sharing(ground, view) if spec.share is not None else None
        if sharing is None or sharing.never(spec) is not None:
            return False
        from unidle.place.fleet_queues import never
        from unidle.view.usage import milli_of

        least = min((milli_of(ppm) for ppm in sharing.share_ppm(spec)), default=0) * spec.ranks
        return never(view.fleet, spec, view.time_ns, least) is None

    def _on(self, view: View) -> Ground:
        ground = self._ground
        if ground is None or not ground.follow(view):
            ground = self._ground = Ground(view)
        return ground


class Fit:
    """Where a gang can go: its nodes, the order of its ranks, and the reason. ``seats`` are known once it is taken."""

    def __init__(
        self, rank_class: RankClass, plan: GangPlan, node_of_rank: Ints, mapping: Mapping | None, tp: int = 1,
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
            takes = in_words(self.mapping.time_ns)
            text += (
                f"; modelled collectives take {takes} a step, bound by {slowest[0]} over {slowest[1].tier}"
            )
        return Reason(reason.code, text, {**reason.figures, **times})


class Placed(NamedTuple):
    """A gang's places in rank order, why there, and what its groups cost there (modelled)."""

    places: tuple[RankPlace, ...]
    because: Reason
    mapping: Mapping


class Refused(NamedTuple):
    """Why a gang cannot be placed, and each thing in the way."""

    because: Reason
    barriers: tuple[Barrier, ...] = ()


class GangRound:
    """One round of decisions on top of a ground that is left as it was found."""

    def __init__(self, ground: Ground, view: View) -> None:
        self._ground, self._view = ground, view
        self._returning = Returning(ground, view, ground.left)
        self.sharing = _sharing(ground, view)

    def decide(self, now_ns: int) -> Plan:
        view = self._view
        unjudged = sorted((view.jobs[j] for j in view.unjudged), key=lambda job: job.order)
        new = {job.shape for job in unjudged}  # to say why takes longer than to know that it does not fit
        places: dict[str, Place] = {}
        blocked: dict[Shape, Reason | None] = {}
        for shape, job_id in InQueueOrder(view, now_ns, blocked):
            job = view.jobs[job_id]
            spec = job.spec
            fit = self.find(spec, job)
            if fit is not None:
                places[job_id] = Place(job_id, self.take(fit), fit.because())
            elif isinstance(given := self.part(job_id, spec), Given):
                places[job_id] = Place(job_id, self.take_parts(given), given.because)
            else:  # what is free only shrinks within one round
                blocked[shape] = self.refusal(spec, job_id).because if shape in new else None
        waits = [
            Wait(job.id, because)
            for job in unjudged
            if job.id not in places
            and job.not_before_ns <= now_ns
            and (because := blocked.get(job.shape)) is not None
        ]
        return Plan(tuple(places.values()), tuple(waits), cuts=self.recuts())

    def part(self, job: str, spec: JobSpec) -> Given | NoPart | None:
        """Parts of devices that are cut on demand for the job, or why it gets none; None where it asks for none."""
        if self.sharing is None or spec.share is None:
            return None
        return self.sharing.find(job, spec)

    def take_parts(self, given: Given) -> tuple[RankPlace, ...]:
        """Give the gang its parts of devices."""
        assert self.sharing is not None
        return self.sharing.take(given)

    def recuts(self) -> tuple[Recut, ...]:
        return self.sharing.recuts() if self.sharing is not None else ()

    def fit(self, spec: JobSpec, job: JobView | None = None) -> Fit | Refused:
        """Where a gang of this job goes now, or why it cannot."""
        return self.find(spec, job) or self.refusal(spec)

    def find(self, spec: JobSpec, job: JobView | None = None) -> Fit | None:
        """Where a gang of this job goes now; where it was, as far as it can."""
        gang, options = gang_of(spec), candidates(self._ground, spec, self._view, job)
        for option, rank_class in options if job is None else self._returning.home_first(job.id, options):
            plan = rank_class.rooms.place(gang) if rank_class.total >= gang.ranks else None
            if plan is not None:
                again = None
                if job is not None:
                    again = self._returning.plan(job.id, rank_class, gang, rank_class.rooms.room)
                plan = again or well_wired(self._ground, rank_class, plan, gang, rank_class.free)
                return self.chosen(self.mapped(rank_class, plan, gang, job), option, spec, job)
        return None

    def chosen(self, fit: Fit, option: Option, spec: JobSpec, job: JobView | None = None) -> Fit:
        """The fit, with the reason why on the devices of this option."""
        pools = self._ground.pools
        if option.pool.models:
            options = pools.options(spec, self._view, job)  # those of a kept family know no speeds
            fit.choice = pools.why(options, next(o for o in options if o.pool == option.pool))
        return fit

    def refusal(self, spec: JobSpec, job: str = "") -> Refused:
        """Why a gang of this job, for which no place was found, has none."""
        gang = gang_of(spec)
        reasons, models = [], []
        for option, rank_class in candidates(self._ground, spec, self._view):
            if rank_class.never(gang) is not None:
                continue
            refused = _waits(spec, rank_class, why_blocked(rank_class.rooms, gang))
            reasons.append(refused)
            if option.pool.models and not option.mixed:
                figures = refused.because.figures
                models.append(f"{option.name} {figures['free']} of {figures['devices']} free")
        static = never_fits(self._ground, spec) or _with_models(_most_devices(reasons), models)
        if self.sharing is not None and spec.share is not None:
            return self._no_part(spec, job, static)
        return static

    def _no_part(self, spec: JobSpec, job: str, static: Refused) -> Refused:
        """Why neither a part that is declared nor one that is made on demand will do."""
        assert self.sharing is not None
        never = self.sharing.never(spec)
        if never is not None:
            if static.because.code != "never_fits":
                return static
            return Refused(
                Reason("never_fits", f"{never.because.text}: it can never start here", never.because.figures)
            )
        answer = self.sharing.find(job, spec, every=True)
        return Refused(answer.because) if not isinstance(answer, Given) else static

    def classes(self, spec: JobSpec) -> list[RankClass]:
        """The classes of the job's ranks on the pools that it may use."""
        return [rank_class for _, rank_class in candidates(self._ground, spec, self._view)]

    def rank_class(self, spec: JobSpec, pool: Pool) -> RankClass:
        """The class of the job's ranks on the devices of a pool, with what this round gave away."""
        return self._ground.rank_class(spec, pool)

    def undo(self) -> None:
        """Leave the ground as the view has it."""
        self._ground.undo()

    def map(self, plan: GangPlan, layout: Layout) -> Mapping:
        """The order of ranks on the plan's nodes."""
        tree, traffic = self._ground.tree, usual_traffic(layout)
        return map_ranks(tree, plan.nodes, plan.counts, layout, traffic, plan.fabric, plan.kept)

    def mapped(self, rank_class: RankClass, plan: GangPlan, gang: Gang, job: JobView | None = None) -> Fit:
        """The plan with an order of ranks: that of the job's last attempt where it comes back."""
        if job is not None and self._returning.last(job.id) is not None:
            free = [rank_class.free(p) for p in plan.nodes.tolist()]
            again = self._returning.order(job.id, rank_class, plan, free)
            if again is not None:
                return Fit(
                    rank_class, again.plan, again.node_of_rank, again.mapping, gang.size("tp"), again.own,
                    again.theirs,
                )  # fmt: skip
        if gang.layout is None or len(plan.nodes) == 1:
            there = np.repeat(np.arange(len(plan.nodes)), plan.counts)
            return Fit(rank_class, plan, there, None, gang.size("tp"))
        mapping = self.map(plan, gang.layout)
        return Fit(rank_class, plan, mapping.node_of_rank, mapping, gang.size("tp"))

    def take(self, fit: Fit) -> tuple[RankPlace, ...]:
        """Give the gang its slices: those that ranks had before; else of each node the best connected, where that is
        known, or the lowest free ones."""
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
        seats = seats_of(self._ground, rank_class, fit.tp, order, positions, masks, fit.own)
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
        for position, mask, ranks in zip(positions, used, fit.plan.counts.tolist(), strict=True):
            self._ground.take(rank_class.kind, position, mask, rank_class.requests, ranks)
        return tuple(places)


def _left_to_others(
    fit: Fit, slots: Sequence[NodeSlots], masks: Sequence[int], rest: Sequence[int]
) -> list[int]:
    """The masks without what other gangs had, on nodes that have enough besides for those of ``rest``."""
    found = []
    for at, (slot, mask) in enumerate(zip(slots, masks, strict=True)):
        besides = mask & ~slot.mask(s for s in slot.slices if s in fit.theirs)
        enough = besides.bit_count() >= rest.count(at) * fit.rank_class.each
        found.append(besides if enough else mask)
    return found


def _sharing(ground: Ground, view: View) -> SharingRound | None:
    return SharingRound(ground, view) if view.cuttable_nodes() else None


def _placed_in_parts(ground: Ground, given: Given, spec: JobSpec) -> Placed:
    """Parts of devices with their ranks in the best order."""
    position = [ground.place[place.node] for place in given.places]
    nodes, counts = np.unique(np.array(position, np.int64), return_counts=True)
    layout = spec.layout or Layout(dp=spec.ranks)
    mapping = map_ranks(ground.tree, nodes, counts, layout, usual_traffic(layout))
    return Placed(given.places, given.because, mapping)


def _never_by_quota(view: View, spec: JobSpec) -> Reason | None:
    if not view.fleet.queues:
        return None
    from unidle.place.fleet_queues import never

    return never(view.fleet, spec, view.time_ns)


def _needs_quotas(view: View) -> bool:
    """Whether anything but priority and order of submission decides who starts."""
    named = view.fleet.queues or view.fleet.migration or view.promised
    return bool(named) or any(shape.ranked for shape in view.waiting)


_FOR_ROOM: Final = frozenset({"planned", "reserved", "never_free", "depth"})


def _waiting(
    view: View, now_ns: int, round_: GangRound, queues: QuotaRound, answer: Round
) -> tuple[Wait, ...]:
    """Why those wait of whom it is not known yet: what is in the way, and the planned start where there is one."""
    found: list[Wait] = []
    in_the_way: dict[Shape, Fit | Refused] = {}
    starts = {start.job for start in answer.starts}
    told = view.unjudged.union(move.job for move in answer.moves)
    for job in sorted((view.jobs.open[job] for job in told), key=lambda job: job.order):
        if job.id in starts or job.not_before_ns > now_ns:
            continue
        because = queues.never.get(job.id) or answer.waits.get(job.id, queues.too_deep)
        if because is PARTS_WAIT:
            because = round_.refusal(job.spec, job.id).because
        figures, text = because.figures, because.text
        if because.code in _FOR_ROOM:
            way = in_the_way.get(job.shape) or round_.fit(job.spec)
            in_the_way[job.shape] = way
            now = way.because if isinstance(way, Refused) else _kept(round_, job.spec)
            figures, text = {**now.figures, **figures}, f"{now.text}; {text}"
        start_ns = answer.planned_ns.get(job.id)
        if start_ns is not None:
            figures = {**figures, "planned_start_ns": start_ns}
        found.append(Wait(job.id, Reason(because.code, text, figures)))
    return tuple(found)


def _kept(round_: GangRound, spec: JobSpec) -> Reason:
    """What is free for a job that would fit, were it not for those before it."""
    rooms = [(int(c.rooms.room.sum()), c.devices) for c in round_.classes(spec)]
    free, devices = max(rooms)[0] * spec.devices_per_rank, max(rooms)[1]
    text = f"needs {spec.devices} {noun(spec.device, spec.devices)}, {free} of {devices} {are(free)} free, and kept for jobs before it"
    return Reason("kept", text, {"needs": spec.devices, "free": free, "devices": devices})


def _stops(queues: QuotaRound, answer: Round) -> tuple[tuple[Keep, ...], tuple[Stop, ...]]:
    keeps, stops = [], []
    for made in answer.stops:
        devices = {queues.node(index): count for index, count in made.hold.devices.items()}
        keeps.append(Keep(made.job, queues.kind_of(made.job), devices, made.hold.expires_ns, made.because))
        stops += [Stop(victim, made.because, made.job) for victim in made.victims]
    for move in answer.moves:
        for hold in (move.hold, *move.moves):
            devices = {queues.node(index): count for index, count in hold.devices.items()}
            keeps.append(Keep(hold.job, queues.kind_of(hold.job), devices, hold.expires_ns, move.because))
        for hold, lost_us in zip(move.moves, move.lost_us, strict=True):
            on = [queues.node(index) for index in hold.devices]
            stops.append(Stop(hold.job, why_moved(move, on, lost_us), move.job, "moved"))
    return tuple(keeps), tuple(stops)


def never_fits(ground: Ground, spec: JobSpec) -> Refused | None:
    """Why no state of this fleet holds the gang; None where one does."""
    gang = gang_of(spec)
    refused: list[tuple[Option, RankClass, Blocked]] = []
    for option, rank_class in candidates(ground, spec):
        verdict = rank_class.never(gang)
        if verdict is None:
            return None
        refused.append((option, rank_class, verdict))
    # those say why that come nearest to holding it
    nearest = max(refused, key=lambda one: (int(one[2].because.figures.get("largest", 0)), one[1].devices))
    vendors = {option.pool.vendor for option, _, _ in refused if option.pool.vendor}
    return _too_large(ground, spec, *nearest, of_many=len(vendors) > 1)


def _too_large(
    ground: Ground, spec: JobSpec, option: Option, rank_class: RankClass, verdict: Blocked, *, of_many: bool
) -> Refused:
    needs, total, kind = spec.devices, rank_class.devices, rank_class.kind
    if needs > total:
        text = f"needs {needs} {wanted(spec, kind)}, and the fleet has {total} that it may use"
        text += option.on if total else ""
        by = narrowed(ground, spec, kind) if spec.share is None else ""
        text += f" ({by})" if by else ""
        text += "; a gang is on GPUs of one vendor" if of_many and total else ""
    elif verdict.barriers[0].constraint is None:
        text = scattered(spec, verdict.barriers[0].largest, kind, "the empty fleet") + option.on
    else:
        text = verdict.what + (option.on if verdict.because.code != "unknown_tier" else "")
    figures = {**verdict.because.figures, "needs": needs, "devices": total}
    because = Reason("never_fits", f"{text}: it can never start here", figures)
    return Refused(because, tuple(b.of_empty_fleet() for b in verdict.barriers if b.constraint is not None))


def _waits(spec: JobSpec, rank_class: RankClass, blocked: Blocked) -> Refused:
    needs, room, left = spec.devices, int(rank_class.rooms.room.sum()), int(rank_class.left().sum())
    free = room * spec.devices_per_rank
    figures = {**blocked.because.figures, "needs": needs, "free": free, "devices": rank_class.devices}
    if blocked.because.code != "no_room":
        return Refused(Reason("no_fit", blocked.because.text, figures), blocked.barriers)
    if left >= needs:
        text = f"{scattered(spec, room, rank_class.kind, 'the fleet now')}; {left} of {rank_class.devices} devices are free"
    else:
        text = f"needs {needs} {wanted(spec, rank_class.kind)}, {left} of {rank_class.devices} {are(left)} free for it"
    return Refused(Reason("no_fit", text, figures), blocked.barriers)


def _with_models(refused: Refused, models: Sequence[str]) -> Refused:
    """Of several models, how much of each is free: a gang is on one of them."""
    if len(models) < 2:
        return refused
    because = refused.because
    text = f"{because.text}; a gang is on one model: {', '.join(models)}"
    return Refused(Reason(because.code, text, because.figures), refused.barriers)


def _most_devices(refused: Sequence[Refused]) -> Refused:
    """Of the kinds that would do, the one with the most devices says why."""
    return max(refused, key=lambda one: int(one.because.figures["devices"]))
