"""The fleet that objects of a cluster declare: ``Queue``, ``Topology`` and ``FleetPolicy``, each a part of a fleet file.

An object that is wrong is refused alone: what it had when it was accepted last stays in use. The same objects give the
same fleet, in whatever order they came.
"""

from __future__ import annotations

import os
import re
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any, Final, Literal

from unidle.errors import BadInput
from unidle.files.document import Document
from unidle.files.fleet import BOUNDS, parts_without_nodes
from unidle.files.fleet_notices import NoticeChannel
from unidle.files.load import base_dir_of, load_document
from unidle.fleet import Fleet, Link, Tier
from unidle.fleet.labels import OWN_KINDS
from unidle.words import counted

FleetObjectKind = Literal["Queue", "Topology", "FleetPolicy"]
TOPOLOGY: Final = ("topology", "tiers", "links", "gpu_links")
"""Fields of a fleet file that a Topology has."""
POLICY: Final = (
    "guard", "idle", "profile", "retention", "migration", "history", "order", "notices", "prices", "peak_tflops",
    "filler_price",
    "currency", "timezone",
)  # fmt: skip
"""Fields of a fleet file that a FleetPolicy has."""
_NAMED: Final = 3
Spec = Mapping[str, Any]


@dataclass(frozen=True, slots=True)
class WithoutNodes:
    """What is declared of a fleet whose nodes are listed elsewhere. ``tier_labels``: its ``topology.labels``."""

    fleet: Fleet
    tier_labels: tuple[str, ...] | None
    channels: tuple[NoticeChannel, ...]


@dataclass(frozen=True, slots=True)
class FleetObject:
    """``in_use``: the spec that was accepted last, if one was. ``created`` orders objects of which one counts."""

    kind: FleetObjectKind
    name: str
    uid: str
    created: str
    spec: Spec
    in_use: Spec | None = None


@dataclass(frozen=True, slots=True)
class Acceptance:
    """Whether the spec of an object is in use; ``reason`` is one word, ``message`` has the field and the remedy."""

    accepted: bool
    reason: str
    message: str = ""


@dataclass(frozen=True, slots=True)
class ObjectsFleet:
    """What objects declare together. By UID: whether each counts, and the spec of it that does."""

    declared: WithoutNodes
    accepted: dict[str, Acceptance] = field(default_factory=dict)
    in_use: dict[str, Spec] = field(default_factory=dict)


@dataclass(slots=True)
class _Candidate:
    """An object, and which of its specs is tried."""

    object: FleetObject
    spec: Spec | None
    error: BadInput | None = None

    def fall_back(self, error: BadInput) -> None:
        """To what was accepted last, then to nothing."""
        former = self.object.in_use if self.error is None else None
        self.error = self.error or error
        self.spec = former if former != self.object.spec else None


def fleet_of_objects(objects: Iterable[FleetObject], check: Callable[[Fleet], object]) -> ObjectsFleet:
    """The fleet of these objects; ``check`` raises BadInput for queues that do not fit together."""
    chosen, others = _chosen(objects)
    while True:
        tried = [one for one in chosen if one.spec is not None]
        try:
            declared = _declared(tried)
            check(declared.fleet)
            break
        except BadInput as error:
            _culprit(tried, error).fall_back(error)
    accepted = {one.object.uid: _acceptance(one) for one in chosen} | others
    return ObjectsFleet(
        declared, accepted, {one.object.uid: one.spec for one in tried if one.spec is not None}
    )


def fleet_of_file(path: str) -> WithoutNodes:
    """What a fleet file declares for a cluster, whose nodes and tiers the file does not know. Errors: BadInput."""
    document = load_document(path, what="fleet", bounds=BOUNDS)
    return WithoutNodes(*parts_without_nodes(document, base_dir_of(path), _mentioned(document.data)))


