"""The network of a fleet file: tiers that node labels name, and links."""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import replace
from typing import Final

from unidle.files.document import BadFile, Document, Path
from unidle.files.fleet_file import ID_LENGTH, ID_PATTERN, ID_SAYS, FleetFile, LinkPart
from unidle.fleet import Link, LinkMeasured, Node, Tier
from unidle.fleet.labels import HOST_KEY, OWN_KINDS, LabelConflict, tree_of, well_known

_ENDS: Final = "give both ends, a and b, or the kind of tier that it leads up from: tier"


def label_keys(document: Document, file: FleetFile, nodes: Sequence[Node]) -> tuple[str, ...]:
    """The label keys that make the network tree, from the node upwards; none where tiers are declared."""
    given = file.topology.labels
    check_label_keys(document, file)
    if file.tiers:
        return ()
    found = {key for node in nodes for key in node.labels}
    if given is None:
        return well_known(found)
    for index, key in enumerate(given):
        if key not in found:
            raise unknown(document, key, ("topology", "labels", index), found, "label on any node")
    return tuple(given)


def check_label_keys(document: Document, file: FleetFile) -> None:
    """Errors: BadFile where ``topology.labels`` cannot name tiers, whatever nodes there are."""
    given = file.topology.labels or ()
    if file.tiers and given:
        raise document.error(
            ("topology", "labels"),
            "the tiers are declared too",
            remedy="keep one: tiers, or topology.labels",
        )
    for index, key in enumerate(given):
        path: Path = ("topology", "labels", index)
        if key in given[:index]:
            raise document.error(path, "the label is given twice", value=key, remedy="keep one")
        if key == HOST_KEY:
            raise document.error(path, "names the node itself, not a tier", value=key, remedy="remove it")


def tiers_by_labels(
    document: Document, nodes: Sequence[Node], entries: Sequence[int], keys: Sequence[str], root: Tier
) -> tuple[tuple[Tier, ...], tuple[Node, ...]]:
    """The tiers that the labels make, and the nodes that hang from them.

    ``entries`` has for each node the index of its entry in the file, which errors point to.
    """
    for node, entry in zip(nodes, entries, strict=True):
        for key in keys:
            value = node.labels.get(key, "")
            if value and (len(value) > ID_LENGTH - 64 or not re.search(ID_PATTERN, value)):
                raise document.error(
                    ("nodes", entry, "labels", key),
                    f"names a tier, so it must be {ID_SAYS}",
                    value=value,
                    remedy=f"rename it, or leave {key} out of topology.labels",
                )
    try:
        tree = tree_of(nodes, keys, root)
    except LabelConflict as conflict:
        raise document.error(
            ("nodes", entries[conflict.node], "labels", conflict.key),
            conflict.problem,
            remedy="name each switch once in the fleet, or give other labels in topology.labels",
        ) from None
    names = [tier.id for tier in tree.tiers]
    if len(set(names)) < len(names) or not {node.id for node in nodes}.isdisjoint(names):
        raise document.error(
            ("nodes",), "labels and nodes share a name", remedy="rename the tier, or declare tiers"
        )
    hung = (replace(node, parent=parent) for node, parent in zip(nodes, tree.parents, strict=True))
    return tree.tiers, tuple(hung)


def links(
    document: Document, parts: Iterable[LinkPart], tiers: Iterable[Tier], known: Mapping[str, object]
) -> Iterator[Link]:
    """The links of the file. ``known`` has the names of tiers and nodes."""
    kinds = {tier.kind for tier in tiers} | OWN_KINDS
    for index, part in enumerate(parts):
        path: Path = ("links", index)
        if part.tier is not None:
            if part.a is not None or part.b is not None:
                raise document.error((*path, "tier"), "the link has ends too", value=part.tier, remedy=_ENDS)
            if part.tier not in kinds:
                raise unknown(document, part.tier, (*path, "tier"), kinds, "kind of tier")
        else:
            _check_ends(document, part, path, known)
        bandwidth_bps = round(part.gbps * 1e9)
        if not bandwidth_bps:
            raise document.error(
                (*path, "gbps"), "less than 1 bit/s", value=part.gbps, remedy="the unit is 10^9 bit/s"
            )
        latency_ns = round(part.latency_us * 1e3)
        yield Link(
            part.a or "",
            part.b or "",
            bandwidth_bps,
            latency_ns,
            part.fabric,
            part.tier or "",
            round((part.flow_gbps or 0) * 1e9),
            _measured(document, part, path),
        )


def _measured(document: Document, part: LinkPart, path: Path) -> LinkMeasured | None:
    if (found := part.measured) is None:
        return None
    for field in ("gbps", "latency_us", "flow_gbps"):
        least, most = getattr(found, field)
        if least > most:
            raise document.error(
                (*path, "measured", field),
                "the least is above the most",
                value=[least, most],
                remedy="swap them",
            )
    return LinkMeasured(
        _pair(found.gbps, 1e9), _pair(found.latency_us, 1e3), _pair(found.flow_gbps, 1e9), found.loss_ppm
    )


def _pair(interval: tuple[float, ...], unit: float) -> tuple[int, int]:
    return round(interval[0] * unit), round(interval[1] * unit)


def _check_ends(document: Document, part: LinkPart, path: Path, known: Mapping[str, object]) -> None:
    for end, name in (("a", part.a), ("b", part.b)):
        if name is None:
            raise document.error((*path, end), "the field is missing", remedy=_ENDS)
        if name not in known:
            raise unknown(document, name, (*path, end), known, "tier or node")
    if part.a == part.b:
        raise document.error(
            (*path, "b"), "the link ends where it starts", value=part.b, remedy="name another"
        )


def unknown(document: Document, name: str, path: Path, known: Iterable[str], what: str) -> BadFile:
    """The error for a name that is not among those known."""
    from unidle.files.breach import closest

    names = list(known)
    remedy = f"the closest is {closest(name, names)}" if names else "remove it"
    return document.error(path, f"there is no such {what}", value=name, remedy=remedy)


def check_parents(document: Document, tiers: tuple[Tier, ...], paths: Mapping[str, Path]) -> None:
    """Raise :class:`BadInput` where a tier's parent is unknown, or tiers form a cycle; ``paths``: where each is named."""
    parents = {tier.id: tier.parent for tier in tiers}
    for tier in tiers:
        if tier.parent is not None and tier.parent not in parents:
            raise unknown(document, tier.parent, (*paths[tier.id][:-1], "parent"), parents, "tier")
    sound: set[str] = set()
    for tier in tiers:
        way: dict[str, None] = {}
        here: str | None = tier.id
        while here is not None and here not in sound:
            if here in way:
                names = list(way)[list(way).index(here) :]
                raise document.error(
                    (*paths[here][:-1], "parent"),
                    f"the tiers form a cycle: {_cycle([*names, here])}",
                    remedy="a tree has no cycle: remove the parent of one of them",
                )
            way[here] = None
            here = parents[here]
        sound.update(way)


def _cycle(names: list[str], limit: int = 10) -> str:
    shown = names if len(names) <= limit else [*names[: limit - 1], "...", names[-1]]
    return " -> ".join(shown)
