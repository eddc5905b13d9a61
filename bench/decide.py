"""The whole decision: a view in, a plan out, with labels, taints, models, a queue tree, levels, CPU and memory.

The view is folded from real events, and what is timed is `Scheduler().decide(view, now)`, of a scheduler that
has seen nothing before (a burst), or that follows (a stream). Each row checks that its plan is whole: every
gang or none of it, no slice twice. `bench/gang.py` has the parts.
"""

from __future__ import annotations

import argparse
import gc
import json
import random
import resource
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import replace
from itertools import cycle
from pathlib import Path

import replay as traces
from _fleets import GPUS, PER_RACK, PER_SPINE, mixed
from _table import Row, main
from unidle.control.replay.workload import replay, scenario_of
from unidle.events import types as ev
from unidle.files.trace import load_trace
from unidle.fleet import Fleet
from unidle.fleet.queues import QueueSpec
from unidle.jobs import JobSpec, Layout, Preemption, Reason, Requests, Select, Topology, Where
from unidle.place.protocol import Plan
from unidle.place.scheduler import Scheduler
from unidle.store.memory import ForgetfulStore
from unidle.view.fold import apply
from unidle.view.state import View

S = 1_000_000_000
NODES, BURST, RUNNING = 5_000, 10_000, 20_000
CURVE = (500, 1_000, 2_000, 5_000, 10_000, 20_000)
KUBE_PODS_PER_S, KUBE_GANG_PODS_PER_S, KAI_VERDICT_S = 310.0, 18.0, 249.5
LEAVES = ("language", "vision", "ads", "search", "spare")
DONE = Reason("done", "")


class World:
    """A view that receives what happens, second by second."""

    def __init__(self, fleet: Fleet) -> None:
        self.view, self.now_ns = View(), S
        self.tell(ev.FleetSeen(fleet))

    def tell(self, event: ev.Event) -> None:
        apply(self.view, event, self.view.seq + 1, self.now_ns)

    def submit(self, specs: Sequence[JobSpec]) -> None:
        for spec in specs:
            self.tell(ev.JobSubmitted(f"j{len(self.view.jobs):07d}", spec))

    def carry_out(self, plan: Plan) -> None:
        for place in plan.places:
            number = len(self.view.jobs[place.job].attempts) + 1
            self.tell(ev.AttemptPlaced(place.job, number, place.places, place.because))
        for wait in plan.waits:
            self.tell(ev.JobJudged(wait.job, wait.because))

    def end(self, job: str) -> None:
        self.tell(ev.AttemptEnded(job, 1, "succeeded", DONE))
        self.tell(ev.JobEnded(job, "succeeded", DONE))


def singles(count: int, seed: int = 1) -> list[JobSpec]:
    """One-GPU jobs of 30 classes: models, labels, tolerations, CPU and memory, levels, priorities, queues."""
    chance, made = random.Random(seed), list[JobSpec]()
    wheres = (
        Where(),
        Where(labels={"disk": "nvme"}),
        Where(tolerate=("lab",)),
        Where(models=Select(include=("H100",))),
        Where(models=Select(exclude=("L40S",)), labels={"disk": "none"}),
    )
    asks = (Requests(), Requests(8, 64 << 30), Requests(cpus=4))
    levels: tuple[tuple[Preemption, int], ...] = (("medium", 0), ("low", 5))
    for k in range(count):
        level, priority = levels[k % 2]
        made.append(
            JobSpec(
                ("train",), name=f"job-{k % 30}", device="gpu", queue=chance.choice(LEAVES), preemption=level,
                priority=priority, where=wheres[k % 5], requests=asks[k % 3],
            )
        )  # fmt: skip
    return made


def gangs(count: int, ranks: int) -> list[JobSpec]:
    """Gangs that a leaf must hold, each rank on a node's 2 GPUs."""
    near, asks = Topology(require="leaf"), Requests(8, 64 << 30)
    return [
        JobSpec(
            ("train",), name="gang", ranks=ranks, devices_per_rank=2, device="gpu", queue=queue, topology=near,
            requests=asks,
        )
        for queue, _ in zip(cycle(LEAVES), range(count), strict=False)
    ]  # fmt: skip


def check(world: World, plan: Plan, want: int | None) -> None:
    """Ends the benchmark where the plan is not whole, or does not place so many jobs."""
    seen: set[str] = set()
    for place in plan.places:
        spec = world.view.jobs[place.job].spec
        held = [piece for rank in place.places for piece in rank.slices]
        if len(place.places) != spec.ranks or len(held) != spec.devices or not seen.isdisjoint(held):
            raise SystemExit(f"{place.job}: half a gang, or a slice given twice")
        seen.update(held)
    if want is not None and len(plan.places) != want:
        raise SystemExit(f"{len(plan.places)} of {want} jobs were placed")


