"""A fleet as the text of a fleet file, so that a discovered one can be edited and declared."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from typing import Any, Final

import yaml

from unidle.files.fleet_guard import guard_as_data
from unidle.files.fleet_links import gpu_links_as_data
from unidle.files.fleet_profile import profile_as_data
from unidle.files.fleet_retention import retention_as_data
from unidle.files.fleet_share import sharing_fields
from unidle.files.fleet_watch import watch_as_mapping
from unidle.files.tree import resolve
from unidle.files.values import duration_text
from unidle.fleet import WHOLE_PPM, Device, Fleet, Link, LinkMeasured, Node
from unidle.fleet.policies import IdlePolicy, IdleTerms
from unidle.fleet.queues import DAILY, USUAL_ORDER, UTC, Migration, QueueOrder, QueueSpec, UsageDecay

_ADDRESS: Final = "127.0.0.1"
_MODELS: Final = {"cpu": "cpu", "gpu": ""}


def fleet_to_yaml(fleet: Fleet) -> str:
    """The fleet file that declares ``fleet``.

    Loading it gives an equal fleet, but for ``source``; devices come back named ``node/index``, and a
    fleet without tiers gets its one site.
    """
    text: str = yaml.dump(
        _given(
            currency=fleet.currency,
            prices=dict(fleet.prices_per_device_hour),
            peak_tflops=dict(fleet.peak_tflops),
            tiers=[_given(id=t.id, kind=t.kind, parent=t.parent, fabric=t.fabric) for t in fleet.tiers],
            nodes=[_node(node, tiers=bool(fleet.tiers)) for node in fleet.nodes],
            links=[link_as_data(link) for link in fleet.links],
            gpu_links=gpu_links_as_data(fleet.gpu_links),
            queues=[_queue(queue) for queue in fleet.queues],
            migration=_migration(fleet.migration),
            idle=_idle(fleet.idle),
            guard=guard_as_data(fleet.guard),
            profile=profile_as_data(fleet.profile),
            retention=retention_as_data(fleet.retention),
            timezone=fleet.zone.name if fleet.zone != UTC else None,
            history=_history(fleet.history) if fleet.history != DAILY else None,
            order=_order(fleet.order) if fleet.order != USUAL_ORDER else None,
        )
        | ({} if fleet.filler_price is None else {"filler_price": fleet.filler_price}),  # which may be 0
        Dumper=_Dumper,
        sort_keys=False,
        default_flow_style=None,
        width=110,
    )
    return text


_Base: Any = getattr(yaml, "CSafeDumper", yaml.SafeDumper)


class _Dumper(_Base):  # type: ignore[misc]
    """Quotes text that either version of YAML reads as something else."""

    def ignore_aliases(self, data: object) -> bool:  # noqa: ARG002
        return True


def _text(dumper: Any, data: str) -> yaml.ScalarNode:
    # The dumper itself knows YAML 1.1 only.
    style = None if isinstance(resolve(data), str) else '"'
    node: yaml.ScalarNode = dumper.represent_scalar("tag:yaml.org,2002:str", data, style=style)
    return node


_Dumper.add_representer(str, _text)


def _given(**fields: object) -> dict[str, object]:
    """The fields that say something."""
    return {name: value for name, value in fields.items() if value not in (None, "", 0, [], {})}


def _node(node: Node, *, tiers: bool) -> dict[str, object]:
    groups = list(_groups(node.devices))
    return _given(
        id=node.id,
        parent=node.parent if tiers else None,
        devices=groups[0] if len(groups) == 1 else groups,
        cpus=_short(node.cpus),
        memory=_memory(node.memory_bytes),
        labels=dict(node.labels),
        address=node.address if node.address != _ADDRESS else None,
        fabric=node.fabric,
        taints=list(node.taints),
        gpu_links=node.gpu_links,
        netns=node.netns,
        watch=watch_as_mapping(node.watch),
    )


def _queue(queue: QueueSpec) -> dict[str, object]:
    windows = [
        _given(when=w.when.text, guarantee=w.guarantee, deserved=w.deserved, limit=w.limit)
        for w in queue.windows
    ]
    found = _given(
        name=queue.name,
        parent=queue.parent,
        weight=queue.weight if queue.weight != 1 else None,
        kind=queue.kind if queue.kind != "pooled" else None,
        guarantee=queue.guarantee,
        deserved=queue.deserved,
        limit=queue.limit,
        lend=queue.lend,
        borrow=queue.borrow,
        windows=windows,
        order=queue.order,
    )
    return found if queue.reclaimable else {**found, "reclaimable": False}


def _migration(rule: Migration | None) -> dict[str, object] | None:
    if rule is None:
        return None
    gain_least = _short(rule.gain_least_ppm / 1_000_000)
    return {"moves_most": rule.moves_most, "levels": list(rule.levels), "gain_least": gain_least}


def _history(history: UsageDecay) -> dict[str, object]:
    return {"half_life_days": history.half_life_ns / 86_400e9, "weight": history.weight_ppm / 1e6}


def _order(order: QueueOrder) -> dict[str, object]:
    return {"by": order.by, "bound": duration_text(order.bound_ns)}


def _idle(policy: IdlePolicy) -> dict[str, object]:
    usual = IdlePolicy()
    found = _terms(policy.terms, usual.terms) | _given(
        busy_percent=_short(policy.busy_ppm / 10_000) if policy.busy_ppm != usual.busy_ppm else None,
        exempt=list(policy.exempt),
        idle_ok=list(policy.idle_ok),
    )
    own = {name: _terms(terms, policy.terms) for name, terms in policy.queues.items()}
    return found | ({"queues": own} if own else {})


def _terms(terms: IdleTerms, base: IdleTerms) -> dict[str, object]:
    """What differs from ``base``; a queue's own terms may differ in nothing."""
    found: dict[str, object] = {}
    for name in ("after", "start", "notice"):
        ns: int = getattr(terms, f"{name}_ns")
        if ns != getattr(base, f"{name}_ns") or (name == "start" and terms.after_ns != base.after_ns):
            found[name] = duration_text(ns)
    if terms.release != base.release:
        found["release"] = terms.release
    if terms.then != base.then:
        found["then"] = terms.then
    return found


