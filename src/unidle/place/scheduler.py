"""Gangs on the network tree: all or nothing, in queue order, each in the lowest tier that holds it.

A gang goes where its hard wishes hold (``network.domains``), its ranks are ordered so that tensor, data and
pipeline groups cross as few tiers as possible (``network.rank_order``), and who cannot be placed gets the
reason: which wish is in the way, on how many domains, and what would help. A job that does not fit is
passed over.
"""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING, Final, NamedTuple

import numpy as np

from unidle.jobs import JobSpec, Layout, RankPlace, Reason
from unidle.place.actions.slices import PARTS_LATER
from unidle.place.explain.gang import GangRefusal, never_fits
from unidle.place.explain.queue import why_moved
from unidle.place.gang.fit import GangFit, GangRound, Like
from unidle.place.network.rank_order import RankOrder, map_ranks
from unidle.place.network.traffic import usual_traffic
from unidle.place.nodes.free import FreeSlices
from unidle.place.nodes.reserve import Access
from unidle.place.protocol import Keep, Place, Plan, Stop, Wait
from unidle.place.queue_order import noun, starves, starves_ns
from unidle.place.session import Placement, QuotaRound, SessionCache
from unidle.place.slices.fit import PARTS_WAIT, SliceFit
from unidle.place.slices.offers import SliceOffers
from unidle.view.fold import collector_paused
from unidle.view.jobs import JobView, in_full
from unidle.view.kept import comes_back
from unidle.view.state import View
from unidle.view.waiting import Shape
from unidle.words import are

if TYPE_CHECKING:
    from unidle.place.protocol import Round