def busy(nodes: int) -> tuple[World, Scheduler]:
    """A world in which jobs run on half of the GPUs, and the scheduler that placed them."""
    world, policy, jobs = World(mixed(nodes)), Scheduler(), min(RUNNING, 4 * nodes)
    world.submit(singles(jobs))
    plan = policy.decide(world.view, world.now_ns)
    check(world, plan, None)
    if len(plan.places) < 0.98 * jobs:  # some compete for the same model and label
        raise SystemExit(f"{len(plan.places)} of {jobs} jobs were placed")
    world.carry_out(plan)
    for queue in list(world.view.waiting.values()):
        for _, _, job in list(queue):
            world.tell(ev.JobEnded(job, "cancelled", DONE))
    return world, policy


def decided(world: World, want: int | None, runs: int) -> tuple[list[float], Plan]:
    """Seconds of whole decisions on this view, each by a scheduler that has seen nothing before."""
    # what the fold keeps up to date in a running controller, and makes at the first look
    _ = world.view.waiting, world.view.occupancy, world.view.hosts
    took, plan = list[float](), Plan()
    for _ in range(runs):
        gc.collect()
        begin = time.perf_counter()
        plan = Scheduler().decide(world.view, world.now_ns)
        took.append(time.perf_counter() - begin)
    check(world, plan, want)
    return sorted(took), plan


def how(took: Sequence[float], note: str = "") -> str:
    low, high = took[0] * 1e3, took[-1] * 1e3
    return f"measured here, median of {len(took)} runs ({low:.3g} to {high:.3g} ms){note}"


def rows(arguments: argparse.Namespace) -> Iterator[Row]:
    nodes, runs = arguments.nodes, arguments.runs
    wanted: dict[str, Callable[[], Iterator[Row]]] = {
        "burst": lambda: _burst(nodes, runs), "stream": lambda: _stream(nodes),
        "gangs": lambda: _gangs(nodes, runs), "verdict": lambda: _verdict(nodes, runs),
        "curve": lambda: _curve(runs), "memory": _memory, "replay": lambda: _replay(runs),
        "unchanged": lambda: _unchanged(nodes, runs),
    }  # fmt: skip
    for part in arguments.parts or wanted:
        yield from wanted[part]()


def _burst(nodes: int, runs: int) -> Iterator[Row]:
    world = World(mixed(nodes))
    jobs = min(BURST, 4 * nodes)
    world.submit(singles(jobs))
    took, _ = decided(world, jobs, runs)
    rate = jobs / statistics.median(took)
    yield Row(
        f"a burst of {jobs:,} one-GPU jobs of 30 classes in 5 queues, {nodes:,} nodes", "pods/s", rate, KUBE_PODS_PER_S,
        "kube-scheduler v1.36 in process", rate / KUBE_PODS_PER_S, "at least 5,000", rate >= 5_000,
        how(took, "; the scheduler begins from nothing; peer published"),
    )  # fmt: skip


def _stream(nodes: int, changes: int = 2_000) -> Iterator[Row]:
    world, policy = busy(nodes)
    chance, more = random.Random(3), singles(changes, 2)
    running = sorted(world.view.live)
    policy.decide(world.view, world.now_ns)
    took, deciding_s = list[float](), 0.0
    for k in range(changes):
        world.now_ns += S
        begin = time.perf_counter()
        if k % 2:
            at = chance.randrange(len(running))
            running[at], running[-1] = running[-1], running[at]
            world.end(running.pop())
        else:
            world.submit([more[k]])
        middle = time.perf_counter()
        plan = policy.decide(world.view, world.now_ns)
        deciding_s += time.perf_counter() - middle
        world.carry_out(plan)
        took.append(time.perf_counter() - begin)
        running += [place.job for place in plan.places]
        check(world, plan, None)
    took.sort()
    yield Row(
        f"a stream: one job arrives or ends, {RUNNING:,} jobs run on {nodes:,} nodes", "rounds/s", changes / sum(took),
        how=f"measured here, {changes:,} rounds with their events applied, median {took[changes // 2] * 1e3:.3g} ms,"
        f" 99 % under {took[changes * 99 // 100] * 1e3:.3g} ms; the decision alone {changes / deciding_s:,.0f} a second",
    )  # fmt: skip