def link_as_data(link: Link) -> dict[str, object]:
    """The entry of a fleet file for a link."""
    return _given(
        a=link.a,
        b=link.b,
        tier=link.tier,
        fabric=link.fabric,
        gbps=_short(link.bandwidth_bps / 1e9),
        latency_us=_short(link.latency_ns / 1e3),
        flow_gbps=_short(link.flow_bps / 1e9),
        measured=_measured(link.measured),
    )


def _measured(found: LinkMeasured | None) -> dict[str, object] | None:
    if found is None:
        return None
    return _given(
        gbps=[_short(each / 1e9) for each in found.bandwidth_bps],
        latency_us=[_short(each / 1e3) for each in found.latency_ns],
        flow_gbps=[_short(each / 1e9) for each in found.flow_bps],
        loss_ppm=found.loss_ppm,
    )


def _alike(devices: Iterable[Device]) -> Iterator[list[Device]]:
    """Runs of devices that differ in nothing but a growing index."""
    run: list[Device] = []
    for device in devices:
        if run and (
            device.uuid
            or run[-1].uuid
            or _traits(device) != _traits(run[-1])
            or device.index != run[-1].index + 1
        ):
            yield run
            run = []
        run.append(device)
    if run:
        yield run


def _traits(device: Device) -> Mapping[str, object]:
    return {
        "kind": device.kind,
        "model": device.model,
        "memory": device.memory_bytes,
        "slices_ppm": device.slices_ppm,
        "vendor": device.vendor,
        "share": device.sharing,
        "ahead": 0 if device.number is None else device.number - device.index,
    }


def _groups(devices: Iterable[Device]) -> Iterator[dict[str, object]]:
    following = 0  # the index that the reader would take
    vendors: set[str] = set()
    for run in _alike(devices):
        first = run[0]
        group: dict[str, object] = {"count": len(run), "kind": first.kind}
        if first.model != _MODELS[first.kind]:
            group["model"] = first.model
        if first.vendor != "nvidia":
            group["vendor"] = first.vendor
        if first.slices_ppm != (WHOLE_PPM,):
            group["slices_ppm"] = list(first.slices_ppm)
        if first.sharing is not None:
            group["share"] = sharing_fields(first.sharing, first.kind, first.vendor)
        if first.index != following:
            group["index"] = first.index
        if first.kind == "gpu":
            vendors.add(first.vendor)
        if first.number is not None or len(vendors) > 1:
            group["number"] = first.index if first.number is None else first.number
        following = run[-1].index + 1
        yield group | _given(memory=_memory(first.memory_bytes), uuid=first.uuid)


def _memory(size_bytes: int) -> int | str:
    for unit, shift in (("TiB", 40), ("GiB", 30), ("MiB", 20)):
        if size_bytes and size_bytes % (1 << shift) == 0:
            return f"{size_bytes >> shift}{unit}"
    return size_bytes


def _short(number: float) -> int | float:
    return int(number) if number == int(number) else number
