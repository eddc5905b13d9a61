"""What pods take of a node: CPU and memory by their requests, devices by count."""

from __future__ import annotations

from collections.abc import Collection, Iterable, Iterator, Mapping
from dataclasses import dataclass
from decimal import Decimal
from types import MappingProxyType
from typing import Final

from unidle.events.hosts import OtherPhase, OtherPod
from unidle.fleet import Device
from unidle.jobs import Reason
from unidle.kube.devices import is_device
from unidle.kube.objects import Container, Pod
from unidle.kube.quantity import quantity

_ZERO: Final = Decimal(0)
_NAMED: Final = 3  # pods that a reason names


@dataclass(frozen=True, slots=True)
class NodeUse:
    """All that pods of others use of a node, in the fields of ``unidle.engine.protocol.Taken``."""

    node: str
    cpus: float
    memory_bytes: int
    devices: tuple[str, ...]
    because: Reason
    pods: tuple[OtherPod, ...] = ()


@dataclass(frozen=True, slots=True)
class PodUse:
    """What one pod on a node takes: cores, bytes, and how many of each device resource."""

    name: str  # NAMESPACE/NAME
    cpus: Decimal
    memory_bytes: Decimal
    devices: tuple[tuple[str, int], ...] = ()
    phase: OtherPhase = "running"


def pod_use(pod: Pod) -> PodUse | None:
    """What ``pod`` takes of its node; None where it is on none, or has ended.

    As kube-scheduler counts: the sum of its containers and sidecars, or its largest init container, with its overhead;
    requests of the pod as a whole take precedence.
    """
    if not pod.spec.node_name or pod.ended:
        return None
    total = _sum(pod.spec.containers)
    before: dict[str, Decimal] = {}  # sidecars that run already
    peak: dict[str, Decimal] = {}
    for container in pod.spec.init_containers:
        wanted = _requests(container)
        if container.restart_policy == "Always":
            before = _added(before, wanted)
            wanted = before
        else:
            wanted = _added(before, wanted)
        peak = {
            name: max(peak.get(name, _ZERO), wanted.get(name, _ZERO)) for name in peak.keys() | wanted.keys()
        }
    total = _added(total, before)
    total = {name: max(total.get(name, _ZERO), peak.get(name, _ZERO)) for name in total.keys() | peak.keys()}
    total |= _read(pod.spec.resources.requests)
    total = _added(total, _read(pod.spec.overhead))
    devices = tuple(sorted((name, int(count)) for name, count in total.items() if count and is_device(name)))
    name = f"{pod.metadata.namespace}/{pod.metadata.name}"
    return PodUse(name, total.get("cpu", _ZERO), total.get("memory", _ZERO), devices, _phase(pod))


def _phase(pod: Pod) -> OtherPhase:
    if pod.metadata.deletion_timestamp:
        return "ending"
    return "running" if pod.status.phase == "Running" else "starting"


def node_use(
    node: str,
    pods: Iterable[PodUse],
    devices: tuple[Device, ...],
    resources: tuple[str, ...],
    held: Collection[str] = (),
    before: Mapping[str, Collection[str]] = MappingProxyType({}),
    given: Mapping[str, Mapping[str, int]] = MappingProxyType({}),
) -> NodeUse:
    """What ``pods`` take of ``node`` together. ``given`` has the devices of pods by their name, as far as the node's kubelet
    was asked, each with how many of its parts. All others have those that no job of ours holds, from the last one on: the
    API server does not show which. Such a pod keeps those that it had ``before``.

    ``resources`` has the resource of each device, ``held`` ids of devices that jobs of ours hold.
    """
    found = sorted(pods, key=lambda use: use.name)
    cpus = sum((use.cpus for use in found), _ZERO)
    memory = sum((use.memory_bytes for use in found), _ZERO)
    parts = _left(devices, held, given)
    offers: dict[str, list[str]] = {}
    for device, resource in zip(reversed(devices), reversed(resources), strict=True):
        if device.id in parts:
            offers.setdefault(resource, []).append(device.id)
    has = {use.name: list(given.get(use.name, ())) for use in found if use.devices or use.name in given}
    missing = {use.name: dict(use.devices) for use in found if use.devices and use.name not in given}
    for again in (True, False):  # first what a pod had, then what is left
        for name, wanted in missing.items():
            for resource in wanted:
                known = before.get(name, ())
                chosen = [one for one in offers.get(resource, ()) if not again or one in known]
                has[name] += _take(chosen, parts, wanted, resource)
    others = tuple(
        OtherPod(use.name, use.phase, tuple(sorted(dict.fromkeys(has[use.name]))))
        for use in found
        if use.name in has
    )
    taken = tuple(sorted({device for pod in others for device in pod.devices}))
    return NodeUse(node, float(cpus), int(memory), taken, _because(found), others)


def _left(
    devices: Iterable[Device], held: Collection[str], given: Mapping[str, Mapping[str, int]]
) -> dict[str, int]:
    """By device that no job of ours holds, its parts that no pod is known to have."""
    parts = {device.id: len(device.slices_ppm) for device in devices if device.id not in held}
    for some in given.values():
        for one, count in some.items():
            if one in parts:
                parts[one] = max(parts[one] - count, 0)
    return parts


def _take(
    chosen: Iterable[str], parts: dict[str, int], wanted: dict[str, int], resource: str
) -> Iterator[str]:
    """Devices of ``chosen`` with parts that are left, as far as they are requested."""
    for device in chosen:
        count = min(parts[device], wanted[resource])
        if count > 0:
            parts[device] -= count
            wanted[resource] -= count
            yield device


def _because(found: list[PodUse]) -> Reason:
    if not found:
        return Reason("no_other_pods", "No pods of others are on the node.")
    with_devices = [use for use in found if use.devices] or found
    names = ", ".join(use.name for use in with_devices[:_NAMED])
    more = len(with_devices) - _NAMED
    named = f"{names} and {more} more" if more > 0 else names
    return Reason("other_pods", f"Pods of others are on the node: {named}.", {"pods": len(found)})


def _sum(containers: Iterable[Container]) -> dict[str, Decimal]:
    total: dict[str, Decimal] = {}
    for container in containers:
        total = _added(total, _requests(container))
    return total


def _requests(container: Container) -> dict[str, Decimal]:
    """Requests; without one, the limit counts as the request, as the API server sets it."""
    return _read({**container.resources.limits, **container.resources.requests})


def _read(quantities: Mapping[str, str]) -> dict[str, Decimal]:
    found = {}
    for name, text in quantities.items():
        try:
            found[name] = quantity(text)
        except ValueError:
            continue
    return found


def _added(one: Mapping[str, Decimal], other: Mapping[str, Decimal]) -> dict[str, Decimal]:
    return {name: one.get(name, _ZERO) + other.get(name, _ZERO) for name in one.keys() | other.keys()}
