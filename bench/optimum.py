"""One round of decisions against the best that there is: devices placed on small fleets, gap to the proven optimum.

Random fleets of 4 to 8 nodes behind two leaves, with devices that are taken already, and 5 to 12 waiting gangs,
some with the wish that all of them is on one node or behind one leaf, or that each tensor group is on one node.
HiGHS (of the development packages) solves two programs per case: the most devices that any choice of gangs can take,
in any order; and the most where a gang is passed over only if it does not fit next to those before it in the
queue, wherever these are put. A round takes gangs in the order of the queue and never moves one, so what it lacks
to the second is the price of its placing, and what that lacks to the first the price of keeping the queue's order.
"""

from __future__ import annotations

import argparse
import random
import statistics
import time
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Any

from highspy import Highs, HighsModelStatus, HighsVarType

from _table import Row, main
from unidle.events import types as ev
from unidle.fleet import Device, Fleet, Node, Tier
from unidle.jobs import JobSpec, Layout, RankPlace, Topology
from unidle.place.scheduler import Scheduler
from unidle.view.fold import apply
from unidle.view.placement_input import view_of

CASES, SEED = 200, 42


@dataclass(frozen=True, slots=True)
class Case:
    """A fleet and what waits for it, in the order of the queue."""

    fleet: Fleet
    gangs: tuple[JobSpec, ...]

    @property
    def leaves(self) -> dict[str, list[int]]:
        found: dict[str, list[int]] = {}
        for k, node in enumerate(self.fleet.nodes):
            found.setdefault(node.parent, []).append(k)
        return found


def cases(count: int, seed: int) -> Iterator[Case]:
    """The same for the same seed."""
    chance = random.Random(seed)
    for _ in range(count):
        tiers = (Tier("s", "spine"), Tier("l0", "leaf", "s"), Tier("l1", "leaf", "s"))
        nodes = [_node(f"n{k}", f"l{k % 2}", chance.randint(2, 8)) for k in range(chance.randint(4, 8))]
        yield Case(Fleet(tiers, tuple(nodes)), tuple(_gang(chance) for _ in range(chance.randint(5, 12))))


def _node(name: str, leaf: str, free: int) -> Node:
    """A node with as many devices as are free: those that are taken do not matter."""
    return Node(name, leaf, tuple(Device(f"{name}/{k}", name, k, "gpu", "H100") for k in range(free)))


