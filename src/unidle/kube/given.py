"""Which devices the pods of a node really have, as its kubelet gave them out, and what that makes known of the node. Pure.

An API server shows only how many devices a pod requests. The kubelet has devices by ids of their device plugin or
driver. These become the ids (``uuid``) of the fleet's devices, so that a device that leaves is the one that left.
"""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import lru_cache
from typing import Final

import msgspec

from unidle.fleet import Device
from unidle.kube.devices import is_device
from unidle.kube.nodes import ReadNode

_SHARE: Final = re.compile(r"::[0-9]+$")  # NVIDIA's plugin: one of several ids of a GPU that pods share
_MOST_WHY: Final = 300
_KNOWN: Final = "as its kubelet lists them"


class NodeGiven(msgspec.Struct, frozen=True):
    """``why``: why it is not known; ``allocatable``: by resource, ids of the devices that pods can have; ``pods``: by
    ``NAMESPACE/NAME``, those that each has, by resource or driver."""

    why: str = ""
    allocatable: dict[str, tuple[str, ...]] = {}
    pods: dict[str, dict[str, tuple[str, ...]]] = {}


@dataclass(frozen=True, slots=True)
class Names:
    """Ids of the devices of a node: by id, the index of the device, and the resource if it is known."""

    at: Mapping[str, tuple[int, str]] = field(default_factory=dict)


def names_in(devices: Sequence[Device]) -> Names:
    """Those that an earlier look at the node gave."""
    return Names({device.uuid: (device.index, "") for device in devices if device.uuid})


def named(read: ReadNode, given: NodeGiven | None, before: Names) -> tuple[ReadNode, Names]:
    """The node with the ids of its devices, and these for the next time. A device keeps its index as long as its id is there."""
    listed = {device.uuid for device in read.node.devices if device.uuid}
    known = {one: place for one, place in before.at.items() if one not in listed}
    wanted: dict[str, list[str]] = {}
    for resource in dict.fromkeys(read.resources):
        unnamed = [k for k, name in enumerate(read.resources) if name == resource and _may_be_named(read, k)]
        if ids := _ids_of(resource, len(unnamed), given, known):
            wanted[resource] = ids
    used = {device.index for k, device in enumerate(read.node.devices) if not _may_be_named(read, k)}
    kept = {one: known[one][0] for ids in wanted.values() for one in ids if one in known}
    used |= set(kept.values())
    devices, names = [], {}
    for k, (device, resource) in enumerate(zip(read.node.devices, read.resources, strict=True)):
        if not _may_be_named(read, k):
            devices.append(device)
            continue
        name = wanted[resource].pop(0) if wanted.get(resource) else ""
        index = kept[name] if name in kept else _free(used, device.index)
        used.add(index)
        devices.append(replace(device, id=f"{device.node}/{index}", index=index, uuid=name))
        if name:
            names[name] = (index, resource)
    order = sorted(range(len(devices)), key=lambda k: devices[k].index)
    node = replace(read.node, devices=tuple(devices[k] for k in order))
    found = replace(
        read,
        node=node,
        resources=tuple(read.resources[k] for k in order),
        names=tuple(read.names[k] for k in order),
    )
    return _with_source(found, given), Names(names)


def _may_be_named(read: ReadNode, k: int) -> bool:
    device = read.node.devices[k]
    return device.kind == "gpu" and not device.uuid


def _ids_of(
    resource: str, count: int, given: NodeGiven | None, known: Mapping[str, tuple[int, str]]
) -> list[str]:
    """Ids for so many devices; none where kubelet and API server do not agree on how many there are, now or before."""
    before = [one for one, (_, of) in known.items() if of in ("", resource)]
    before.sort(key=lambda one: known[one][0])
    ids = _whole(given.allocatable.get(resource, ())) if given is not None else []
    if len(ids) != count:
        return before if len(before) == count else []
    return [*(one for one in before if one in ids), *(one for one in ids if one not in before)]


def _whole(ids: Sequence[str]) -> list[str]:
    """Of devices, in an order of their own."""
    return sorted({_SHARE.sub("", one) for one in ids}, key=natural)


def natural(name: str) -> tuple[tuple[int, int, str], ...]:
    """A key that sorts ``gpu-10`` after ``gpu-9``."""
    parts = re.findall(r"[0-9]{1,18}|[^0-9]+", name)
    return tuple((0, int(part), "") if part.isdecimal() else (1, 0, part) for part in parts)


def _free(used: set[int], wanted: int) -> int:
    if wanted not in used:
        return wanted
    return next(k for k in range(len(used) + 1) if k not in used)


def _with_source(read: ReadNode, given: NodeGiven | None) -> ReadNode:
    if given is None or all(device.kind != "gpu" for device in read.node.devices):
        return read
    text = f"not known: {given.why[:_MOST_WHY]}" if given.why else _KNOWN
    node = replace(read.node, sources=_added(read.node.sources, f"devices of pods: {text}"))
    return replace(read, node=node, sources=(*read.sources, ("devices of pods", text)))


@lru_cache(maxsize=4096)
def _added(sources: tuple[str, ...], text: str) -> tuple[str, ...]:
    """Equal nodes share one value."""
    return (*sources, text)


def devices_in(read: ReadNode, ids: Mapping[str, Sequence[str]]) -> dict[str, int] | None:
    """The devices of the fleet that a pod has with these ids, each with how many of its parts; None where an id is not known."""
    known = {device.uuid: device.id for device in read.node.devices if device.uuid}
    known |= {name: d.id for d, name in zip(read.node.devices, read.names, strict=True) if name}
    drivers = {name.partition("/")[0] for name in read.names if name}
    found: Counter[str] = Counter()
    for resource, some in ids.items():
        if not is_device(resource) and resource not in drivers:
            continue
        for one in some:
            device = known.get(f"{resource}/{one}") or known.get(_SHARE.sub("", one))
            if device is None:
                return None
            found[device] += 1
    return dict(found)
