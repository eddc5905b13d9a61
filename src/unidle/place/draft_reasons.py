"""Reasons of a decision under queues: why jobs wait, and why others are stopped or moved."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from typing import Final

from unidle.jobs import JobSpec, Reason
from unidle.place.actions.slices import PARTS_LATER
from unidle.place.explain.gang import GangRefusal
from unidle.place.gang.fit import GangFit, Like
from unidle.place.nodes.free import Access
from unidle.place.protocol import Consolidation, Draft, Keep, Stop, Wait
from unidle.place.queue.backfill import too_deep
from unidle.place.queue_order import noun
from unidle.place.session import FleetSession
from unidle.place.slices.fit import PARTS_WAIT
from unidle.view.jobs import in_full
from unidle.view.state import View
from unidle.view.waiting import Shape
from unidle.words import are, counted, device_time

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
    keeps, stops = [], []
    for made in draft.stops:
        devices = {s.node(index): count for index, count in made.hold.devices.items()}
        keeps.append(Keep(made.job, s.kind_of(made.job), devices, made.hold.expires_ns, made.because))
        grace_ns = view.fleet.guard.spare_grace_ns if made.spares else None
        text = f"stopped to make room for {in_full(view.jobs[made.job])}: {made.because.text}"
        because = replace(made.because, text=text)
        stops += [Stop(victim, because, made.job, grace_ns=grace_ns) for victim in made.victims]
    for move in draft.moves:
        for hold in (move.hold, *move.moves):
            devices = {s.node(index): count for index, count in hold.devices.items()}
            keeps.append(Keep(hold.job, s.kind_of(hold.job), devices, hold.expires_ns, move.because))
        for hold, lost_us in zip(move.moves, move.lost_us, strict=True):
            on = [s.node(index) for index in hold.devices]
            stops.append(
                Stop(hold.job, why_moved(move, on, lost_us, in_full(view.jobs[move.job])), move.job, "moved")
            )
    return tuple(keeps), tuple(stops)


def why_moved(move: Consolidation, nodes: Sequence[str], lost_us: int, whose: str) -> Reason:
    """To the job that is moved: for whom (``whose``: that job in words), what it loses, and where its devices are kept."""
    size = sum(move.hold.devices.values())
    named = ", ".join(nodes[:4]) + (f" and {len(nodes) - 4} more" if len(nodes) > 4 else "")
    text = f"moved to make room for {whose} ({counted(size, 'device')}), which loses {device_time(lost_us)}; its place on {named} is kept"
    return Reason("moved", text, {"for": move.job, "lost_us": lost_us, "nodes": len(nodes)})
