"""``Queue``, ``Topology`` and ``FleetPolicy`` objects of a cluster: what they declare is the fleet's, and their status shows that.

With --fleet the file counts alone, and each object's status has that as its reason. Objects have no finalizer: one that is deleted has no part
in the fleet any more.
"""

from __future__ import annotations

import time
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any, Final

from unidle.control.kube_objects import condition_of, kube_time
from unidle.files.fleet_notices import NoticeChannel
from unidle.files.fleet_objects import (
    Acceptance,
    FleetObject,
    FleetObjectKind,
    ObjectsFleet,
    WithoutNodes,
    fleet_of_objects,
    on_cluster,
)
from unidle.fleet import HOSTS, Fleet, Tier
from unidle.kube.client import ApiClient
from unidle.kube.nodes import FleetRules
from unidle.kube.objects import UNIDLE_POLICIES, UNIDLE_QUEUES, UNIDLE_TOPOLOGIES, ObjectKind, RawObject
from unidle.kube.protocol import EVERYTHING, Emit, KubeError, KubeWriter, Patch, Put, Vanished, Watch
from unidle.kube.reflector import follow
from unidle.place.admission import tree_of_queues
from unidle.view.state import View
from unidle.words import counted

FLEET_KINDS: Final[dict[FleetObjectKind, ObjectKind[RawObject]]] = {
    "Queue": UNIDLE_QUEUES, "Topology": UNIDLE_TOPOLOGIES, "FleetPolicy": UNIDLE_POLICIES,
}  # fmt: skip
_COUNTS_EVERY_NS: Final = 5_000_000_000
_STEP_S: Final = 0.02
_DELETED: Final = "Deleted"
_AT_START: Final = "notices and continuous profiles change with the next start of the controller"
Plain = dict[str, Any]


@dataclass(frozen=True, slots=True)
class FleetFileGiven:
    """What ``--fleet FILE`` declares; it counts alone."""

    file: str
    declared: WithoutNodes


