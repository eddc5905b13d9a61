"""Runs the declarative scenarios of ``tests/scenarios/queues``: nodes, queues, jobs, rounds, what is expected.

A file holds one scenario: ``nodes`` (how many), ``devices`` and ``cpus`` (of each), ``queues`` (fields of
``QueueSpec``), ``rules`` (fields of ``Backfill`` in seconds, ``migration``), and ``rounds``. Each round has a time
``at_s``, jobs that ``submit`` and ``end``, nodes ``down`` and ``up``, and ``expect``. Jobs that are stopped end
at the start of the next round, and wait again. Each scenario is run twice and has to go the same way.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest
import yaml

from place.queues import decide, within
from unidle.fleet.queues import Migration, QueueSpec, TimeWindow, weekly
from unidle.place.model import Backfill, Demand, Fits, RoundRules, Running
from unidle.place.queue.fair_share import Fairness, FairShare
from unidle.place.queue.pending import PendingJobs
from unidle.place.queue.state import Allocations
from unidle.place.queue.tree import QueueTree
from unidle.place.session import Draft

FILES = sorted((Path(__file__).parents[2] / "scenarios" / "queues").glob("*.yaml"))
S = 1_000_000_000


class World:
    """A scenario's fleet and queues, driven round by round."""

    def __init__(self, scenario: dict[str, Any]) -> None:
        self.scenario = scenario
        self.nodes, self.per = scenario["nodes"], scenario["devices"]
        specs = [
            QueueSpec(**{**q, "windows": tuple(_window(w) for w in q.get("windows", ()))})
            for q in scenario["queues"]
        ]
        rules = scenario.get("rules", {})
        seconds = {key.replace("_s", "_ns"): value * S for key, value in rules.items() if key.endswith("_s")}
        plain = {key: value for key, value in rules.items() if key in ("rule", "heads", "depth")}
        migration = Migration(**rules["migration"]) if "migration" in rules else None
        half_life_ns = seconds.pop("half_life_ns", 24 * 3600 * S)
        hold_ns = seconds.pop("hold_ns", 600 * S)
        self.rules = RoundRules(Backfill(**plain, **seconds), migration, hold_ns)
        fairness = Fairness(half_life_ns, firm_borrows=rules.get("firm_borrows", False))
        tree = QueueTree.of(specs, ["gpu"])
        self.shares = FairShare(tree, (self.nodes * self.per * 1000,), 0, fairness)
        hosts = np.full((2, self.nodes), scenario.get("cpus", 1 << 40) * 1000)
        self.state = Allocations(np.full(self.nodes, self.per), self.shares, hosts=hosts)
        self.waiting = PendingJobs(self.shares, self.rules.backfill)
        self.jobs: dict[str, dict[str, Any]] = {}
        self.stopped: list[str] = []

    def fits_of(self, job: Demand | Running) -> Fits:
        return within(job.ranks, self.jobs[job.job].get("within"))

    def submit(self, job: dict[str, Any], now_ns: int) -> None:
        for k in range(job.get("copies", 1)):
            name = f"{job['job']}{k}" if "copies" in job else job["job"]
            self.jobs[name] = {**job, "job": name, "submitted_ns": now_ns}
            self.add(name)

    def add(self, name: str) -> None:
        job = self.jobs[name]
        ranks, each = job.get("ranks", 1), job.get("each", 1)
        self.waiting.add(
            Demand(
                name, job["queue"], job.get("level", "medium"), ranks, each, (ranks * each * 1000,), job["submitted_ns"],
                job["estimate_s"] * S if "estimate_s" in job else None, job.get("priority", 0),
                job.get("min_runtime_s", 0) * S, job.get("restart_s", 0) * S, job.get("checkpoints", False),
                asks=(job.get("cpus", 0) * 1000, 0),
            )
        )  # fmt: skip

    def round(self, step: dict[str, Any]) -> Draft:
        now_ns = step["at_s"] * S
        for name in self.stopped:
            self.add(name)
        self.stopped = []
        for name in step.get("end", ()):
            self.state.stop(name)
        for name, at_s in step.get("saved", {}).items():
            old = self.state.stop(name)
            fields = {f: getattr(old, f) for f in Running.__slots__}
            self.state.start(Running(**{**fields, "last_saved_ns": at_s * S}))
        for job in step.get("submit", ()):
            self.submit(job, now_ns)
        done = decide(
            self.state, self.waiting, self.fits_of, now_ns, self.rules,
            domains=lambda d: self.jobs[d.job].get("within"),
        )  # fmt: skip
        self.stopped = [victim for stop in done.stops for victim in stop.victims]
        self.stopped += [hold.job for move in done.moves for hold in move.moves]
        return done

    def check(self) -> None:
        """What holds after every round of every scenario."""
        used = np.zeros(self.nodes, np.int64)
        for held in (*self.state.running.values(), *self.state.holds.values()):
            for node, devices in held.devices.items():
                used[node] += devices
        assert (used + self.state.free == self.per).all()
        assert (self.state.free >= 0).all()
        for run in self.state.running.values():
            assert run.size == run.ranks * run.each, "a gang is never half placed"


def _window(given: dict[str, Any]) -> TimeWindow:
    return TimeWindow(**{**given, "when": weekly(given["when"])})


def observed(world: World, done: Draft) -> dict[str, Any]:
    shares = {row.queue: row for row in world.shares.report()}
    return {
        "running": sorted(world.state.running),
        "started": [start.job for start in done.starts],
        "stopped": {stop.job: sorted(stop.victims) for stop in done.stops},
        "moved": {move.job: sorted(hold.job for hold in move.moves) for move in done.moves},
        "waiting": {job: why.code for job, why in sorted(done.waits.items())},
        "planned_s": {job: at // S for job, at in sorted(done.planned_ns.items())},
        "nodes": {job: sorted(run.devices) for job, run in sorted(world.state.running.items())},
        "held": sorted(world.state.holds),
        "expired": sorted(done.expired),
        "used": {name: row.used[0] // 1000 for name, row in shares.items()},
        "borrowed": {name: row.borrowed[0] // 1000 for name, row in shares.items() if row.borrowed[0]},
        "lent": {name: row.lent[0] // 1000 for name, row in shares.items() if row.lent[0]},
        "deserved": {name: row.deserved[0] // 1000 for name, row in shares.items()},
        "again_s": None if done.again_ns is None else done.again_ns // S,
    }


def run(scenario: dict[str, Any]) -> list[dict[str, Any]]:
    world, found = World(scenario), []
    for step in scenario["rounds"]:
        done = world.round(step)
        world.check()
        found.append(observed(world, done))
    return found


@pytest.mark.parametrize("path", FILES, ids=[path.stem for path in FILES])
def test_a_scenario_goes_as_it_says(path: Path):
    scenario = yaml.safe_load(path.read_text())
    found = run(scenario)
    for k, (step, seen) in enumerate(zip(scenario["rounds"], found, strict=True)):
        for what, expected in step["expect"].items():
            if isinstance(expected, dict) and what in ("used", "deserved", "nodes", "planned_s", "waiting"):
                assert {key: seen[what].get(key) for key in expected} == expected, (
                    f"round {k}: {what}: {seen}"
                )
            else:
                assert seen[what] == expected, f"round {k}: {what}: {seen}"
    assert run(scenario) == found


def test_there_are_scenarios():
    assert len(FILES) >= 10
