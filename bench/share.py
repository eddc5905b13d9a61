"""Sharing of GPUs: how well MIG requests are packed compared with first fit, and how fast the decisions are.

Packing: 1,000 H100 GPUs of 80 GB. Arrivals until 130 % of the compute slices have been requested, none leaves (the
experiment of the packing benchmark, on MIG's places); and a steady state at 90 % load in which instances come and go. Instances
never move. Peer: the first GPU in order on which the profile fits, at its lowest free start, run here on the same
requests. The mixes of profiles are ours: no published trace of MIG requests is known to us.
"""

from __future__ import annotations

import argparse
import heapq
import random
import statistics
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import replace
from typing import Protocol

from _mig_pool import MigPool, Spot
from _table import Row, main
from unidle.events import types as ev
from unidle.events.marks import Mark
from unidle.fleet import Device, Fleet, Node
from unidle.fleet.policies import MINUTE_NS
from unidle.jobs import JobSpec, RankPlace, Reason, Share
from unidle.share.choose import Choice, choose
from unidle.share.idle import decide_idle
from unidle.share.interference import known_loads
from unidle.share.mig import fits, reconfigure
from unidle.share.mig_models import GIB, Instance, MigModel, mig_models
from unidle.share.modes import Mode
from unidle.share.offers import Gpu, Resident, SharePolicy, Wish
from unidle.view.fold import apply
from unidle.view.idle_holders import holder_of
from unidle.view.state import View

H100 = next(model for model in mig_models() if model.name == "H100 80GB")
GPUS = 1_000
SEEDS = range(42, 52)
MIXES: Mapping[str, Mapping[str, float]] = {
    "even": {"1g.10gb": 1, "1g.20gb": 1, "2g.20gb": 1, "3g.40gb": 1, "4g.40gb": 1, "7g.80gb": 1},
    "small": {"1g.10gb": 6, "1g.20gb": 1, "2g.20gb": 3, "3g.40gb": 1},
    "large": {"1g.10gb": 1, "2g.20gb": 1, "3g.40gb": 3, "4g.40gb": 3, "7g.80gb": 1},
}
DECISIONS_PER_S = 5_000.0


class Pool(Protocol):
    """What packs: :class:`MigPool` and its peer."""

    def find(self, profile: str) -> Spot | None: ...
    def take(self, profile: str, spot: Spot) -> None: ...
    def give_back(self, profile: str, spot: Spot) -> None: ...


class FirstFit:
    """The first GPU with room, the lowest start."""

    def __init__(self, model: MigModel, gpus: int) -> None:
        self._profiles = {p.name: p for p in model.profiles}
        self._occupied = [0] * gpus

    def find(self, profile: str) -> Spot | None:
        wanted = self._profiles[profile]
        masks = [(start, wanted.mask(start)) for start in wanted.starts]
        for gpu, occupied in enumerate(self._occupied):
            for start, bits in masks:
                if not occupied & bits:
                    return Spot(gpu, start)
        return None

    def take(self, profile: str, spot: Spot) -> None:
        self._occupied[spot.gpu] |= self._profiles[profile].mask(spot.start)

    def give_back(self, profile: str, spot: Spot) -> None:
        self._occupied[spot.gpu] &= ~self._profiles[profile].mask(spot.start)


def drawn(mix: Mapping[str, float], seed: int) -> Iterator[str]:
    """Profiles without end."""
    chance = random.Random(seed)
    names, weights = list(mix), list(mix.values())
    while True:
        yield from chance.choices(names, weights, k=1_000)


def filled(pool: Pool, mix: Mapping[str, float], seed: int, gpus: int) -> float:
    """Percent of compute slices in instances once 130 % of them have been requested."""
    computes = {p.name: p.compute for p in H100.profiles}
    asked = given = 0
    for name in drawn(mix, seed):
        if asked * 10 >= 13 * gpus * H100.compute:
            break
        asked += computes[name]
        spot = pool.find(name)
        if spot is not None:
            pool.take(name, spot)
            given += computes[name]
    return 100 * given / (gpus * H100.compute)