class KubeFleet:
    """Belongs to the thread of the loop (``unidle.engine.kube.declared.FleetDeclarations``). ``always``: changes each fleet
    that is declared, as options of the command do; ``allow`` lets the writer write while the store's lease holds."""

    def __init__(
        self, watches: Mapping[FleetObjectKind, Watch[RawObject]], writer: KubeWriter, allow: Callable[[KubeWriter], None],
        given: FleetFileGiven | None, always: Callable[[Fleet], Fleet],
    ) -> None:  # fmt: skip
        self._watches, self._writer, self._allow = watches, writer, allow
        self._given, self._always = given, always
        self._specs: dict[str, Mapping[str, Any]] = {}  # of objects as they are, by UID
        self._found = (
            ObjectsFleet(given.declared) if given is not None else fleet_of_objects((), tree_of_queues)
        )
        self._at_start: tuple[object, ...] | None = None
        self._missing = ""
        self._tiers = self._nodes = 0
        self._dirty = False
        self._counted_ns = 0
        self._said: dict[str, tuple[int, str, str]] = {}  # by UID: what the newest Event of an object has

    @property
    def wake_fds(self) -> list[int]:
        return [*(watch.wake_fd for watch in self._watches.values()), self._writer.wake_fd]

    @property
    def channels(self) -> tuple[NoticeChannel, ...]:
        """That receive notices, as of the last :meth:`poll`."""
        return self._found.declared.channels

    def list_all(self, within_s: float) -> None:
        """Wait until all objects are listed. Errors: KubeError where they are not in time."""
        until_s = time.monotonic() + within_s
        while not all(watch.synced for watch in self._watches.values()):
            if time.monotonic() > until_s:
                raise KubeError(
                    "queues and policies could not be listed in time", verb="list", reason="TimedOut"
                )
            time.sleep(_STEP_S)
            self._take()
        self._compose()
        self._at_start = self._fixed()

    def poll(self) -> bool:
        if not self._take() or self._given is not None:
            return False
        before = self._found.declared
        self._compose()
        return before != self._found.declared

    @property
    def names_nodes(self) -> bool:
        return any(link.a for link in self._found.declared.fleet.links)

    def rules(self, before: FleetRules) -> FleetRules:
        declared = self._found.declared
        links = frozenset(declared.fleet.gpu_links)
        return replace(before, tier_labels=declared.tier_labels, tiers=declared.fleet.tiers, gpu_links=links)

    def fleet(self, tiers: Sequence[Tier], nodes: Iterable[str]) -> Fleet:
        names = tuple(nodes)
        found, self._missing = on_cluster(self._found.declared.fleet, tiers, names)
        self._tiers, self._nodes, self._dirty = len(tiers), len(names), True
        return replace(self._always(found), source=HOSTS, sources=tuple(self._sources()))

    def turn(self, view: View, now_ns: int) -> None:
        """After a turn of the loop: write what objects do not show yet."""
        self._allow(self._writer)
        self._writer.poll()
        if not self._dirty and now_ns - self._counted_ns < _COUNTS_EVERY_NS:
            return
        self._dirty, self._counted_ns = False, now_ns
        running = Counter(view.jobs.open[job].spec.queue for job in view.live)
        waiting: Counter[str] = Counter()
        for shape in view.waiting.values():
            waiting[view.jobs[shape[0][2]].spec.queue] += len(shape)
        counts = _with_parents(view.fleet, running), _with_parents(view.fleet, waiting)
        for kind, found in self._objects():
            status = self._status(kind, found, counts, now_ns)
            if found.status != status:
                meta, whole = found.metadata, [{"op": "add", "path": "/status", "value": status}]
                self._writer.write(
                    Patch(FLEET_KINDS[kind], "", meta.name, {"ops": whole}, meta.uid, "json", "status")
                )
            self._say(kind, found)

    def close(self) -> None:
        for watch in self._watches.values():
            watch.close()
        self._writer.close(drain_s=1.0)

    def _take(self) -> bool:
        """Whether the spec of an object is otherwise than before."""
        changed = False
        for watch in self._watches.values():
            for event in watch.poll():
                if not isinstance(event, Put | Vanished):
                    continue
                self._dirty = True
                uid = event.object.metadata.uid
                if isinstance(event, Vanished) or event.object.metadata.deletion_timestamp:
                    self._said.pop(uid, None)
                    changed |= self._specs.pop(uid, None) is not None
                elif self._specs.get(uid) != (spec := _plain(event.object.spec)):
                    self._specs[uid], changed = spec, True
        return changed

    def _compose(self) -> None:
        if self._given is not None:
            return
        known = [
            FleetObject(kind, meta.name, meta.uid, meta.creation_timestamp, self._specs[meta.uid], self._in_use(found))
            for kind, found in self._objects()
            if (meta := found.metadata).uid in self._specs
        ]  # fmt: skip
        self._found = fleet_of_objects(known, tree_of_queues)

    def _in_use(self, found: RawObject) -> Mapping[str, Any] | None:
        """What was accepted of it last, also by an earlier controller."""
        known = self._found.in_use.get(found.metadata.uid)
        if known is not None:
            return known
        shown = found.status.get("inUse")
        return shown if isinstance(shown, dict) else None

    def _objects(self) -> Iterator[tuple[FleetObjectKind, RawObject]]:
        for kind, watch in self._watches.items():
            for found in watch.objects.values():
                yield kind, found

    def _fixed(self) -> tuple[object, ...]:
        """What holds until the controller ends."""
        return self._found.declared.channels, self._found.declared.fleet.profile

    def _status(
        self, kind: FleetObjectKind, found: RawObject, counts: tuple[Counter[str], Counter[str]], now_ns: int
    ) -> Plain:
        meta = found.metadata
        accepted = self._acceptance(kind, meta.uid)
        generation, reason = meta.generation, accepted.reason
        condition = condition_of(
            "Accepted", accepted.accepted, reason, accepted.message, kube_time(now_ns), generation
        )
        for before in found.status.get("conditions") or ():
            if isinstance(before, dict) and before.get("status") == condition["status"]:
                condition["lastTransitionTime"] = before.get("lastTransitionTime")
        status: Plain = {"observedGeneration": generation, "conditions": [condition]}
        if (used := self._found.in_use.get(meta.uid)) is not None:
            status["inUse"] = used
        if kind == "Queue":
            status |= {"running": counts[0][meta.name], "waiting": counts[1][meta.name]}
        elif kind == "Topology":
            status |= {"tiers": self._tiers, "nodes": self._nodes}
        return status

    def _say(self, kind: FleetObjectKind, found: RawObject) -> None:
        """An Event where an object is refused, and where it is no more: with the reason and the words of its condition."""
        meta, accepted = found.metadata, self._acceptance(kind, found.metadata.uid)
        before, now = self._said.get(meta.uid), (meta.generation, accepted.reason, accepted.message)
        if before == now or accepted.reason == _DELETED or (accepted.accepted and before is None):
            return
        if accepted.accepted:
            del self._said[meta.uid]
        else:
            self._said[meta.uid] = now
        about = {"apiVersion": "unidle.dev/v1alpha1", "kind": kind, "name": meta.name, "uid": meta.uid}
        note = accepted.message or "it is in use"
        key = f"{meta.generation} {note}"
        self._writer.write(
            Emit(about, accepted.reason, note, key, action="Accept", warning=not accepted.accepted)
        )

    def _acceptance(self, kind: FleetObjectKind, uid: str) -> Acceptance:
        if self._given is not None:
            text = f"the controller was started with --fleet {self._given.file}, which counts alone; start it without"
            return Acceptance(False, "FleetFile", text)
        accepted = self._found.accepted.get(uid, Acceptance(False, _DELETED, "it is being deleted"))
        notes = [accepted.message] if accepted.message else []
        if kind == "Topology" and accepted.accepted and self._missing:
            notes.append(self._missing)
        if kind == "FleetPolicy" and accepted.accepted and self._fixed() != self._at_start:
            notes.append(_AT_START)
        return replace(accepted, message="; ".join(notes))

    def _sources(self) -> Iterator[str]:
        if self._given is not None:
            yield f"queues, links and policies: --fleet {self._given.file}"
            return
        used = [
            (kind, found.metadata.name)
            for kind, found in self._objects()
            if found.metadata.uid in self._found.in_use
        ]
        names = {kind: sorted(name for of, name in used if of == kind) for kind in FLEET_KINDS}
        if names["Queue"]:
            yield f"queues: {counted(len(names['Queue']), 'object')} of kind Queue"
        for what, kind in (("network", "Topology"), ("policies", "FleetPolicy")):
            for name in names[kind]:  # type: ignore[index]
                yield f"{what}: object {kind} {name}"


def open_kube_fleet(
    client: ApiClient, writer: KubeWriter, allow: Callable[[KubeWriter], None], given: FleetFileGiven | None,
    always: Callable[[Fleet], Fleet],
) -> KubeFleet:  # fmt: skip
    """Follow the objects that the cluster serves and this controller may read. Errors: KubeError."""
    watches: dict[FleetObjectKind, Watch[RawObject]] = {}
    for name, kind in FLEET_KINDS.items():
        try:
            client.page(kind, EVERYTHING, size=1)
        except KubeError as error:
            if error.status not in (403, 404):
                raise
        else:
            watches[name] = follow(client, kind)
    return KubeFleet(watches, writer, allow, given, always)


def _with_parents(fleet: Fleet, counts: Counter[str]) -> Counter[str]:
    """Jobs of each queue and of those below it."""
    parents = {spec.name: spec.parent for spec in fleet.queues}
    total: Counter[str] = Counter()
    for queue, count in counts.items():
        here: str | None = queue
        while here is not None:
            total[here] += count
            here = parents.get(here)
    return total


def _plain(spec: Mapping[str, Any]) -> Mapping[str, Any]:
    return {name: value for name, value in spec.items() if value is not None}
