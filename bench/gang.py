"""Gangs over a network tree: decisions a second, one large gang, "cannot run, and why", and how cost grows.

The decision alone: from the room on each node to the nodes of every rank, or to the reason why not.
"""

from __future__ import annotations

import argparse
import statistics
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass

import numpy as np

from _fleets import fleet, plan_or_why
from _table import Row, main
from unidle.jobs import Layout
from unidle.place.network.constraint import Blocked, Constraint, Gang, GangPlan
from unidle.place.network.domains import DomainCapacity
from unidle.place.network.tree import Ints, Tree, tree_of

CURVE = (500, 1_000, 2_000, 5_000, 10_000, 20_000)
SMALL = Gang(4, None, (Constraint("gang", "leaf"),))
LARGE = Gang(2_304)
GROUPED = Gang(
    2_304,
    Layout(tp=8, dp=16, pp=18),
    (Constraint("tp", "node"), Constraint("dp", "leaf"), Constraint("gang", "site")),
)
HARD = Gang(
    2_048,
    Layout(tp=8, dp=16, pp=16),
    (
        Constraint("tp", "node"),
        Constraint("dp", "leaf"),
        Constraint("gang", "spine"),
        Constraint(fabric="infiniband"),
    ),
)


@dataclass(frozen=True, slots=True)
class Times:
    """Seconds of several runs."""

    runs: tuple[float, ...]

    @property
    def median(self) -> float:
        return statistics.median(self.runs)

    def how(self) -> str:
        low, high = min(self.runs) * 1e3, max(self.runs) * 1e3
        return f"measured here, median of {len(self.runs)} runs ({low:.3g} to {high:.3g} ms)"


def timed(work: Callable[[], object], runs: int) -> Times:
    taken = []
    for _ in range(runs):
        begin = time.perf_counter()
        work()
        taken.append(time.perf_counter() - begin)
    return Times(tuple(taken))


def checked(tree: Tree, room: Ints, gang: Gang) -> None:
    """Ends the benchmark where the plan is not one."""
    plan = plan_or_why(DomainCapacity(tree, room), gang)
    if isinstance(plan, Blocked):
        raise SystemExit(f"{gang} should fit: {plan.because.text}")
    if int(plan.counts.sum()) != gang.ranks or (plan.counts > room[plan.nodes]).any():
        raise SystemExit(f"{gang}: half a gang, or a node over its room")


def stream(tree: Tree, gangs: int) -> DomainCapacity:
    """Places ``gangs`` gangs of 4 in a leaf each, one after the other, on nodes with room for one rank."""
    rooms = DomainCapacity(tree, np.ones(len(tree.nodes), dtype=np.int64))
    for _ in range(gangs):
        plan = plan_or_why(rooms, SMALL)
        if not isinstance(plan, GangPlan):
            raise SystemExit(plan.because.text)
        rooms.set(plan.nodes, rooms.room[plan.nodes] - plan.counts)
    return rooms


def rows(arguments: argparse.Namespace) -> Iterator[Row]:
    runs: int = arguments.runs
    trees = {nodes: tree_of(fleet(nodes)) for nodes in (500, 2_500, 5_000)}
    yield from _streams(trees[5_000], runs)
    yield from _large(trees, runs)
    yield from _blocked(trees, runs)
    yield from _curve(runs)


def _streams(tree: Tree, runs: int) -> Iterator[Row]:
    taken = timed(lambda: stream(tree, 750), runs)
    rate = 3_000 / taken.median
    yield Row(
        "750 gangs of 4, each in one rack, 5,000 nodes", "pods/s", rate, 18, "kube-scheduler v1.36 in process",
        rate / 18, "at least 5,000", rate >= 5_000, f"{taken.how()}; peer published",
    )  # fmt: skip
    thousand, room = Gang(1_000), np.ones(len(tree.nodes), dtype=np.int64)
    checked(tree, room, thousand)
    taken = timed(lambda: plan_or_why(DomainCapacity(tree, room), thousand), runs)
    rate = 1_000 / taken.median
    yield Row(
        "one gang of 1,000, 5,000 nodes", "pods/s", rate, 216, "kube-scheduler v1.36 in process",
        rate / 216, "at least 5,000", rate >= 5_000, f"{taken.how()}; peer published",
    )  # fmt: skip