def on_cluster(fleet: Fleet, tiers: Sequence[Tier], nodes: Iterable[str]) -> tuple[Fleet, str]:
    """``fleet`` on the tiers of a cluster; links count whose ends are there. Returns which are not, in words."""
    names, kinds = {tier.id for tier in tiers}, {tier.kind for tier in tiers} | OWN_KINDS
    if any(link.a for link in fleet.links):
        names.update(nodes)
    found, missing = list[Link](), dict[str, None]()
    for link in fleet.links:
        lacks = [link.tier] if link.tier and link.tier not in kinds else []
        lacks += [end for end in (link.a, link.b) if end and end not in names]
        missing.update(dict.fromkeys(lacks))
        if not lacks:
            found.append(link)
    few = ", ".join(list(missing)[:_NAMED]) + (", ..." if len(missing) > _NAMED else "")
    text = (
        f"{counted(len(fleet.links) - len(found), 'link')} not used, as no node has {few}" if missing else ""
    )
    return replace(fleet, tiers=tuple(tiers), links=tuple(found)), text


def _chosen(objects: Iterable[FleetObject]) -> tuple[list[_Candidate], dict[str, Acceptance]]:
    """Queues by name, and the oldest Topology and FleetPolicy; those that do not count."""
    found: list[_Candidate] = []
    others: dict[str, Acceptance] = {}
    first: dict[str, FleetObject] = {}
    for one in sorted(
        objects, key=lambda one: (one.kind, one.name if one.kind == "Queue" else one.created, one.name)
    ):
        if one.kind != "Queue" and (known := first.setdefault(one.kind, one)) is not one:
            text = f"another {one.kind} is in use, {known.name}, which is older; delete one of them"
            others[one.uid] = Acceptance(False, "NotUsed", text)
        else:
            found.append(_Candidate(one, one.spec))
    return found, others


def _declared(tried: list[_Candidate]) -> WithoutNodes:
    data: dict[str, Any] = {"queues": [{**one.spec, "name": one.object.name} for one in _queues(tried)]}  # type: ignore[dict-item]
    for one in tried:
        if one.object.kind != "Queue" and one.spec is not None:
            data.update(one.spec)
    for name, links in dict(data.get("gpu_links", {})).items():
        if isinstance(links, Mapping) and links.get("topo") is not None:
            raise BadInput(
                "names a file, and an object has none", field=f"gpu_links.{name}.topo", remedy="write the links as pairs"
            )  # fmt: skip
    return WithoutNodes(*parts_without_nodes(Document(data, "objects"), os.curdir, _mentioned(data)))


def _mentioned(data: object) -> tuple[Tier, ...]:
    """A tier for each name and each kind in links: which of them there are, only the cluster shows."""
    links = data.get("links", ()) if isinstance(data, Mapping) else ()
    found: dict[str, Tier] = {}
    for link in links if isinstance(links, list | tuple) else ():
        for end in ("a", "b", "tier"):
            name = link.get(end) if isinstance(link, Mapping) else None
            if isinstance(name, str):
                found[f"{end} {name}"] = Tier(f"kind {name}", name) if end == "tier" else Tier(name, "")
    return tuple(found.values())


def _queues(tried: list[_Candidate]) -> list[_Candidate]:
    return [one for one in tried if one.object.kind == "Queue"]


def _culprit(tried: list[_Candidate], error: BadInput) -> _Candidate:
    """Whose spec an error is about; where it names none, that of an object that changed."""
    about, queues = error.field or "", _queues(tried)
    if found := re.match(r"queues\[([0-9]+)\]", about):
        return queues[int(found[1])]
    if about.startswith("queues."):
        rest = about.removeprefix("queues.")
        named = [one for one in queues if f"{rest}.".startswith(f"{one.object.name}.")]
        if named:
            return max(named, key=lambda one: len(one.object.name))
    top = re.split(r"[.\[]", about)[0]
    for one in tried:
        if (one.object.kind, True) in (("Topology", top in TOPOLOGY), ("FleetPolicy", top in POLICY)):
            return one
    changed = [one for one in tried if one.error is None and one.spec != one.object.in_use]
    return (changed or queues or tried)[-1]


def _acceptance(one: _Candidate) -> Acceptance:
    if one.error is None:
        return Acceptance(True, "Accepted")
    about = one.error.field or ""
    about = re.sub(rf"^queues(\[[0-9]+\]|\.{re.escape(one.object.name)})\.?", "", about)
    error = BadInput(
        one.error.problem,
        field=f"spec.{about}" if about else "spec",
        value=one.error.value,
        remedy=one.error.remedy,
    )
    after = "it has no part in the fleet" if one.spec is None else "what was accepted before stays in use"
    return Acceptance(False, "Invalid", f"{error.line()}. Until then {after}.")
