"""Reclaim and preemption: a queue takes back what others borrowed, on 500 nodes of 8 GPUs and more.

The fleet is full of low jobs of one queue; another, which deserves the fleet, asks for it. Each figure is the
decision alone: from the books of what runs to the victims, the nodes and the held devices. Costs of the victims
differ (their last checkpoints do), and gangs are to stay within a leaf of 20 nodes where the row says so.
Peers are measured by others, with an API server (KAI), or in process (kube-scheduler); see docs/benchmarks.md.
"""

from __future__ import annotations

import argparse
import random
import statistics
import time
from collections.abc import Callable, Iterator
from dataclasses import replace
from typing import TypeAlias

import numpy as np

from _table import Row, main
from unidle.fleet.queues import QueueSpec
from unidle.jobs import Reason
from unidle.place.actions.preempt import preempt, preempt_all
from unidle.place.model import Backfill, Demand, Fits, Ints, Running
from unidle.place.queue.fair_share import FairShare
from unidle.place.queue.pending import PendingJobs
from unidle.place.queue.state import Allocations
from unidle.place.queue.tree import QueueTree
from unidle.place.scheduler import decide
from unidle.place.session import Draft, Preemption, Session

NODES, PER_NODE, LEAF = 500, 8, 20
NOW = 10**15
World: TypeAlias = Callable[[], Callable[[], int]]  # builds a fresh world, and gives what is timed
KAI_4000_JOBS_S, KAI_4000_GPUS_S, KAI_VERDICT_S, KUBE_PODS_PER_S = 694.0, 85.0, 249.5, 310.0


def shares(nodes: int, queues: int = 2) -> FairShare:
    """``b`` runs on what ``a`` deserves; any further queues stand idle."""
    specs = [QueueSpec("a", deserved={"gpu": nodes * PER_NODE}), QueueSpec("b", deserved={"gpu": 0})]
    specs += [QueueSpec(f"q{k}", weight=1 + k % 3) for k in range(queues - 2)]
    return FairShare(QueueTree.of(specs, ["gpu"]), (nodes * PER_NODE * 1000,), 0)


