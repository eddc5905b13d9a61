"""Every reason why a job waits, or can never start: what it needs, what is free, what would help, and which quota refuses it."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import replace
from typing import Final, NamedTuple

import numpy as np

from unidle.jobs import JobSpec, Reason, Where
from unidle.place.network.constraint import Barrier, Blocked, Constraint, Gang, gang_of
from unidle.place.network.domains import DomainCapacity, DomainFit
from unidle.place.network.tree import NODE, Ints
from unidle.place.nodes.free import Access, FreeSlices
from unidle.place.nodes.hardware import DevicePool, Option
from unidle.place.nodes.hardware import count_slices as counts
from unidle.place.nodes.rank_class import RankClass, RankClasses
from unidle.place.protocol import noun
from unidle.place.queue.fair_share import Refusal
from unidle.place.queue.tree import QueueTree
from unidle.words import are, counted, listed, plural

FREE_DEVICES: Final = "free the devices of"


def why_blocked(rooms: DomainCapacity, gang: Gang) -> Blocked:
    """Why no place holds ``gang`` now.

    A barrier that would suffice, were it gone, comes alone; where no single one does, all are named.
    """
    hard = [c for c in gang.constraints if c.hard]
    for constraint in hard:
        if constraint.within not in ("", NODE) and rooms.tree.kind_code(constraint.within) is None:
            return _unknown(rooms, constraint)
    total = int(rooms.room.sum())
    if total < gang.ranks:
        open_nodes = int((rooms.room > 0).sum())
        missing = gang.ranks - total
        barrier = Barrier(None, len(rooms.room), open_nodes, total, gang.ranks, _free(missing))
        return _blocked("no_room", [barrier])
    decisive: list[Barrier] = []
    others: list[Barrier] = []
    for constraint in hard:
        rest = [c for c in hard if c is not constraint]
        without = rooms.find(gang, rest)
        barrier = _barrier(rooms, gang, hard, constraint, without)
        (decisive if without is not None else others).append(barrier)
    if not hard:
        # enough ranks fit, but in no tier: they are in roots that nothing joins, or there are no nodes
        decisive.append(Barrier(None, len(rooms.room), 0, total, gang.ranks, "join the roots by a tier"))
    return _blocked("topology", decisive or others)


def _blocked(code: str, barriers: Sequence[Barrier]) -> Blocked:
    text = "; ".join(barrier.text() for barrier in barriers)
    helps = "; or ".join(dict.fromkeys(barrier.unblock for barrier in barriers))
    first = barriers[0]
    figures: dict[str, int | float | str] = {
        "needs": first.needs, "largest": first.largest, "domains": first.domains, "fitting": first.fitting
    }  # fmt: skip
    return Blocked(Reason(code, f"{text}. What would help: {helps}", figures), tuple(barriers), text)


def _unknown(rooms: DomainCapacity, constraint: Constraint) -> Blocked:
    kinds = ", ".join((NODE, *rooms.tree.kinds[1:]))
    text = f"{constraint.text()}: the fleet has no tier of that kind, it has {kinds}"
    barrier = Barrier(constraint, 0, 0, 0, 0, f"name one of {kinds}", f"name one of {kinds}")
    because = Reason("unknown_tier", f"{text}: it can never start here", {"kind": constraint.within})
    return Blocked(because, (barrier,), text)


def _barrier(
    rooms: DomainCapacity,
    gang: Gang,
    hard: Sequence[Constraint],
    constraint: Constraint,
    without: DomainFit | None,
) -> Barrier:
    largest, where = _held(rooms, gang, hard)
    free, change = _free(gang.ranks - largest) + where, ""
    if constraint.fabric is not None:
        reached = rooms.reach(constraint.fabric) <= int(rooms.tree.depth.max())
        domains, fitting = len(reached), int((reached & (rooms.room > 0)).sum())
        if not reached.any():
            free, change = "", f"connect nodes to {constraint.fabric}"
    else:
        # a part of the gang is one group, or for the whole gang any ranks
        unit = 1 if constraint.group == "gang" else gang.size(constraint.group)
        kept = [c for c in hard if c.group != "gang"] if constraint.group == "gang" else [constraint]
        each = _domains(rooms, constraint.within, rooms.units(gang, kept)[1].tiers)
        domains, fitting = len(each), int((each >= unit).sum())
    if without is not None:
        change = " or ".join(filter(None, (change, f"drop this constraint, in {_place(rooms, without)}")))
    helps = " or ".join(filter(None, (free, change)))
    return Barrier(constraint, domains, fitting, largest, gang.ranks, helps, change)


def _free(ranks: int) -> str:
    return f"{FREE_DEVICES} {counted(ranks, 'more rank')}"


def _place(rooms: DomainCapacity, spot: DomainFit) -> str:
    tree = rooms.tree
    if spot.vertex < 0:
        return f"node {tree.nodes[spot.position]}"
    return f"{tree.kind_name(spot.vertex)} {tree.tiers[spot.vertex]}" if spot.vertex else "the whole fleet"


def _domains(rooms: DomainCapacity, within: str, tiers: Ints) -> Ints:
    """What each domain of the kind holds."""
    if within == NODE:
        return rooms.room
    code = rooms.tree.kind_code(within)
    found: Ints = tiers[rooms.tree.kind == code]
    return found


def _held(rooms: DomainCapacity, gang: Gang, hard: Sequence[Constraint]) -> tuple[int, str]:
    """The most ranks that fit with all constraints held, and where."""
    tree = rooms.tree
    limits = [c for c in hard if c.group == "gang" and c.within]
    if any(c.within == NODE for c in limits):
        position = int(rooms.room.argmax())
        return int(rooms.room[position]), f" on node {tree.nodes[position]}"
    fabric = next((c.fabric for c in hard if c.fabric), None)
    if fabric is None:
        tiers = rooms.units(gang, hard)[1].tiers.copy()
    else:
        tiers = np.zeros(len(tree.tiers), dtype=np.int64)
        for depth in np.unique(tree.depth).tolist():
            here = tree.depth == depth
            tiers[here] = rooms.over(gang, hard, fabric, depth).tiers[here]
    for constraint in limits:
        tiers[~rooms.limit(constraint)] = -1
    vertex = int(tiers.argmax())
    if tiers[vertex] < 0:
        return 0, ""
    return int(tiers[vertex]), f" in {tree.kind_name(vertex)} {tree.tiers[vertex]}" if vertex else ""


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


def narrowed(free_slices: FreeSlices, spec: JobSpec, kind: str) -> str:
    """Which wishes of the job leave how many of the fleet's devices; empty where none leaves any out.

    ``of 80 GPUs, models leaves 32, then node_labels leaves 0``: each counts what those before it left.
    """
    if kind not in free_slices.pieces:
        return ""
    notes: list[str] = []
    total = before = -1
    for name, pool, where in _steps(free_slices, spec, kind):
        only = replace(spec, where=where, share=None)
        left = int(counts(free_slices.pieces[kind].allowed(only, free_slices.open_nodes(where), pool)).sum())
        if before < 0:
            total = left
        elif left != before:
            notes.append(f"{name} leaves {left}")
        before = left
    return f"of {total} {noun(kind, total)}, {', then '.join(notes)}" if notes else ""


def narrowed_nodes(free_slices: FreeSlices, spec: JobSpec) -> str:
    """The same for ranks without devices, of the fleet's nodes."""
    notes: list[str] = []
    total = before = len(free_slices.nodes)
    labelled = replace(
        spec.where, tolerate=tuple({taint for node in free_slices.nodes for taint in node.taints})
    )
    for name, where in (("node_labels", labelled), ("tolerate", spec.where)):
        left = int(free_slices.open_nodes(where).sum())
        if left != before:
            notes.append(f"{name} leaves {left}")
        before = left
    return f"of {counted(total, 'node')}, {', then '.join(notes)}" if notes else ""