def _gangs(nodes: int, runs: int) -> Iterator[Row]:
    world = World(mixed(nodes))
    world.submit(gangs(750, 4))
    took, _ = decided(world, 750, runs)
    rate = 3_000 / statistics.median(took)
    yield Row(
        f"750 gangs of 4, each in one leaf, in 5 queues, {nodes:,} nodes", "pods/s", rate, KUBE_GANG_PODS_PER_S,
        "kube-scheduler v1.36 in process", rate / KUBE_GANG_PODS_PER_S, "at least 5,000", rate >= 5_000,
        how(took, "; the scheduler begins from nothing; peer published"),
    )  # fmt: skip
    large = JobSpec(("train",), ranks=2_304, device="gpu", queue="search", layout=Layout(8, 16, 18))
    world, policy = World(mixed(nodes)), Scheduler()
    world.submit(singles(100))
    world.carry_out(policy.decide(world.view, world.now_ns))
    world.submit([large])
    took, _ = decided(world, 1, runs)
    begin = time.perf_counter()
    check(world, policy.decide(world.view, world.now_ns), 1)
    warm_ms = (time.perf_counter() - begin) * 1e3
    yield Row(
        f"one gang of 2,304 ranks with a layout, its ranks ordered, {nodes:,} nodes", "ms",
        statistics.median(took) * 1e3,
        how=how(took, f"; the scheduler begins from nothing, where it follows {warm_ms:.3g} ms"),
    )  # fmt: skip


def _verdict(nodes: int, runs: int) -> Iterator[Row]:
    world, policy = busy(nodes)
    for node in world.view.fleet.nodes[3 :: PER_RACK * PER_SPINE]:  # one of each spine is down
        world.tell(ev.HealthSet(node.id, "maintenance", Reason("down", "")))
    layout, topology = (
        Layout(8, 16, 8),
        Topology("spine", groups={"tp": "node", "dp": "leaf"}, fabric="infiniband"),
    )
    hard = JobSpec(
        ("train",), ranks=1_024, device="gpu", queue="search", layout=layout, topology=topology,
        requests=Requests(8, 64 << 30),
    )  # fmt: skip
    never = JobSpec(("train",), ranks=nodes * 9, device="gpu", queue="search")
    policy.decide(world.view, world.now_ns)
    for what, spec in (("4 constraints that only a whole spine keeps", hard), ("more than there is", never)):
        took = list[float]()
        for _ in range(runs):
            world.submit([spec])
            begin = time.perf_counter()
            plan = policy.decide(world.view, world.now_ns)
            took.append(time.perf_counter() - begin)
            if plan.places or len(plan.waits) != 1 or not plan.waits[0].because.text:
                raise SystemExit("the gang should be refused, with a reason")
            world.carry_out(plan)
        found = statistics.median(sorted(took))
        yield Row(
            f"cannot run, and why: {spec.ranks:,} ranks, {what}, {RUNNING:,} jobs run on {nodes:,} nodes", "s", found,
            KAI_VERDICT_S, "KAI, 80 GPUs, 500 nodes, with an API server", KAI_VERDICT_S / found, "under 0.1",
            found < 0.1, how(sorted(took), "; peer published"),
        )  # fmt: skip


def _curve(runs: int) -> Iterator[Row]:
    costs: dict[int, float] = {}
    for nodes in CURVE:
        jobs = min(BURST, 4 * nodes)
        world = World(mixed(nodes))
        world.submit(singles(jobs))
        took, plan = decided(world, None, runs)
        if len(plan.places) < 0.98 * jobs:
            raise SystemExit(f"{len(plan.places)} of {jobs} jobs were placed on {nodes} nodes")
        costs[nodes] = statistics.median(took) / jobs * 1e6
        ratio = costs[nodes] / costs[5_000] if nodes == 10_000 else 0.0
        yield Row(
            f"a one-GPU job of a burst, {nodes:,} nodes", "us", costs[nodes],
            goal=f"at most twice 5,000 nodes ({ratio:.2f}x)" if ratio else None,
            holds=ratio <= 2 if ratio else None, how=how(took, f" of {jobs:,} jobs"),
        )  # fmt: skip