def churned(
    pool: Pool, mix: Mapping[str, float], seed: int, gpus: int, load: float = 0.9, turns: int = 6
) -> float:
    """Percent of requested compute slices that were placed while instances come and go.

    Lifetimes are exponential, such that ``load`` of all compute slices would be held if all were placed; what
    finds no place is lost. The first lifetime, which fills the pool, is not counted.
    """
    chance = random.Random(seed + 1)
    computes = {p.name: p.compute for p in H100.profiles}
    mean = sum(computes[name] * weight for name, weight in mix.items()) / sum(mix.values())
    life = load * gpus * H100.compute / mean
    leaving: list[tuple[float, int, str, Spot]] = []
    asked = given = 0
    for now, name in enumerate(drawn(mix, seed)):
        if now >= turns * life:
            break
        while leaving and leaving[0][0] <= now:
            _, _, gone, spot = heapq.heappop(leaving)
            pool.give_back(gone, spot)
        found = pool.find(name)
        if found is not None:
            pool.take(name, found)
            heapq.heappush(leaving, (now + chance.expovariate(1 / life), now, name, found))
        if now >= life:
            asked += computes[name]
            given += computes[name] if found is not None else 0
    return 100 * given / asked


def packing(gpus: int, seeds: Sequence[int]) -> Iterator[Row]:
    for what, measure in (
        ("allocated at 130 % requested", filled),
        ("placed while instances come and go", churned),
    ):
        for name, mix in MIXES.items():
            ours = [measure(MigPool(H100, gpus, mix), mix, seed, gpus) for seed in seeds]
            peer = [measure(FirstFit(H100, gpus), mix, seed, gpus) for seed in seeds]
            mean, other = statistics.mean(ours), statistics.mean(peer)
            yield Row(
                f"MIG, {name} mix: {what}", "% of compute slices", mean, other, "first fit, run here", mean / other,
                goal="not below first fit", holds=mean >= other,
                how=f"modelled, {len(seeds)} seeds ({min(ours):.2f} to {max(ours):.2f}; first fit {min(peer):.2f} to "
                f"{max(peer):.2f}), {gpus:,} GPUs",
            )  # fmt: skip


def random_mixes(gpus: int, count: int = 14) -> Iterator[Row]:
    """The same on mixes drawn at random: the mean, and how often and how far ours is below first fit."""
    names = list(MIXES["even"])
    for what, measure in (
        ("allocated at 130 % requested", filled),
        ("placed while instances come and go", churned),
    ):
        ours, peer = [], []
        for seed in range(count):
            chance = random.Random(seed)
            mix = {name: chance.random() ** 2 for name in names if chance.random() < 0.8} or {names[0]: 1.0}
            ours.append(measure(MigPool(H100, gpus, mix), mix, seed, gpus))
            peer.append(measure(FirstFit(H100, gpus), mix, seed, gpus))
        below = [a - b for a, b in zip(ours, peer, strict=True) if a < b]
        mean, other = statistics.mean(ours), statistics.mean(peer)
        yield Row(
            f"MIG, {count} random mixes: {what}", "% of compute slices", mean, other, "first fit, run here", mean / other,
            goal="mean not below first fit", holds=mean >= other,
            how=f"modelled, {count} mixes, {gpus:,} GPUs; below first fit in {len(below)} of them, by at most "
            f"{abs(min(below, default=0.0)):.2f} points",
        )  # fmt: skip


def rate(work: Callable[[], int], runs: int) -> tuple[float, str]:
    """Decisions per second: the median of ``runs``, and the interval in words."""
    rates = []
    for _ in range(runs):
        begin = time.perf_counter()
        count = work()
        rates.append(count / (time.perf_counter() - begin))
    rates.sort()
    return rates[
        len(rates) // 2
    ], f"measured here, median of {runs} runs ({rates[0]:,.0f} to {rates[-1]:,.0f})"


def pool_rate(gpus: int) -> int:
    pool, count = MigPool(H100, gpus, MIXES["even"]), 0
    for name in drawn(MIXES["even"], 1):
        spot = pool.find(name)
        count += 1
        if spot is not None:
            pool.take(name, spot)
        elif name == "1g.10gb" or count > 20 * gpus:
            return count
    return count


def plan_rate(plans: int = 2_000) -> int:
    """Reconfigurations of one GPU that some use, as drawn."""
    chance = random.Random(7)
    names = [p.name for p in H100.profiles if p.compute < 4]
    for _ in range(plans):
        in_use: list[Instance] = []
        for _ in range(chance.randrange(4)):
            profile = H100.profile(chance.choice(names[:1] + names[2:]))
            start = chance.choice(profile.starts)
            mask = sum(H100.mask(i) for i in in_use)
            if not mask & profile.mask(start):
                in_use.append(Instance(profile.name, start))
        reconfigure(H100, [chance.choice(names), chance.choice(names)], in_use)
    return plans


def fleet(gpus: int) -> list[Gpu]:
    device = Device("n/0", "n", 0, "gpu", "NVIDIA H100 80GB HBM3", "", 80 * GIB)
    modes: frozenset[Mode] = frozenset({"mig", "mps", "time"})
    return [
        Gpu(replace(device, id=f"n{k // 8}/{k % 8}", uuid=f"GPU-{k:08d}"), modes=modes, mig=H100)
        for k in range(gpus)
    ]