def _steps(free_slices: FreeSlices, spec: JobSpec, kind: str) -> Iterator[tuple[str, DevicePool, Where]]:
    """The devices of a kind with one wish more each time, by the name of the job file's field."""
    every = tuple({taint for node in free_slices.nodes for taint in node.taints})
    where = Where(tolerate=every)
    yield "", DevicePool(kind), where
    vendor = spec.hardware.vendor if kind == "gpu" and spec.hardware.vendor != "any" else ""
    pool = DevicePool(kind, vendor)
    yield "hardware.vendor", pool, where
    for name, field in (("models", "models"), ("uuids", "uuids"), ("node_labels", "labels")):
        where = replace(where, **{field: getattr(spec.where, field)})
        yield name, pool, where
    yield "tolerate", pool, spec.where


_KEPT: Final = {
    "spare": ("kept_as_spare", "kept as spare"), "probation": ("on_probation", "on probation"),
    "place": ("kept_for_return", "kept for gangs that restart"),
}  # fmt: skip


class GangRefusal(NamedTuple):
    """Why a gang cannot be placed, and each thing in the way."""

    because: Reason
    barriers: tuple[Barrier, ...] = ()


def never_fits(classes: RankClasses, spec: JobSpec, access: Access | None = None) -> GangRefusal | None:
    """Why no state of this fleet holds the gang; None where one does."""
    gang = gang_of(spec)
    refused: list[tuple[Option, RankClass, Blocked]] = []
    for option, rank_class in classes.of_job(spec, access=access):
        if rank_class.fits_ever(gang):
            return None
        if gang not in rank_class.why_never:
            rank_class.why_never[gang] = why_blocked(rank_class.empty(), gang)
        refused.append((option, rank_class, rank_class.why_never[gang]))
    # those say why that come nearest to holding it
    nearest = max(refused, key=lambda one: (int(one[2].because.figures.get("largest", 0)), one[1].devices))
    vendors = {option.pool.vendor for option, _, _ in refused if option.pool.vendor}
    return _too_large(classes.free_slices, spec, *nearest, of_many=len(vendors) > 1)


