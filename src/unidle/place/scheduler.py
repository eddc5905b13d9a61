"""The cycle: open a session, try the actions in order for the next job of the next queue, close; the draft is the plan.

Without queues gangs are placed in the order of priority and submission (``gang.fit``). A gang goes where its hard wishes
hold (``network.domains``), its ranks are ordered so that tensor, data and pipeline groups cross as few tiers as possible
(``network.rank_order``), and who cannot be placed gets the reason. A job that does not fit is passed over.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from typing import Final, NamedTuple

import numpy as np

from unidle.jobs import JobSpec, Layout, RankPlace, Reason
from unidle.place.actions.overtake import Overtake, next_overtaking_ns
from unidle.place.actions.preempt import Preempt, ReclaimSpares
from unidle.place.actions.start import (
    PARTS_LATER,
    ChargeByPlace,
    KnownRefusal,
    ReserveQuota,
    ReserveRoom,
    Start,
    StartHeld,
    StartOtherKind,
    WaitBehind,
)
from unidle.place.explain import GangRefusal, never_fits
from unidle.place.fleet_session import FleetSession
from unidle.place.gang.fit import GangFit, GangRound, Like
from unidle.place.model import Hold
from unidle.place.network.rank_order import RankOrder, map_ranks
from unidle.place.network.traffic import usual_traffic
from unidle.place.nodes.free import Access, FreeSlices
from unidle.place.protocol import Keep, Plan, Stop, Wait, noun, starves, starves_ns
from unidle.place.queue.backfill import too_deep
from unidle.place.session import Action, Attempt, Consolidation, Draft, Session
from unidle.place.slices.fit import PARTS_WAIT, SliceFit
from unidle.place.slices.offers import SliceOffers
from unidle.place.snapshot import SessionCache
from unidle.view.fold import collector_paused
from unidle.view.jobs import in_full
from unidle.view.spares import comes_back
from unidle.view.state import View
from unidle.view.waiting import Shape
from unidle.words import are, counted, device_time

ACTIONS: Final[tuple[Action, ...]] = (
    StartHeld(), KnownRefusal(), WaitBehind(), Start(), StartOtherKind(), ChargeByPlace(parts=False),
    ReclaimSpares(), Preempt(), Overtake(), ChargeByPlace(parts=True), ReserveQuota(), ReserveRoom(),
)  # fmt: skip
"""What is tried for a job, in this order, until it is decided on."""
_OTHERWISE: Final = frozenset({"behind", "gathering", "consolidate"})  # waits for something else than room


def decide(s: Session) -> Draft:
    """Decide on all waiting jobs: who starts, who is stopped for whom, who waits and why.

    The queue whose turn it is offers its jobs in order. A job starts where its queue may use more and
    the nodes hold it; where it has the right to, room is made by stopping others and held for it; else
    it waits, the first ones with room reserved for them, which no later job may delay.
    """
    s.open()
    for attempt in s.attempts():
        any(action.attempt(s, attempt) for action in ACTIONS)
        _explain_no_victims(s, attempt)
    times = (s.again_ns(), next_overtaking_ns(s))
    s.draft.again_ns = min((at_ns for at_ns in times if at_ns is not None), default=None)
    return s.draft


def _explain_no_victims(s: Session, a: Attempt) -> None:
    """Why no job is stopped for one that waits for room."""
    waits = s.draft.waits.get(a.demand.job)
    if waits is None or waits.code in _OTHERWISE or not s.wants_time(a.demand.job):
        return
    why = s.learned.no_victims.why(a.like, a.demand)
    if why is not None and why.code != waits.code:
        s.draft.no_victims[a.demand.job] = why


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
        s = FleetSession(cache, view, now_ns)
        try:
            draft = decide(s)
            waits = why_all_wait(view, s, draft)
            bare = self._without_devices(view, now_ns, s.gangs)
        finally:
            s.close()
        keeps, stops = kept_and_stopped(view, s, draft)
        # what was reserved before these starts were known may have kept others from theirs
        again_ns = now_ns if s.places and draft.kept_back else draft.again_ns
        decided = {made.job for made in s.places} | {wait.job for wait in waits}
        reserve = cache.free_slices.reserve
        if reserve is not None and not decided.isdisjoint(reserve.coming_back):
            again_ns = now_ns  # what was kept for them is for others now
        return Plan(
            (*s.places, *bare.places), (*waits, *bare.waits), keeps, stops, again_ns, s.gangs.recuts()
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
    if named or view.fleet.order.by != "fifo" or any(shape.ranked for shape in view.waiting):
        return True
    # who comes back may have filler stopped
    waiting = (view.jobs.open[job] for line in view.waiting.values() for _, _, job in line)
    return view.fleet.guard.keeps_spares and any(comes_back(job) for job in waiting)


_FOR_ROOM: Final = frozenset({"planned", "reserved", "never_free", "depth"})


def why_all_wait(view: View, s: FleetSession, draft: Draft) -> tuple[Wait, ...]:
    """Why jobs wait whose reason is not known yet: what blocks them, and the planned start if it exists."""
    found: list[Wait] = []
    in_the_way: dict[tuple[Shape, Access], GangFit | GangRefusal] = {}
    no_part: dict[tuple[Like, str], Reason] = {}
    starts, assumed_ns = {start.job for start in draft.starts}, s.assumed_from_ns
    unexplained = view.unjudged.union(move.job for move in draft.moves)
    for job in sorted((view.jobs.open[job] for job in unexplained), key=lambda job: job.order):
        if job.id in starts or job.not_before_ns > s.now_ns or not job.spec.needs_devices:
            continue
        because = s.never.get(job.id) or draft.waits.get(job.id, too_deep(s.rules.backfill))
        if because is PARTS_WAIT or because.code == PARTS_LATER:
            # of the devices that its queue lets it have
            of_kind = s.job_class(job.id).parts or job.spec
            like = (s.gangs.like(job), of_kind.device)
            if like not in no_part:
                no_part[like] = s.gangs.refusal(of_kind, job.id).because
            now = no_part[like]
            text = now.text if because is PARTS_WAIT else f"{now.text}; {because.text}"
            because = Reason(now.code, text, {**now.figures, **because.figures})
        figures, text = because.figures, because.text
        if because.code in _FOR_ROOM:
            access = s.access(job)
            way = in_the_way.get((job.shape, access)) or s.gangs.fit(job.spec, access)
            in_the_way[job.shape, access] = way
            now = way.because if isinstance(way, GangRefusal) else _kept(s, job.spec, access)
            figures, text = {**now.figures, **figures}, f"{now.text}; {text}"
        if (no_victims := draft.no_victims.get(job.id)) is not None:
            text = f"{text}; no job is stopped for it: {no_victims.text}"
        start_ns = draft.planned_ns.get(job.id)
        if start_ns is not None:
            if because.code == "planned" and assumed_ns is not None and start_ns >= assumed_ns:
                text = text.replace(because.text, "the end of running jobs is unknown")
            figures = {**figures, "planned_start_ns": start_ns}
        found.append(Wait(job.id, Reason(because.code, text, figures)))
    return tuple(found)


def _kept(s: FleetSession, spec: JobSpec, access: Access) -> Reason:
    """What is free for a job that would fit, were it not for those before it."""
    rooms = [(int(c.rooms.room.sum()), c.devices) for c in s.gangs.classes(spec, access)]
    free, devices = max(rooms)[0] * spec.devices_per_rank, max(rooms)[1]
    text = f"needs {spec.devices} {noun(spec.device, spec.devices)}, {free} of {devices} {are(free)} free, and kept for jobs before it"
    return Reason("kept", text, {"needs": spec.devices, "free": free, "devices": devices})


def kept_and_stopped(view: View, s: FleetSession, draft: Draft) -> tuple[tuple[Keep, ...], tuple[Stop, ...]]:
    """The devices that are kept for jobs, and the jobs that are stopped or moved for them."""

    def keep(hold: Hold, because: Reason) -> Keep:
        devices = {s.node(index): count for index, count in hold.devices.items()}
        return Keep(hold.job, s.kind_of(hold.job), devices, hold.expires_ns, because)

    keeps = [keep(made.hold, made.because) for made in draft.stops]
    keeps += [keep(hold, move.because) for move in draft.moves for hold in (move.hold, *move.moves)]
    stops = []
    for made in draft.stops:
        grace_ns = view.fleet.guard.spare_grace_ns if made.spares else None
        text = f"stopped to make room for {in_full(view.jobs[made.job])}: {made.because.text}"
        because = replace(made.because, text=text)
        stops += [Stop(victim, because, made.job, grace_ns=grace_ns) for victim in made.victims]
    for move in draft.moves:
        for hold, lost_us in zip(move.moves, move.lost_us, strict=True):
            on = [s.node(index) for index in hold.devices]
            why = why_moved(move, on, lost_us, in_full(view.jobs[move.job]))
            stops.append(Stop(hold.job, why, move.job, "moved"))
    return tuple(keeps), tuple(stops)


def why_moved(move: Consolidation, nodes: Sequence[str], lost_us: int, whose: str) -> Reason:
    """To the job that is moved: for whom (``whose``: that job in words), what it loses, and where its devices are kept."""
    size = sum(move.hold.devices.values())
    named = ", ".join(nodes[:4]) + (f" and {len(nodes) - 4} more" if len(nodes) > 4 else "")
    text = f"moved to make room for {whose} ({counted(size, 'device')}), which loses {device_time(lost_us)}; its place on {named} is kept"
    return Reason("moved", text, {"for": move.job, "lost_us": lost_us, "nodes": len(nodes)})
