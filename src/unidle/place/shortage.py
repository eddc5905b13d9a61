"""What a gang needs and what there is of it, in words that a person can check against ``unidle fleet``."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace

from unidle.jobs import JobSpec, Where
from unidle.place.ground import Ground
from unidle.place.pieces import counted as counts
from unidle.place.pools import Pool
from unidle.place.queued import noun
from unidle.words import counted, listed, plural


def wanted(spec: JobSpec, kind: str) -> str:
    """What the ranks take, in words: ``GPUs``, ``parts of a GPU with at least 25 % of it``."""
    share = spec.share
    if share is None:
        return noun(kind, spec.devices)
    part = f"{plural(spec.devices, 'part')} of a {noun(kind, 1)} (share or slices_ppm in the fleet file)"
    if share.profile:
        return f"{part} of MIG profile {share.profile}"
    least = [f"{share.compute_ppm / 10_000:g} % of it"] if share.compute_ppm else []
    least += [f"{share.memory_bytes / 2**30:g} GiB"] if share.memory_bytes else []
    return f"{part} with at least {' and '.join(least)}"


def of_each(spec: JobSpec, kind: str) -> str:
    """What each rank needs on one node, where that is more than one device; else empty."""
    asks = [f"{spec.devices_per_rank} {noun(kind, spec.devices_per_rank)}"] if spec.needs_devices else []
    if spec.requests.cpus:
        asks.append(f"{spec.requests.cpus:g} {plural(spec.requests.cpus, 'core')}")
    if spec.requests.memory_bytes:
        asks.append(f"{spec.requests.memory_bytes / 2**30:g} GiB of memory")
    if len(asks) == 1 and spec.devices_per_rank == 1:
        return ""
    return listed(asks)


def scattered(spec: JobSpec, room: int, kind: str, whose: str) -> str:
    """That devices would suffice, and what a rank needs of one node does not fit more than ``room`` times."""
    each = of_each(spec, kind)
    needs = f"needs room for {counted(spec.ranks, 'rank')}" + (
        f" with {each} each on one node" if each else ""
    )
    return f"{needs}, and {whose} has room for {room}"


def narrowed(ground: Ground, spec: JobSpec, kind: str) -> str:
    """Which wishes of the job leave how many of the fleet's devices; empty where none leaves any out.

    ``of 80 GPUs, models leaves 32, then node_labels leaves 0``: each counts what those before it left.
    """
    if kind not in ground.pieces:
        return ""
    told: list[str] = []
    total = before = -1
    for name, pool, where in _steps(ground, spec, kind):
        only = replace(spec, where=where, share=None)
        left = int(counts(ground.pieces[kind].allowed(only, ground.open_nodes(where), pool)).sum())
        if before < 0:
            total = left
        elif left != before:
            told.append(f"{name} leaves {left}")
        before = left
    return f"of {total} {noun(kind, total)}, {', then '.join(told)}" if told else ""


def narrowed_nodes(ground: Ground, spec: JobSpec) -> str:
    """The same for ranks without devices, of the fleet's nodes."""
    told: list[str] = []
    total = before = len(ground.nodes)
    labelled = replace(spec.where, tolerate=tuple({taint for node in ground.nodes for taint in node.taints}))
    for name, where in (("node_labels", labelled), ("tolerate", spec.where)):
        left = int(ground.open_nodes(where).sum())
        if left != before:
            told.append(f"{name} leaves {left}")
        before = left
    return f"of {counted(total, 'node')}, {', then '.join(told)}" if told else ""


def _steps(ground: Ground, spec: JobSpec, kind: str) -> Iterator[tuple[str, Pool, Where]]:
    """The devices of a kind with one wish more each time, by the name of the job file's field."""
    every = tuple({taint for node in ground.nodes for taint in node.taints})
    where = Where(tolerate=every)
    yield "", Pool(kind), where
    vendor = spec.hardware.vendor if kind == "gpu" and spec.hardware.vendor != "any" else ""
    pool = Pool(kind, vendor)
    yield "hardware.vendor", pool, where
    for name, field in (("models", "models"), ("uuids", "uuids"), ("node_labels", "labels")):
        where = replace(where, **{field: getattr(spec.where, field)})
        yield name, pool, where
    yield "tolerate", pool, spec.where
