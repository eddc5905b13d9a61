"""What engines report of hosts, as events: nodes, silence, disruption, what others use, jobs of other places.

A report may come twice, or late: what the view has already is no event.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from dataclasses import fields, replace
from hashlib import blake2b
from itertools import count
from typing import Final, TypeAlias

from unidle.engine.protocol import (
    Disrupted,
    HostClock,
    JobArrived,
    Landed,
    NodesChanged,
    PodsReached,
    Redeclared,
    Silent,
    Taken,
)
from unidle.events import types as ev
from unidle.fleet import Fleet, Node, as_declared
from unidle.fleet.model import declared_node
from unidle.jobs.spec import is_job_id
from unidle.view.fold_hosts import may_land
from unidle.view.host_clocks import is_news
from unidle.view.jobs import AttemptView
from unidle.view.node_edits import edit_of
from unidle.view.state import View

HostReport: TypeAlias = (
    NodesChanged | Redeclared | HostClock | Silent | Disrupted | Landed | Taken | PodsReached
)
_NAME_MOST: Final = 40


def event_of(view: View, seen: HostReport) -> ev.Event | None:
    """The event of a report; None where nothing is new in it, or is of an attempt that is not live."""
    if isinstance(seen, NodesChanged):
        return fleet_change(view, seen.put, seen.gone)
    if isinstance(seen, Redeclared):
        now = replace(seen.fleet, nodes=())
        return None if now == replace(view.fleet, nodes=()) else ev.FleetDeclared(now)
    if isinstance(seen, Taken):
        return _taken(view, seen)
    if isinstance(seen, HostClock):
        return _clock(view, seen)
    attempt = _live(view, seen.job, seen.attempt)
    if attempt is None:
        return None
    if isinstance(seen, PodsReached):
        late = attempt.all_spawned
        nodes = () if late else tuple(name for name in seen.nodes if _phase(attempt, name) != seen.phase)
        return ev.PodsSeen(seen.job, seen.attempt, nodes, seen.phase) if nodes else None
    if isinstance(seen, Silent):
        return _silent(attempt, seen)
    if isinstance(seen, Disrupted):
        known = attempt.disrupted is not None
        return None if known else ev.AttemptDisrupted(seen.job, seen.attempt, seen.because)
    return _landed(view, attempt, seen)


def fleet_change(view: View, put: Iterable[Node], gone: Iterable[str]) -> ev.FleetChanged | None:
    """How the fleet differs with these nodes put and gone; None where it does not."""
    edits, new, nodes = [], [], view.fleet.nodes
    for node in {node.id: node for node in put}.values():  # the last counts
        order = view.nodes.get(node.id)
        before = None if order is None else declared_node(nodes[order])
        if before == node:
            continue
        edit = None if before is None else edit_of(before, node)
        if edit is None:
            new.append(node)
        else:
            edits.append(edit)
    left = tuple(node_id for node_id in dict.fromkeys(gone) if node_id in view.nodes)
    return ev.FleetChanged(tuple(new), tuple(edits), left) if new or edits or left else None


def fleet_at_start(view: View, fleet: Fleet) -> ev.FleetSeen | ev.FleetChanged | None:
    """The event of the fleet that an engine has when a controller starts: what changed, where that is little."""
    before = as_declared(view.fleet)
    if fleet == before:
        return None
    if any(getattr(fleet, f.name) != getattr(before, f.name) for f in fields(Fleet) if f.name != "nodes"):
        return ev.FleetSeen(fleet)
    now, known = {node.id: node for node in fleet.nodes}, {node.id for node in before.nodes}
    order = [node.id for node in before.nodes if node.id in now]
    order += [name for name in now if name not in known]
    change = fleet_change(view, fleet.nodes, sorted(known - now.keys()))
    if change is None or order != list(now) or 2 * (len(change.put) + len(change.edits)) > len(now):
        return ev.FleetSeen(fleet)
    return change


def _taken(view: View, seen: Taken) -> ev.NodeTaken | None:
    if seen.node not in view.nodes:
        return None
    before, devices = view.taken.get(seen.node), tuple(sorted(seen.devices))
    same: tuple[object, ...] = (0, 0, (), ())
    if before is not None:
        same = (before.cpu_milli, before.memory_bytes, before.devices, before.pods)
    if same == (round(seen.cpus * 1000), seen.memory_bytes, devices, seen.pods):
        return None
    return ev.NodeTaken(seen.node, seen.cpus, seen.memory_bytes, devices, seen.because, seen.pods)


def _clock(view: View, seen: HostClock) -> ev.ClockMeasured | None:
    known = view.clocks.get(seen.node)
    if seen.node not in view.nodes or not is_news(known, seen.boot, seen.offset_ns, seen.error_ns):
        return None
    return ev.ClockMeasured(seen.node, seen.boot, seen.offset_ns, seen.error_ns)


def _phase(attempt: AttemptView, node: str) -> str:
    """How far the attempt's pod on a node had come when that was last reported."""
    seen = attempt.pod_phases.get(node)
    return seen[-1][1] if seen else ""


def _silent(attempt: AttemptView, seen: Silent) -> ev.RanksSilent | None:
    """Of the ranks those for which it is news: an earlier time, or that they answer again."""
    found = []
    for number in dict.fromkeys(seen.ranks):
        if 0 <= number < len(attempt.ranks):
            since_ns = attempt.ranks[number].silent_ns
            if (since_ns is None or since_ns > seen.since_ns) if seen.since_ns else since_ns is not None:
                found.append(number)
    return ev.RanksSilent(seen.job, seen.attempt, tuple(found), seen.since_ns) if found else None


def _landed(view: View, attempt: AttemptView, seen: Landed) -> ev.RankLanded | None:
    if not 0 <= seen.rank < len(attempt.places):
        return None
    place = attempt.places[seen.rank]
    if set(place.slices) == set(seen.slices) or not may_land(view, place.slices, seen.slices):
        return None
    return ev.RankLanded(seen.job, seen.attempt, seen.rank, seen.node, seen.slices)


def _live(view: View, job: str, number: int) -> AttemptView | None:
    known = view.jobs.open.get(job)
    live = known.live if known is not None else None
    return live if live is not None and live.number == number else None


def arrival(view: View, seen: JobArrived) -> str | None:
    """The id of a job from outside; None where it is known, also if it has ended or was removed.

    The id is made of its name and its identity, so that each engine that sees the job gives it the same one.
    """
    for job in _ids(seen):
        known = view.jobs.get(job)
        if known is None:
            return job
        if (known.source, known.identity) == (seen.source, seen.identity):
            return None
    return None


def known_id(view: View, seen: JobArrived) -> str | None:
    """The id that such a job has in the view; None where it is not there."""
    for job in _ids(seen):
        known = view.jobs.get(job)
        if known is None:
            return None
        if (known.source, known.identity) == (seen.source, seen.identity):
            return job
    return None


def _ids(seen: JobArrived) -> Iterator[str]:
    """Ids for the job, the best first: another may have one only by chance, or on purpose."""
    name = seen.name[:_NAME_MOST] if is_job_id(seen.name[:_NAME_MOST]) else "job"
    for number in count():
        text = "\0".join((seen.source, seen.identity, str(number)))
        yield f"{name}-{blake2b(text.encode(), digest_size=5).hexdigest()}"