class Scheduler:
    """The policy ``unidle`` (see the module). What it keeps between calls follows from the view."""

    def __init__(self) -> None:
        self._cache: SessionCache | None = None

    def decide(self, view: View, now_ns: int) -> Plan:
        with collector_paused():
            return self._decide(view, now_ns)

    def _decide(self, view: View, now_ns: int) -> Plan:
        if _needs_quotas(view) or starves(view, now_ns):
            return self._decide_by_quota(view, now_ns)
        cache = self._on(view)
        try:
            plan = cache.gangs(view).decide(now_ns)
            return replace(plan, again_ns=starves_ns(view, now_ns))
        finally:
            cache.log.rollback()

    def why_not(self, view: View, spec: JobSpec) -> Reason | None:
        """Why a gang of this job cannot be placed now; None where it can."""
        never = _never_by_quota(view, spec)
        round_ = self._on(view).gangs(view)
        if isinstance(round_.part("", spec), SliceFit):
            return never
        answer = round_.fit(spec)
        return never or (answer.because if isinstance(answer, GangRefusal) else None)

    def _decide_by_quota(self, view: View, now_ns: int) -> Plan:
        cache = self._on(view)
        free_slices, round_ = cache.free_slices, cache.gangs(view)
        queues = QuotaRound(cache, view, now_ns, round_)
        places: list[Place] = []

        def place(start: Placement) -> None:
            job = view.jobs[start.job]
            if start.given is not None:
                places.append(Place(start.job, round_.take_parts(start.given), start.given.because))
                keep_firm(job, places[-1])
                return
            assert start.rank_class is not None
            assert start.plan is not None
            assert start.option is not None
            fit = start.fit or round_.mapped(start.rank_class, start.plan, start.gang, job)
            fit = round_.chosen(fit, start.option, job.spec, job)
            places.append(Place(start.job, round_.take(fit), fit.because()))
            keep_firm(job, places[-1])

        def keep_firm(job: JobView, made: Place) -> None:
            if free_slices.reserve is not None and not job.spec.filler:
                free_slices.keep_firm(place.node for place in made.places)

        try:
            answer = queues.decide(place)
            waits = _waiting(view, now_ns, round_, queues, answer, free_slices)
            bare = self._without_devices(view, now_ns, round_)
        finally:
            cache.log.rollback()
        keeps, stops = _stops(view, queues, answer)
        # what was reserved before these starts were known may have kept others from theirs
        again_ns = now_ns if places and answer.kept_back else answer.again_ns
        decided = {made.job for made in places} | {wait.job for wait in waits}
        if free_slices.reserve is not None and not decided.isdisjoint(free_slices.reserve.coming_back):
            again_ns = now_ns  # what was kept for them is for others now
        return Plan(
            (*places, *bare.places), (*waits, *bare.waits), keeps, stops, again_ns, round_.recuts()
        )  # fmt: skip

    def _without_devices(self, view: View, now_ns: int, round_: GangRound) -> Plan:
        """Gangs that need no devices, on the cores and memory that the others of this round left.

        Quotas are of devices, and none bounds them; their queue has to be there.
        """
        others = {shape for shape in view.waiting if shape.devices_per_rank}
        if len(others) == len(view.waiting):
            return Plan()
        known: dict[str, Reason | None] = {}  # by queue

        def never(spec: JobSpec) -> Reason | None:
            if spec.queue not in known:
                known[spec.queue] = _never_by_quota(view, spec)
            return known[spec.queue]

        return round_.decide(now_ns, others, never)

    def try_one(self, view: View, spec: JobSpec) -> Placed | GangRefusal:
        """What a gang of such a job would get now were it alone and new, or why it gets nothing."""
        cache = self._on(view)
        round_ = cache.gangs(view)
        found = round_.find(spec)
        given = round_.part("", spec) if found is None else None
        if isinstance(given, SliceFit):
            return _placed_in_parts(cache.free_slices, given, spec)
        fit = found or round_.refusal(spec)
        if isinstance(fit, GangRefusal):
            return fit
        if fit.mapping is None:
            fit.mapping = round_.map(fit.plan, spec.layout or Layout(dp=spec.ranks))
        try:
            return Placed(round_.take(fit), fit.because(), fit.mapping)
        finally:
            cache.log.rollback()

    def ever(self, view: View, spec: JobSpec) -> bool:
        """Whether the whole fleet, empty and healthy, holds a gang of this job."""
        if spec.device == "any" and view.fleet.queues:  # room of one kind and quota of another are neither
            return any(self.ever(view, replace(spec, device=kind)) for kind in ("gpu", "cpu"))
        if _never_by_quota(view, spec) is not None:
            return False
        cache = self._on(view)
        if never_fits(cache.classes, spec) is None:
            return True
        round_ = cache.gangs(view)
        return round_.ever_in_parts(spec) and _never_by_quota(view, spec, round_.sharing) is None

    def _on(self, view: View) -> SessionCache:
        cache = self._cache
        if cache is None or not cache.follow(view):
            cache = self._cache = SessionCache(view)
        return cache


class Placed(NamedTuple):
    """A gang's places in rank order, why there, and what its groups cost there (modelled)."""

    places: tuple[RankPlace, ...]
    because: Reason
    mapping: RankOrder


def _placed_in_parts(free_slices: FreeSlices, given: SliceFit, spec: JobSpec) -> Placed:
    """Parts of devices with their ranks in the best order."""
    position = [free_slices.place[place.node] for place in given.places]
    nodes, counts = np.unique(np.array(position, np.int64), return_counts=True)
    layout = spec.layout or Layout(dp=spec.ranks)
    mapping = map_ranks(free_slices.tree, nodes, counts, layout, usual_traffic(layout))
    return Placed(given.places, given.because, mapping)


def _never_by_quota(view: View, spec: JobSpec, sharing: SliceOffers | None = None) -> Reason | None:
    if not view.fleet.queues:
        return None
    from unidle.place.admission import never

    return never(view.fleet, spec, view.time_ns, sharing)


def _needs_quotas(view: View) -> bool:
    """Whether anything but priority and order of submission decides who starts."""
    named = view.fleet.queues or view.fleet.migration or view.promised
    if named or any(shape.ranked for shape in view.waiting):
        return True
    # who comes back may have filler stopped
    waiting = (view.jobs.open[job] for line in view.waiting.values() for _, _, job in line)
    return view.fleet.guard.keeps_spares and any(comes_back(job) for job in waiting)


_FOR_ROOM: Final = frozenset({"planned", "reserved", "never_free", "depth"})