def crowd(nodes: int, sizes: tuple[int, ...], seed: int = 1) -> list[Running]:
    """Low jobs that fill the nodes; sizes beyond a node span several whole ones."""
    made: list[Running] = []
    chance, node, left = random.Random(seed), 0, PER_NODE
    while node < nodes:
        size = chance.choice(sizes)
        if size > PER_NODE and left == PER_NODE and node + size // PER_NODE <= nodes:
            devices = {node + k: PER_NODE for k in range(size // PER_NODE)}
            node += len(devices)
        else:
            size = min(size, left)
            devices, left = {node: size}, left - size
            if not left:
                node, left = node + 1, PER_NODE
        held = sum(devices.values())
        saved = NOW - chance.randrange(3_600_000_000_000)
        made.append(Running(f"b{len(made)}", "b", "low", 0, devices, (held * 1000,), saved))
    return made


class Anywhere(Session):
    """A decision where nothing but devices counts."""

    def __init__(
        self, state: Allocations, pending: PendingJobs, fits_of: Callable[[Demand | Running], Fits]
    ) -> None:
        super().__init__(state, pending, NOW)
        self._fits_of = fits_of

    def fits(self, demand: Demand | Running) -> Fits:
        return self._fits_of(demand)


def anywhere(ranks: int) -> Fits:
    def fits(room: Ints) -> Ints | None:
        total = np.cumsum(room)
        if total[-1] < ranks:
            return None
        counts: Ints = np.minimum(room, np.maximum(ranks - (total - room), 0))
        return counts

    return fits


def in_a_leaf(ranks: int) -> Fits:
    """All ranks in the leaf with the least room that holds them."""

    def fits(room: Ints) -> Ints | None:
        sums = np.add.reduceat(room, np.arange(0, len(room), LEAF))
        sums = np.where(sums >= ranks, sums, 1 << 40)
        leaf = int(np.argmin(sums))
        if sums[leaf] == 1 << 40:
            return None
        only = np.zeros_like(room)
        part = slice(leaf * LEAF, (leaf + 1) * LEAF)
        only[part] = room[part]
        return anywhere(ranks)(only)

    return fits


def demands(count: int, ranks: int = 1, each: int = 1) -> list[Demand]:
    return [Demand(f"a{k}", "a", "medium", ranks, each, (ranks * each * 1000,)) for k in range(count)]


def timed(runs: int, make: World, want: int) -> list[float]:
    """Seconds of each run; ``make`` builds a fresh world, and what it returns is timed and has to give ``want``."""
    took = []
    for _ in range(runs):
        act = make()
        begin = time.perf_counter()
        got = act()
        took.append(time.perf_counter() - begin)
        if got != want:
            raise SystemExit(f"got {got} instead of {want}")
    return sorted(took)


def reclaim_jobs(
    nodes: int, count: int, ranks: int, each: int, sizes: tuple[int, ...], *, together: bool
) -> World:
    """``count`` gangs of ``ranks``; several gangs of several ranks have to stay within a leaf each."""

    def make() -> Callable[[], int]:
        state = Allocations(np.full(nodes, PER_NODE), shares(nodes), crowd(nodes, sizes))
        wanted, allowed = demands(count, ranks, each), np.ones(nodes, np.bool_)
        fits = in_a_leaf(ranks) if ranks > 1 and count > 1 else anywhere(ranks)
        domains = (
            [(k, min(k + LEAF, nodes)) for k in range(0, nodes, LEAF)] if ranks > 1 and count > 1 else None
        )

        def act() -> int:
            answers = preempt_all(
                state, wanted, lambda _: fits, NOW,
                domains_of=lambda _: domains, allowed_of=(lambda _: allowed) if together else None,
            )  # fmt: skip
            return sum(isinstance(answer, Preemption) for answer in answers.values())

        return act

    return make


def verdict(nodes: int) -> World:
    """A gang of 80 GPUs in one leaf, of which every leaf holds one node that may not be cleared."""

    def make() -> Callable[[], int]:
        held = [
            replace(run, level="medium") if min(run.devices) % 2 == 0 else run for run in crowd(nodes, (8,))
        ]
        state = Allocations(np.full(nodes, PER_NODE), shares(nodes), held)
        demand = demands(1, 11, 8)[0]
        domains = [(k, min(k + LEAF, nodes)) for k in range(0, nodes, LEAF)]
        return lambda: isinstance(preempt(state, demand, in_a_leaf(11), NOW, domains=domains), Reason)

    return make


def decisions(nodes: int, jobs: int, queues: int) -> World:
    """Whole rounds: order of queues, quota, first node with room; the fleet has room for all jobs."""

    def make() -> Callable[[], int]:
        specs = [QueueSpec(f"d{k}", weight=1 + k % 3) for k in range(queues)]
        specs += [
            QueueSpec(f"t{k}.{j}", f"d{k}", guarantee={"gpu": 1}) for k in range(queues) for j in range(4)
        ]
        books = FairShare(QueueTree.of(specs, ["gpu"]), (nodes * PER_NODE * 1000,), 0)
        state, waiting = Allocations(np.full(nodes, PER_NODE), books), PendingJobs(books, Backfill())
        for k in range(jobs):
            team = f"t{k % queues}.{k // queues % 4}"
            waiting.add(Demand(f"j{k}", team, "low", 1, 1, (1000,), k))

        def first(room: Ints) -> Ints | None:
            node = int(np.argmax(room > 0))
            if not room[node]:
                return None
            counts = np.zeros(len(room), np.int64)
            counts[node] = 1
            return counts

        def act() -> int:
            done: Draft = decide(Anywhere(state, waiting, lambda _: first))
            return len(done.starts)

        return act

    return make


def books_only(jobs: int, queues: int) -> World:
    """The books of queues alone: whose turn, may it start, charge; four levels of queues."""

    def make() -> Callable[[], int]:
        specs = [QueueSpec(f"d{k}", weight=1 + k % 3) for k in range(queues)]
        specs += [QueueSpec(f"t{k}.{j}", f"d{k}") for k in range(queues) for j in range(4)]
        specs += [
            QueueSpec(f"u{k}.{j}", f"t{k}.{j}", guarantee={"gpu": 1}) for k in range(queues) for j in range(4)
        ]
        books = FairShare(
            QueueTree.of(specs, ["gpu", "gpu:H100", "cpu"]), (jobs * 2000, jobs * 2000, jobs * 16_000), 0
        )
        leaves = [books.tree.leaf(f"u{k}.{j}") for k in range(queues) for j in range(4)]
        amounts = (1000, 1000, 8000)
        for k in range(jobs):
            books.submit(leaves[k % len(leaves)], amounts)

        def act() -> int:
            books.begin(NOW)
            started = 0
            while (leaf := books.next_queue()) is not None:
                if books.refusal(leaf, amounts, firm=False) is not None:
                    books.block(leaf)
                    continue
                books.withdraw(leaf, amounts)
                books.charge(leaf, amounts, firm=False)
                started += 1
            return started

        return act

    return make


def row(what: str, took: list[float], goal_s: float | None, peer: tuple[float, str] | None, how: str) -> Row:
    middle = statistics.median(took)
    return Row(
        what, "s", middle, peer[0] if peer else None, peer[1] if peer else None,
        peer[0] / middle if peer else None,
        None if goal_s is None else f"under {goal_s:g} s ({goal_s / middle:.3g}x)",
        None if goal_s is None else middle < goal_s,
        f"measured here, median of {len(took)} runs ({took[0]:.3g} to {took[-1]:.3g} s), {how}"
        + ("; peer published" if peer else ""),
    )  # fmt: skip


def rate(
    what: str, took: list[float], count: int, goal: float, peer: tuple[float, str] | None, how: str
) -> Row:
    per_s = count / statistics.median(took)
    return Row(
        what, "pods/s", per_s, peer[0] if peer else None, peer[1] if peer else None, per_s / peer[0] if peer else None,
        f"at least {goal:,.0f} ({per_s / goal:.3g}x)", per_s >= goal,
        f"measured here, median of {len(took)} runs ({count / took[-1]:,.0f} to {count / took[0]:,.0f}), {how}"
        + ("; peer published" if peer else ""),
    )  # fmt: skip


def backlog(nodes: int, jobs: int, queues: int) -> World:
    """A full fleet and a long backlog: whom to stop, what to reserve, when the first jobs will start."""

    def make() -> Callable[[], int]:
        tree = QueueTree.of([QueueSpec(f"q{k}") for k in range(queues)], ["gpu"])
        books = FairShare(tree, (nodes * PER_NODE * 1000,), 0)
        held = [replace(r, queue=f"q{k % queues}") for k, r in enumerate(crowd(nodes, (1, 2, 4, 8)))]
        state, waiting = Allocations(np.full(nodes, PER_NODE), books, held), PendingJobs(books, Backfill())
        chance = random.Random(1)
        for k in range(jobs):
            ranks, hours = chance.choice((1, 2, 4, 8, 16, 64)), chance.randint(1, 100)
            job = Demand(f"w{k}", f"q{k % queues}", "low", ranks, 1, (ranks * 1000,), NOW - jobs + k)
            waiting.add(replace(job, estimate_ns=hours * 3_600_000_000_000))

        def act() -> int:
            decide(Anywhere(state, waiting, lambda d: anywhere(d.ranks)))
            return 1

        return act

    return make


def small_case(chance: random.Random, most_nodes: int) -> tuple[Allocations, Demand]:
    """At most 8 low jobs on few nodes, each on one node or (``most_nodes``) more, and a gang that wants room."""
    nodes, per = chance.randint(2, 4), chance.choice((2, 4, 8))
    left, held = [per] * nodes, []
    for k in range(chance.randint(3, 8)):
        where = chance.sample(range(nodes), chance.randint(1, min(most_nodes, nodes)))
        devices = {n: min(left[n], chance.choice((1, 2, 4))) for n in where if left[n]}
        for n, count in devices.items():
            left[n] -= count
        if devices:
            saved = NOW - chance.randrange(10**13)
            held.append(Running(f"b{k}", "b", "low", 0, devices, (sum(devices.values()) * 1000,), saved))
    each = chance.choice((1, 2, per))
    ranks = chance.randint(1, max(nodes * per // each // 2, 1))
    specs = [QueueSpec("a", deserved={"gpu": nodes * per}), QueueSpec("b", deserved={"gpu": 0})]
    books = FairShare(QueueTree.of(specs, ["gpu"]), (nodes * per * 1000,), 0)
    return Allocations(np.full(nodes, per), books, held), demands(1, ranks, each)[0]


def least_loss(state: Allocations, demand: Demand) -> int:
    """The least loss of all sets of victims, by trying every set."""
    held, best = list(state.running.values()), -1
    for pick in range(1 << len(held)):
        chosen = [run for k, run in enumerate(held) if pick >> k & 1]
        free = state.free.copy()
        for run in chosen:
            for node, devices in run.devices.items():
                free[node] += devices
        loss = sum(run.lost_us(NOW) for run in chosen)
        if (best < 0 or loss < best) and anywhere(demand.ranks)(free // demand.each) is not None:
            best = loss
    return best


def optimum(what: str, cases: int, most_nodes: int, goal: float) -> Row:
    chance, losses, best_losses, equal = random.Random(42), 0, 0, 0
    for _ in range(cases):
        state, demand = small_case(chance, most_nodes)
        best = least_loss(state, demand)
        answer = preempt(state, demand, anywhere(demand.ranks), NOW)
        loss = answer.lost_us if isinstance(answer, Preemption) else -1
        if (best < 0) != (loss < 0):
            raise SystemExit(f"found {loss} where the best loses {best}")
        losses, best_losses, equal = losses + max(loss, 0), best_losses + max(best, 0), equal + (loss == best)
    ratio = losses / best_losses
    return Row(
        what, "of optimum", ratio, 1.0, "all sets tried", 1 / ratio, f"at most {goal:g}", ratio <= goal,
        f"measured here, {cases} random cases of up to 4 nodes and 8 jobs, {equal} of them optimal",
    )  # fmt: skip


def rows(arguments: argparse.Namespace) -> Iterator[Row]:
    yield from reclaims(arguments.runs)
    yield from sizes()
    yield optimum("lost GPU-time, victims on one node each", arguments.cases, 1, 1.0)
    yield optimum("lost GPU-time, victims on up to 3 nodes", arguments.cases, 3, 1.02)
    yield from rates(arguments.runs)


def reclaims(runs: int) -> Iterator[Row]:
    total, kai, size = NODES * PER_NODE, "KAI with an API server", f"{NODES} nodes x {PER_NODE}"
    ones = reclaim_jobs(NODES, total, 1, 1, (1,), together=True)
    yield row("reclaim of 4,000 one-GPU jobs", timed(runs, ones, total), 5.0, (KAI_4000_JOBS_S, kai), size)
    single = timed(1, reclaim_jobs(NODES, total, 1, 1, (1,), together=False), total)
    yield row("the same, each job solved on its own", single, None, (KAI_4000_JOBS_S, kai), size)
    one = reclaim_jobs(NODES, 1, total, 1, (1,), together=False)
    yield row("reclaim by one 4,000-GPU job", timed(runs, one, 1), 2.0, (KAI_4000_GPUS_S, kai), size)
    mixed = timed(runs, reclaim_jobs(NODES, 1, NODES, 8, (1, 2, 4, 8, 16, 32), together=False), 1)
    yield row("the same, ranks of 8 GPUs, victims of 1 to 32", mixed, 2.0, (KAI_4000_GPUS_S, kai), size)
    leaf = reclaim_jobs(NODES, 50, 8, 8, (1, 2, 4, 8), together=False)
    yield row("50 gangs of 64 GPUs, each within a leaf", timed(runs, leaf, 50), None, None, size)
    cannot = timed(runs, verdict(NODES), 1)
    yield row("verdict: 88 GPUs in one leaf cannot be freed", cannot, 0.1, (KAI_VERDICT_S, kai), size)


def sizes() -> Iterator[Row]:
    """The same at larger fleets."""
    for nodes in (1_000, 2_000, 5_000, 10_000):
        total, size = nodes * PER_NODE, f"{nodes:,} nodes x {PER_NODE}"
        took = timed(1, reclaim_jobs(nodes, total, 1, 1, (1,), together=True), total)
        yield row(f"reclaim of {total:,} one-GPU jobs", took, None, None, size)
        took = timed(1, reclaim_jobs(nodes, 1, total // 2, 1, (1, 2, 4, 8), together=False), 1)
        yield row(f"reclaim by one {total // 2:,}-GPU job", took, None, None, size)


def rates(runs: int) -> Iterator[Row]:
    count = 20_000
    yield rate(
        "turn, quota and charge in a tree of 4 levels", timed(runs, books_only(count, 20), count), count, 5_000, None,
        "180 queues, 3 resources, no search for a node",
    )  # fmt: skip
    yield rate(
        "whole rounds, one-GPU jobs", timed(runs, decisions(5_000, 10_000, 20), 10_000), 10_000, 5_000,
        (KUBE_PODS_PER_S, "kube-scheduler v1.36"), "5,000 nodes x 8, 100 queues, first node with room",
    )  # fmt: skip
    for nodes in (500, 5_000):
        yield row(
            "a round over 10,000 waiting jobs, no room", timed(runs, backlog(nodes, 10_000, 20), 1), None, None,
            f"{nodes:,} nodes x {PER_NODE}, 20 queues",
        )  # fmt: skip


def add_arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("--runs", type=int, default=3)
    parser.add_argument("--cases", type=int, default=500)


if __name__ == "__main__":
    main("reclaim", rows, add_arguments)