def _too_large(
    free_slices: FreeSlices,
    spec: JobSpec,
    option: Option,
    rank_class: RankClass,
    verdict: Blocked,
    *,
    of_many: bool,
) -> GangRefusal:
    needs, total, kind = spec.devices, rank_class.devices, rank_class.kind
    if not spec.needs_devices and verdict.barriers[0].constraint is None:
        text = scattered(spec, verdict.barriers[0].largest, kind, "the empty fleet")
        by = narrowed_nodes(free_slices, spec)
        text += f" ({by})" if by else ""
    elif needs > total:
        text = f"needs {needs} {wanted(spec, kind)}, and the fleet has {total} that it may use"
        text += option.on if total else ""
        by = narrowed(free_slices, spec, kind) if spec.share is None else ""
        text += f" ({by})" if by else ""
        text += "; a gang is on GPUs of one vendor" if of_many and total else ""
    elif verdict.barriers[0].constraint is None:
        text = scattered(spec, verdict.barriers[0].largest, kind, "the empty fleet") + option.on
    else:
        text = verdict.what + (option.on if verdict.because.code != "unknown_tier" else "")
    figures = {**verdict.because.figures, "needs": needs, "devices": total}
    if kept := rank_class.spares_ever():
        text += f" ({counted(kept, 'device')} {are(kept)} kept as spare)"
        figures["kept_as_spare"] = kept
    because = Reason("never_fits", f"{text}: it can never start here", figures)
    return GangRefusal(
        because, tuple(b.of_empty_fleet() for b in verdict.barriers if b.constraint is not None)
    )


def waits(spec: JobSpec, rank_class: RankClass, blocked: Blocked) -> GangRefusal:
    """A gang waits on this class of ranks."""
    if not spec.needs_devices:
        return _waits_for_cores(spec, rank_class, blocked)
    needs, room, left = spec.devices, int(rank_class.rooms.room.sum()), int(rank_class.left().sum())
    free = room * spec.devices_per_rank
    figures = {**blocked.because.figures, "needs": needs, "free": free, "devices": rank_class.devices}
    if blocked.because.code != "no_room":
        text = blocked.because.text + kept_back(rank_class, figures)
        return GangRefusal(Reason("no_fit", text, figures), blocked.barriers)
    if left >= needs:
        text = f"{scattered(spec, room, rank_class.kind, 'the fleet now')}; {left} of {rank_class.devices} devices are free"
    else:
        text = f"needs {needs} {wanted(spec, rank_class.kind)}, {left} of {rank_class.devices} {are(left)} free for it"
    text += kept_back(rank_class, figures)
    return GangRefusal(Reason("no_fit", text, figures), blocked.barriers)