def _large(trees: dict[int, Tree], runs: int) -> Iterator[Row]:
    tree = trees[2_500]
    one_each = np.ones(2_500, dtype=np.int64)
    one_each[::40] = 0
    spread = np.where(np.arange(2_500) % 7 == 0, 4, 8)
    full = np.where(np.arange(2_500) % 97 == 0, 0, 8)
    preferred = Gang(2_304, GROUPED.layout, (Constraint("tp", "node", hard=False),))
    cases: tuple[tuple[str, Ints, Gang, float | None], ...] = (
        ("one gang of 2,304 ranks, one a node, 2,500 nodes", one_each, LARGE, 15.9),
        ("2,304 ranks, 4 to 8 a node, tensor groups in a node preferred", spread, preferred, None),
        ("2,304 ranks, 8 a node, tp in a node and dp in a leaf required", full, GROUPED, None),
    )
    for what, room, gang, peer in cases:
        checked(tree, room, gang)
        taken = timed(lambda room=room, gang=gang: plan_or_why(DomainCapacity(tree, room), gang), runs)  # type: ignore[misc]
        found = taken.median * 1e3
        yield Row(
            what, "ms", found, peer, "Kueue, one topology assignment" if peer else None, peer / found if peer else None,
            "under 5", found < 5, f"{taken.how()}, sums built again each time" + ("; peer published" if peer else ""),
        )  # fmt: skip


def _blocked(trees: dict[int, Tree], runs: int) -> Iterator[Row]:
    for nodes, peer in ((500, 249.5), (5_000, None)):
        tree = trees[nodes]
        room = np.where(np.arange(nodes) % 9 < 4, 0, 8)
        verdict = plan_or_why(DomainCapacity(tree, room), HARD)
        if not isinstance(verdict, Blocked) or not verdict.barriers:
            raise SystemExit("the gang should be blocked, and say why")
        taken = timed(lambda tree=tree, room=room: plan_or_why(DomainCapacity(tree, room), HARD), runs)  # type: ignore[misc]
        found = taken.median
        yield Row(
            f"cannot run, and why: 2,048 ranks, 4 constraints, {nodes:,} nodes", "s", found, peer,
            "KAI, 80 GPUs, 500 nodes, with an API server" if peer else None, peer / found if peer else None,
            "under 0.1", found < 0.1, taken.how() + ("; peer published" if peer else ""),
        )  # fmt: skip


def _curve(runs: int) -> Iterator[Row]:
    costs: dict[int, float] = {}
    for nodes in CURVE:
        begin = time.perf_counter()
        tree = tree_of(fleet(nodes))
        build_s = time.perf_counter() - begin
        gangs = min(750, nodes // 8)
        taken = timed(lambda tree=tree, gangs=gangs: stream(tree, gangs), runs)  # type: ignore[misc]
        costs[nodes] = taken.median / gangs * 1e6
        held = costs[nodes] <= 2 * costs[5_000] if nodes == 10_000 else None
        yield Row(
            f"a gang of 4 in one rack, {nodes:,} nodes", "us", costs[nodes],
            goal=f"at most twice 5,000 nodes ({costs[nodes] / costs[5_000]:.2f}x)" if nodes == 10_000 else None,
            holds=held, how=f"{taken.how()} of {gangs}; fleet and tree made in {build_s * 1e3:.0f} ms",
        )  # fmt: skip


if __name__ == "__main__":
    main("gang", rows, lambda parser: parser.add_argument("--runs", type=int, default=7))