def _gang(chance: random.Random) -> JobSpec:
    each = chance.choice((1, 1, 1, 2, 4))
    ranks = chance.choice((1, 1, 2, 2, 3, 4, 6, 8, 12) if each == 1 else (1, 2, 3, 4))
    wish = chance.choice((None, None, "leaf", "node", "tp"))
    if wish == "tp" and each == 1 and ranks % 2 == 0:
        topology, layout = Topology(groups={"tp": "node"}), Layout(tp=2, dp=ranks // 2)
        return JobSpec(("train",), ranks=ranks, device="gpu", layout=layout, topology=topology)
    topology = Topology(require=wish) if wish in ("leaf", "node") else None  # type: ignore[assignment]
    return JobSpec(("train",), ranks=ranks, devices_per_rank=each, device="gpu", topology=topology)


# What a round does.


def placed(case: Case) -> tuple[int, float]:
    """Devices that one round gives to gangs, checked against the case, and its time in seconds."""
    view = view_of(case.fleet)
    for k, gang in enumerate(case.gangs):
        apply(view, ev.JobSubmitted(f"g{k:02}", gang), view.seq + 1, 1)
    begin = time.perf_counter()
    plan = Scheduler().decide(view, 1)
    took_s = time.perf_counter() - begin
    _check(case, {place.job: place.places for place in plan.places})
    return sum(len(rank.slices) for place in plan.places for rank in place.places), took_s


def _check(case: Case, given: dict[str, Sequence[RankPlace]]) -> None:
    taken = [piece for places in given.values() for place in places for piece in place.slices]
    if len(taken) != len(set(taken)):
        raise SystemExit("a device was given twice")
    for name, places in given.items():
        gang = case.gangs[int(name[1:])]
        if len(places) != gang.ranks or any(len(p.slices) != gang.devices_per_rank for p in places):
            raise SystemExit(f"{name} was placed in part")
        if not keeps_wishes(case, gang, places):
            raise SystemExit(f"{name} was placed against its wishes")


def keeps_wishes(case: Case, gang: JobSpec, places: Sequence[RankPlace]) -> bool:
    """Whether the hard wishes of a gang hold on its places."""
    leaf = {node.id: node.parent for node in case.fleet.nodes}
    topology = gang.topology or Topology()
    nodes = [place.node for place in places]
    if topology.require == "node":
        return len(set(nodes)) == 1
    if topology.require == "leaf":
        return len({leaf[node] for node in nodes}) == 1
    size = gang.layout.tp if gang.layout is not None and "tp" in topology.groups else 1
    return all(len(set(nodes[k : k + size])) == 1 for k in range(0, gang.ranks, size))


# The optimum.


class Program:
    """Which gangs are placed, and how many units (ranks, or tensor groups) of each are on each node."""

    def __init__(self, case: Case) -> None:
        self._case = case
        self._solver: Any = Highs()  # type: ignore[no-untyped-call]  # has no types of its own
        for option, value in (("output_flag", False), ("threads", 1), ("mip_rel_gap", 0.0)):
            self._solver.setOptionValue(option, value)
        whole = HighsVarType.kInteger
        room = [len(node.devices) for node in case.fleet.nodes]
        load: list[list[Any]] = [[] for _ in room]
        self.chosen = [self._solver.addVariable(0, 1, type=whole) for _ in case.gangs]
        for gang, chosen in zip(case.gangs, self.chosen, strict=True):
            unit = gang.layout.tp if gang.layout is not None else 1
            weight = unit * gang.devices_per_rank
            on = [self._solver.addVariable(0, free // weight, type=whole) for free in room]
            self._solver.addConstr(sum(on) == chosen * (gang.ranks // unit))
            for k, count in enumerate(on):
                load[k].append(count * weight)
            self._within(gang, chosen, on, [free // weight for free in room])
        for used, free in zip(load, room, strict=True):
            self._solver.addConstr(sum(used) <= free)

    def _within(self, gang: JobSpec, chosen: Any, on: list[Any], most: list[int]) -> None:
        require = gang.topology.require if gang.topology is not None else None
        if require is None:
            return
        domains = list(self._case.leaves.values()) if require == "leaf" else [[k] for k in range(len(on))]
        inside = [self._solver.addVariable(0, 1, type=HighsVarType.kInteger) for _ in domains]
        self._solver.addConstr(sum(inside) == chosen)
        for there, nodes in zip(inside, domains, strict=True):
            for k in nodes:
                self._solver.addConstr(on[k] <= there * most[k])

    def most(self) -> int:
        """The most devices that any choice of gangs takes."""
        parts = [c * gang.devices for c, gang in zip(self.chosen, self._case.gangs, strict=True)]
        self._solver.maximize(sum(parts))
        if self._solver.getModelStatus() != HighsModelStatus.kOptimal:
            raise SystemExit("HiGHS found no optimum")
        return round(float(self._solver.getInfo().objective_function_value))

    def in_order(self) -> int:
        """Devices where each gang is taken that fits next to those taken before it, wherever these are put."""
        taken = 0
        for gang, chosen in zip(self._case.gangs, self.chosen, strict=True):
            self._solver.maximize(chosen)
            fits = self._solver.getModelStatus() == HighsModelStatus.kOptimal and (
                self._solver.getInfo().objective_function_value > 0.5
            )
            self._solver.addConstr(chosen == int(fits))
            taken += gang.devices * fits
        return taken


# The table.


def rows(arguments: argparse.Namespace) -> Iterator[Row]:
    given = list(cases(arguments.cases, SEED))
    begin = time.perf_counter()
    best = [Program(case).most() for case in given]
    ordered = [Program(case).in_order() for case in given]
    solve_s = time.perf_counter() - begin
    how = f"measured here, {len(given)} random cases of 4 to 8 nodes and 5 to 12 gangs, HiGHS took {solve_s:.0f} s"
    found = [placed(case) for case in given]
    for what, bound in (("the queue's order kept", ordered), ("any order", best)):
        gaps = [1 - devices / b for (devices, _), b in zip(found, bound, strict=True)]
        even = sum(gap <= 0 for gap in gaps)
        yield Row(
            f"devices that one round leaves against the optimum, {what}", "%", 100 * statistics.mean(gaps),
            how=f"{how}; none left in {even} of {len(gaps)}, at most {100 * max(gaps):.0f} %",
        )  # fmt: skip
    price = [1 - o / b for o, b in zip(ordered, best, strict=True)]
    yield Row(
        "what the queue's order costs: one optimum against the other",
        "%",
        100 * statistics.mean(price),
        how=how,
    )
    times = sorted(took_s for _, took_s in found)
    yield Row(
        "time of one round", "ms", 1e3 * statistics.median(times),
        how=f"measured here, median of {len(times)}, largest {1e3 * times[-1]:.1f} ms",
    )  # fmt: skip


if __name__ == "__main__":
    main("optimum", rows, lambda parser: parser.add_argument("--cases", type=int, default=CASES))