def choices(gpus: list[Gpu], wishes: int = 200) -> int:
    """Place wishes of many kinds one after another; each choice stands for the next."""
    table, chance, policy = known_loads(), random.Random(3), SharePolicy()
    there = {gpu.device.id: k for k, gpu in enumerate(gpus)}
    names = [name for name in table.loads if name != "unknown"]
    now = list(gpus)
    for k in range(wishes):
        share = Share(compute_ppm=chance.choice((100_000, 200_000, 300_000, 500_000)))
        load = replace(table.load(chance.choice(names)), memory_bytes=0)
        found = choose(Wish(share, load, slowdown_limit_ppm=2_000_000), now, table, policy)
        if isinstance(found, Choice):
            at = there[found.device]
            instance = found.plan.serve[0] if found.plan else None
            resident = Resident(f"j{k}", load, found.compute_ppm, found.memory_bytes, instance)
            now[at] = replace(now[at], mode=found.mode, residents=(*now[at].residents, resident))
    return wishes


def idle_decision(holders: int) -> Callable[[], int]:
    """One look at each of ``holders`` attempts of 8 slices and 20 steps, all of them quiet, none told."""
    view = View()
    apply(view, ev.ControllerStarted("bench", 1, 60 * MINUTE_NS), 1, 1)
    apply(view, ev.FleetSeen(_fleet(holders)), 2, 1)
    for k in range(holders):
        places = (RankPlace(0, f"n{k}", tuple(f"n{k}/{d}" for d in range(8))),)
        marks = tuple(Mark("step", (t + 1) * MINUTE_NS, n=t) for t in range(20))
        for event in (
            ev.JobSubmitted(f"j{k}", JobSpec(("train",))),
            ev.AttemptPlaced(f"j{k}", 1, places, Reason("bench", "bench")),
            ev.RankSaw(f"j{k}", 1, 0, 0, marks),
            ev.UtilisationSeen(f"j{k}", 1, "quiet", 20 * MINUTE_NS),
        ):
            apply(view, event, view.seq + 1, 20 * MINUTE_NS)

    def decide() -> int:
        now_ns = 61 * MINUTE_NS
        for job in view.jobs.open.values():
            plan = decide_idle(holder_of(view, job, job.attempts[-1], now_ns), view.fleet.idle.terms, now_ns)
            if plan.step != "tell":
                raise SystemExit(f"{job.id} was not told")
        return holders

    return decide


def _fleet(nodes: int) -> Fleet:
    return Fleet(
        nodes=tuple(
            Node(f"n{k}", "site", tuple(Device(f"n{k}/{d}", f"n{k}", d, "gpu") for d in range(8)))
            for k in range(nodes)
        )
    )


def rows(arguments: argparse.Namespace) -> Iterator[Row]:
    assert fits(H100, ["3g.40gb", "4g.40gb"])
    yield from packing(arguments.gpus, SEEDS[: arguments.seeds])
    yield from random_mixes(arguments.gpus // 5)
    for gpus in (1_000, 10_000):
        per_s, how = rate(lambda n=gpus: pool_rate(n), arguments.runs)  # type: ignore[misc]
        yield _rate_row(f"MIG placements of a pool of {gpus:,} GPUs", "decisions/s", per_s, how)
    per_s, how = rate(plan_rate, arguments.runs)
    yield Row("MIG plans of one GPU in use, two profiles each", "plans/s", per_s, how=how)
    for gpus in (64, 1_000):
        empty = fleet(gpus)
        per_s, how = rate(lambda g=empty: choices(g), arguments.runs)  # type: ignore[misc]
        yield Row(f"choices of mode and GPU among {gpus:,} GPUs", "decisions/s", per_s, how=how)
    per_s, how = rate(idle_decision(1_000), arguments.runs)
    yield Row("idle holders judged, 8 slices and 20 steps each", "holders/s", per_s, how=how)


def _rate_row(what: str, unit: str, per_s: float, how: str) -> Row:
    return Row(
        what, unit, per_s, goal=f"at least {DECISIONS_PER_S:,.0f}", holds=per_s >= DECISIONS_PER_S, how=how
    )


def add_arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("--gpus", type=int, default=GPUS)
    parser.add_argument("--seeds", type=int, default=len(SEEDS))
    parser.add_argument("--runs", type=int, default=5)


if __name__ == "__main__":
    main("share", rows, add_arguments)