def _unchanged(nodes: int, runs: int) -> Iterator[Row]:
    world, policy = World(mixed(nodes)), Scheduler()
    where = Where(tolerate=("lab",))
    world.submit(
        [
            JobSpec(("train",), devices_per_rank=len(n.devices), device="gpu", queue=LEAVES[0], where=where)
            for n in world.view.fleet.nodes
        ]
    )
    world.carry_out(policy.decide(world.view, world.now_ns))
    world.submit(singles(BURST))
    world.carry_out(policy.decide(world.view, world.now_ns))
    policy.decide(world.view, world.now_ns)  # follows what was carried out
    waits, took = sum(map(len, world.view.waiting.values())), list[float]()
    for _ in range(runs):
        begin = time.perf_counter()
        check(world, policy.decide(world.view, world.now_ns), 0)
        took.append(time.perf_counter() - begin)
    found = statistics.median(took) * 1e3
    yield Row(
        f"a round in which nothing changed, {waits:,} jobs wait, {nodes:,} nodes", "ms", found,
        goal="at most 50", holds=found <= 50, how=how(sorted(took)),
    )  # fmt: skip


def measure() -> dict[str, float]:
    """In a process of its own: 100,000 ranks in gangs of 1 to 512 on 10,000 nodes of 10 GPUs, and a round."""
    world, policy = World(mixed(10_000, 10)), Scheduler()
    empty_mib = _resident_mib()
    chance, ranks, specs = random.Random(5), 0, list[JobSpec]()
    while ranks < 100_000:
        size = min(chance.choice((1, 1, 1, 2, 4, 8, 16, 64, 512)), 100_000 - ranks)
        specs.append(JobSpec(("train",), ranks=size, device="gpu", queue=chance.choice(LEAVES), where=Where(tolerate=("lab",))))  # fmt: skip
        ranks += size
    specs.sort(key=lambda spec: -spec.ranks)
    world.submit(specs)
    begin = time.perf_counter()
    while plan := policy.decide(world.view, world.now_ns):
        check(world, plan, None)
        world.carry_out(plan)
        if not plan.places:
            break
    placed_s = time.perf_counter() - begin
    running = sum(world.view.jobs[job].spec.ranks for job in world.view.live)
    world.submit([JobSpec(("train",), device="gpu", queue="spare")])
    policy.decide(world.view, world.now_ns)
    return {"mib": _resident_mib(), "empty_mib": empty_mib, "ranks": running, "jobs": len(world.view.live), "placed_s": placed_s}  # fmt: skip


def _resident_mib() -> float:
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1024


def _memory() -> Iterator[Row]:
    done = subprocess.run([sys.executable, __file__, "--measure"], stdout=subprocess.PIPE, check=True)
    found: dict[str, float] = json.loads(done.stdout)
    yield Row(
        f"memory: 10,000 nodes of 10 GPUs, {found['ranks']:,.0f} ranks run", "MiB", found["mib"],
        goal="at most 1,024", holds=found["mib"] <= 1_024 and found["ranks"] >= 99_000,
        how=f"measured here, the most that was resident, 1 run; {found['empty_mib']:.0f} MiB with the fleet alone;"
        f" {found['jobs']:,.0f} gangs placed and applied in {found['placed_s']:.1f} s",
    )  # fmt: skip


def _replay(runs: int, jobs: int = 1_500, nodes: int = 20) -> Iterator[Row]:
    """A trace that asks for more than the fleet has, so that hundreds wait, under two queues."""
    part = nodes * GPUS // 8
    two = (QueueSpec("a", deserved={"gpu": 5 * part}), QueueSpec("b", deserved={"gpu": 3 * part}))
    there = replace(traces.fleet(nodes), queues=two)
    took = list[float]()
    with tempfile.TemporaryDirectory() as place:
        trace = Path(place) / "trace.csv"
        traces.write_trace(trace, jobs, nodes, queues="ab")
        scenario = scenario_of(load_trace(str(trace)), there)
    for _ in range(runs):
        begin = time.perf_counter()
        view = replay(scenario, "unidle", ForgetfulStore())
        took.append(time.perf_counter() - begin)
    if any(not view.jobs[job].terminal for job in view.jobs):
        raise SystemExit("a job of the trace has not ended")
    took.sort()
    yield Row(
        f"replay of a trace: {jobs:,} jobs, {nodes} nodes, 2 queues, policy unidle", "s", statistics.median(took),
        goal="under 15", holds=statistics.median(took) < 15, how=how(took, f"; {view.seq:,} events"),
    )  # fmt: skip


def add_arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument(
        "parts",
        nargs="*",
        help="burst, stream, gangs, verdict, curve, memory, replay, unchanged; none means all",
    )
    parser.add_argument("--nodes", type=int, default=NODES)
    parser.add_argument("--runs", type=int, default=3)


if __name__ == "__main__":
    if sys.argv[1:2] == ["--measure"]:
        print(json.dumps(measure()))
    else:
        main("decide", rows, add_arguments)
