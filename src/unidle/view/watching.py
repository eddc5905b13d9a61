"""Events of faults of nodes and devices, and of their detectors, applied to the view. Part of the fold."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from typing import Final

from unidle.events import types as ev
from unidle.events.guard import IncidentKind
from unidle.fleet import HOSTS, device_of
from unidle.view.records import FaultView, WatchView
from unidle.view.state import View

FAULTS_KEPT: Final = 4096
NO_CONTROLLER: Final = "no controller runs on the store (`unidle up`)"
NO_SOURCE: Final = "the fleet file has no detector for it"
NO_AGENT: Final = "no agent of it is connected"
_STORAGE: Final = frozenset({"disk", "fs", "raid", "storage"})
_NODE: Final = frozenset(
    {"nic", "mce", "pcie", "thermal", "power", "panic", "kernel_bug", "lockup", "hung_task", "oom", "silent"}
)


def fault_seen(view: View, event: ev.FaultSeen, now: int) -> None:
    jobs = sorted({job for job, _, _ in hit_by(view, event)})
    fault = FaultView(
        now, event.node, event.device, event.kind, event.code, event.action, event.onset_ns, event.signal_ns,
        event.because, jobs,
    )  # fmt: skip
    view.faults = [*view.faults[-FAULTS_KEPT + 1 :], fault]


def watch_set(view: View, event: ev.WatchSet, now: int) -> None:
    view.watching.setdefault(event.node, {})[event.detector] = WatchView(now, event.why_not, event.lost)


def hit_by(view: View, event: ev.FaultSeen) -> Iterator[tuple[str, int, int]]:
    """Job, attempt and first rank of each live attempt that works on what is at fault."""
    if event.action == "watch":
        return  # it counts only if it comes again
    yield from on_device(view, event.node, event.device)


def on_device(view: View, node: str, device: str = "") -> Iterator[tuple[str, int, int]]:
    """Job, attempt and lowest rank of each live attempt on a node, or on one of its devices."""
    for job in sorted(view.live):
        attempt = view.jobs.open[job].attempts[-1]
        for rank, place in enumerate(attempt.places):
            if place.node == node and (not device or any(device_of(s) == device for s in place.slices)):
                yield job, attempt.number, rank
                break


def incident_kind(kind: str) -> IncidentKind:
    """The kind of incident that a fault of this kind (``unidle guard classify``) is."""
    if kind in _STORAGE:
        return "storage"
    return "node" if kind in _NODE else "gpu"


def not_watched(view: View, node: str) -> str:
    """Why the node is not known to be well: what is not monitored; empty if all is monitored."""
    if not view.running:
        return NO_CONTROLLER
    detectors = view.watching.get(node)
    if not detectors:
        return NO_AGENT if without_agent(view, [node]) else NO_SOURCE
    return "; ".join(dict.fromkeys(told.why_not for _, told in sorted(detectors.items()) if told.why_not))


def without_agent(view: View, nodes: Iterable[str]) -> list[str]:
    """Those of the nodes of other hosts on which no agent watches anything; empty for nodes of this machine."""
    if view.fleet.source != HOSTS:
        return []
    return [node for node in nodes if _has_no_agent(view, node)]


def _has_no_agent(view: View, node: str) -> bool:
    """By what detectors report; before they do, by whether an agent has shown its clock."""
    detectors = view.watching.get(node)
    if not detectors:
        return node not in view.clocks
    return all(told.why_not == NO_AGENT for told in detectors.values())
