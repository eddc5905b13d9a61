"""Why a gang cannot start: what is in the way, on how many domains, and what would help."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Final

import numpy as np

from unidle.jobs import Reason
from unidle.place.constraint import Barrier, Blocked, Constraint, Gang
from unidle.place.tree import NODE, Ints
from unidle.words import counted

if TYPE_CHECKING:
    from unidle.place.gang import Rooms, Spot

FREE_DEVICES: Final = "free the devices of"


def why_blocked(rooms: Rooms, gang: Gang) -> Blocked:
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


def _unknown(rooms: Rooms, constraint: Constraint) -> Blocked:
    kinds = ", ".join((NODE, *rooms.tree.kinds[1:]))
    text = f"{constraint.text()}: the fleet has no tier of that kind, it has {kinds}"
    barrier = Barrier(constraint, 0, 0, 0, 0, f"name one of {kinds}", f"name one of {kinds}")
    because = Reason("unknown_tier", f"{text}: it can never start here", {"kind": constraint.within})
    return Blocked(because, (barrier,), text)


def _barrier(
    rooms: Rooms, gang: Gang, hard: Sequence[Constraint], constraint: Constraint, without: Spot | None
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


def _place(rooms: Rooms, spot: Spot) -> str:
    tree = rooms.tree
    if spot.vertex < 0:
        return f"node {tree.nodes[spot.position]}"
    return f"{tree.kind_name(spot.vertex)} {tree.tiers[spot.vertex]}" if spot.vertex else "the whole fleet"


def _domains(rooms: Rooms, within: str, tiers: Ints) -> Ints:
    """What each domain of the kind holds."""
    if within == NODE:
        return rooms.room
    code = rooms.tree.kind_code(within)
    found: Ints = tiers[rooms.tree.kind == code]
    return found


def _held(rooms: Rooms, gang: Gang, hard: Sequence[Constraint]) -> tuple[int, str]:
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