def _waits_for_cores(spec: JobSpec, rank_class: RankClass, blocked: Blocked) -> GangRefusal:
    """A gang without devices waits: with a code of its own, since devices are not free for want of it."""
    room = int(rank_class.rooms.room.sum())
    figures = {**blocked.because.figures, "needs": spec.ranks, "free": room, "devices": 0}
    text = _of_cores(blocked.because.text)
    if blocked.because.code == "no_room":
        text = scattered(spec, room, rank_class.kind, "the fleet now")
    barriers = tuple(replace(b, unblock=_of_cores(b.unblock)) for b in blocked.barriers)
    return GangRefusal(Reason("no_cores", text, figures), barriers)


def _of_cores(text: str) -> str:
    return text.replace(FREE_DEVICES, "free the cores and memory of")


def kept_back(rank_class: RankClass, figures: dict[str, int | float | str]) -> str:
    """How many devices are kept from such jobs, and as what; also into the figures. Empty where none is."""
    text = ""
    for why, count in rank_class.kept_back().items():
        name, words = _KEPT[why]
        figures[name] = count
        text += f"; {count} {are(count)} {words}"
    return text


def with_models(refused: GangRefusal, models: Sequence[str]) -> GangRefusal:
    """Of several models, how much of each is free: a gang is on one of them."""
    if len(models) < 2:
        return refused
    because = refused.because
    text = f"{because.text}; a gang is on one model: {', '.join(models)}"
    return GangRefusal(Reason(because.code, text, because.figures), refused.barriers)


def most_devices(refused: Sequence[GangRefusal]) -> GangRefusal:
    """The refusal of the kind with the most devices, among the kinds that the job accepts."""
    return max(refused, key=lambda one: int(one.because.figures["devices"]))


# -- queues ----------------------------------------------------------------------------------------


def refused(tree: QueueTree, refusal: Refusal) -> Reason:
    """Which bound of which queue is in the way, with its figures in devices or cores."""
    name, resource, used, bound, asked = _figures(tree, refusal)
    text = {
        "limit": f"{name} uses {used} {resource} of at most {bound}, and the job needs {asked}",
        "deserved": f"jobs that are never preempted use {used} of the {bound} {resource} that {name} deserves, "
        f"and this one needs {asked}; with preemption low it could borrow",
        "kept": f"{name} has {bound} {resource} that are not kept for others, {used} of them used, "
        f"and the job needs {asked}",
        "full": f"{name} uses {used} of {bound} {resource}, and the job needs {asked}",
    }[refusal.rule]
    return Reason("quota", text, _plain(tree, refusal))


def behind(tree: QueueTree, refusal: Refusal) -> Reason:
    """A job that would use up the quota of one before it; a shorter one might start."""
    name, resource, used, bound, asked = _figures(tree, refusal)
    text = (
        f"it would still run when a job before it is planned to start, and {name} has no quota for both: "
        f"{used} of {bound} {resource} are in use or planned, and this one needs {asked}"
    )
    return Reason("behind", text, _plain(tree, refusal))


def _figures(tree: QueueTree, refusal: Refusal) -> tuple[str, str, str, str, str]:
    used, bound, asked = (f"{x / 1000:g}" for x in (refusal.used, refusal.bound, refusal.asked))
    return tree.name(refusal.queue) or "the fleet", tree.resources[refusal.resource], used, bound, asked


def _plain(tree: QueueTree, refusal: Refusal) -> dict[str, int | float | str]:
    return {
        "queue": tree.name(refusal.queue) or "the fleet", "resource": tree.resources[refusal.resource],
        "used": refusal.used, "bound": refusal.bound, "asked": refusal.asked,
    }  # fmt: skip