def _waiting(
    view: View, now_ns: int, round_: GangRound, queues: QuotaRound, answer: Round, free_slices: FreeSlices
) -> tuple[Wait, ...]:
    """Why jobs wait whose reason is not known yet: what blocks them, and the planned start if it exists."""
    found: list[Wait] = []
    in_the_way: dict[tuple[Shape, Access], GangFit | GangRefusal] = {}
    no_part: dict[tuple[Like, str], Reason] = {}
    starts, assumed_ns = {start.job for start in answer.starts}, queues.assumed_from_ns
    told = view.unjudged.union(move.job for move in answer.moves)
    for job in sorted((view.jobs.open[job] for job in told), key=lambda job: job.order):
        if job.id in starts or job.not_before_ns > now_ns or not job.spec.needs_devices:
            continue
        because = queues.never.get(job.id) or answer.waits.get(job.id, queues.too_deep)
        if because is PARTS_WAIT or because.code == PARTS_LATER:
            # of the devices that its queue lets it have
            of_kind = queues.job_class(job.id).parts or job.spec
            like = (round_.like(job), of_kind.device)
            if like not in no_part:
                no_part[like] = round_.refusal(of_kind, job.id).because
            now = no_part[like]
            text = now.text if because is PARTS_WAIT else f"{now.text}; {because.text}"
            because = Reason(now.code, text, {**now.figures, **because.figures})
        figures, text = because.figures, because.text
        if because.code in _FOR_ROOM:
            access = free_slices.access(job.spec, job)
            way = in_the_way.get((job.shape, access)) or round_.fit(job.spec, access)
            in_the_way[job.shape, access] = way
            now = way.because if isinstance(way, GangRefusal) else _kept(round_, job.spec, access)
            figures, text = {**now.figures, **figures}, f"{now.text}; {text}"
        if (nobody := answer.nobody.get(job.id)) is not None:
            text = f"{text}; no job is stopped for it: {nobody.text}"
        start_ns = answer.planned_ns.get(job.id)
        if start_ns is not None:
            if because.code == "planned" and assumed_ns is not None and start_ns >= assumed_ns:
                text = text.replace(because.text, "the end of running jobs is unknown")
            figures = {**figures, "planned_start_ns": start_ns}
        found.append(Wait(job.id, Reason(because.code, text, figures)))
    return tuple(found)


def _kept(round_: GangRound, spec: JobSpec, access: Access) -> Reason:
    """What is free for a job that would fit, were it not for those before it."""
    rooms = [(int(c.rooms.room.sum()), c.devices) for c in round_.classes(spec, access)]
    free, devices = max(rooms)[0] * spec.devices_per_rank, max(rooms)[1]
    text = f"needs {spec.devices} {noun(spec.device, spec.devices)}, {free} of {devices} {are(free)} free, and kept for jobs before it"
    return Reason("kept", text, {"needs": spec.devices, "free": free, "devices": devices})


def _stops(view: View, queues: QuotaRound, answer: Round) -> tuple[tuple[Keep, ...], tuple[Stop, ...]]:
    keeps, stops = [], []
    for made in answer.stops:
        devices = {queues.node(index): count for index, count in made.hold.devices.items()}
        keeps.append(Keep(made.job, queues.kind_of(made.job), devices, made.hold.expires_ns, made.because))
        grace_ns = view.fleet.guard.spare_grace_ns if made.spares else None
        text = f"stopped to make room for {in_full(view.jobs[made.job])}: {made.because.text}"
        because = replace(made.because, text=text)
        stops += [Stop(victim, because, made.job, grace_ns=grace_ns) for victim in made.victims]
    for move in answer.moves:
        for hold in (move.hold, *move.moves):
            devices = {queues.node(index): count for index, count in hold.devices.items()}
            keeps.append(Keep(hold.job, queues.kind_of(hold.job), devices, hold.expires_ns, move.because))
        for hold, lost_us in zip(move.moves, move.lost_us, strict=True):
            on = [queues.node(index) for index in hold.devices]
            stops.append(
                Stop(hold.job, why_moved(move, on, lost_us, in_full(view.jobs[move.job])), move.job, "moved")
            )
    return tuple(keeps), tuple(stops)
