"""A snapshot, written and read again anywhere, gives the decision that the loop takes."""

from __future__ import annotations

import io
import random
from dataclasses import dataclass, field
from pathlib import Path

from unidle.control.forecast import Forecaster
from unidle.control.queries.dry_run import next_decision, submitted
from unidle.control.replay.simulate import Arrival, SimulationOptions, simulate
from unidle.engine.sim.workload import SimJob
from unidle.files.fleet import fleet_from_mapping
from unidle.files.snapshot import load_snapshot, write_snapshot
from unidle.fleet import Fleet
from unidle.jobs import JobSpec, Requests, Restart, Topology, Where
from unidle.place.policy import Unidle
from unidle.place.protocol import Plan
from unidle.store.memory import MemoryStore
from unidle.view.frozen import freeze, thaw
from unidle.view.state import View

S = 1_000_000_000


def fleet() -> Fleet:
    devices = {"count": 4, "kind": "gpu", "model": "H100"}
    return fleet_from_mapping(
        {
            "tiers": [{"id": "s", "kind": "spine"}, {"id": "leaf-[1-2]", "kind": "leaf", "parent": "s"}],
            "queues": [
                {"name": "a", "deserved": {"gpu": 6}},
                {"name": "b", "deserved": {"gpu": 6}, "limit": {"gpu": 12}},
                {"name": "c", "guarantee": {"gpu": 2}},
            ],
            "nodes": [
                {"id": f"n{k}", "parent": f"leaf-{k % 2 + 1}", "devices": devices, "cpus": 32, "memory": "256GiB",
                 "taints": ["spot"] if k == 3 else []}
                for k in range(4)
            ],
        },
        "test",
    )  # fmt: skip


def jobs(seed: int, count: int) -> tuple[list[Arrival], dict[str, SimJob]]:
    chance = random.Random(seed)
    at_ns, arrivals, work = 1, list[Arrival](), {}
    for k in range(count):
        at_ns += chance.randrange(1, 20 * S)
        seconds = chance.randrange(20, 200)
        spec = JobSpec(
            ("train",), name=chance.choice(["x", "y"]), user="ann", ranks=chance.choice([1, 2, 4, 8]), device="gpu",
            queue=chance.choice("abc"), priority=chance.choice([0, 0, 3]), restart=Restart(100, 1.0),
            preemption=chance.choice(["low", "low", "medium", "high"]), min_runtime_s=chance.choice([0.0, 60.0]),
            estimate_s=chance.choice([None, float(seconds)]), checkpoint_path="c",
            requests=Requests(chance.choice([0.0, 4.0])),
            topology=chance.choice([None, None, Topology(require="leaf")]),
            where=Where(tolerate=chance.choice([(), ("spot",)])),
        )  # fmt: skip
        arrivals.append(Arrival(at_ns, f"j{k}", spec))
        work[f"j{k}"] = SimJob(seconds * S, step_ns=S, checkpoint_every=15, stop_ns=chance.choice([0, 5 * S]))
    return arrivals, work


@dataclass(slots=True)
class Repeated:
    """The usual policy; each of its decisions is taken again on a snapshot, by a policy that knows nothing else."""

    path: Path
    usual: Unidle = field(default_factory=Unidle)
    seen: set[str] = field(default_factory=set)
    asked: int = 0

    def decide(self, view: View, now_ns: int) -> Plan:
        frozen = freeze(view)
        with self.path.open("wb") as out:
            write_snapshot(frozen, out)
        plan = self.usual.decide(view, now_ns)
        waiting = sorted(name for queue in view.waiting.values() for _, _, name in queue)
        some = {*waiting[self.asked % 3 :: 3], *(s.for_job for s in plan.stops if s.for_job)}
        for name in sorted(some):  # each takes a whole decision
            self._compare(plan, name, now_ns)
        return plan

    def _compare(self, plan: Plan, name: str, now_ns: int) -> None:
        again = thaw(load_snapshot(self.path))
        waits = [job.waiting_since_ns for job in again.jobs.open.values() if job.live is None]
        assert again.queue.since_ns() == min(waits)
        answer = next_decision(again, again.jobs[name], now_ns)
        place = next((p for p in plan.places if p.job == name), None)
        wait = next((w for w in plan.waits if w.job == name), None)
        stops = tuple(s for s in plan.stops if s.for_job == name)
        keeps = tuple(k for k in plan.keeps if k.job == name)
        assert (answer.place, answer.stops, answer.keeps) == (place, stops, keeps), name
        if wait is not None:
            assert answer.because == wait.because, name
            self.seen.add(wait.because.code)
        self.seen |= {
            kind for kind, there in (("placed", place), ("stops", stops), ("keeps", keeps)) if there
        }
        self.asked += 1

    def why_not(self, view: View, spec: JobSpec):  # type: ignore[no-untyped-def]
        return self.usual.why_not(view, spec)

    def ever(self, view: View, spec: JobSpec) -> bool:
        return self.usual.ever(view, spec)


def test_every_decision_of_a_loop_is_repeated_from_its_snapshot(tmp_path: Path) -> None:
    seen: set[str] = set()
    asked = 0
    for seed in (1, 2):
        arrivals, work = jobs(seed, 25)
        policy = Repeated(tmp_path / "snapshot")
        faults = [(1 + 200 * S, "n0", 1 + 320 * S)]
        simulate(MemoryStore(), fleet(), arrivals, lambda c, work=work: work[c.job], policy, faults=faults, options=SimulationOptions(forecaster=Forecaster(), until_ns=1 + 700 * S))  # fmt: skip
        seen |= policy.seen
        asked += policy.asked
    assert asked > 80
    assert {"placed", "stops", "keeps", "quota", "planned"} <= seen, seen


def test_a_new_job_gets_on_a_snapshot_what_the_loop_would_give_it(tmp_path: Path) -> None:
    arrivals, work = jobs(5, 20)
    late = max(a.at_ns for a in arrivals) + S
    answers = []
    for spec in (JobSpec(("t",), device="gpu", queue="a", user="ann", name="x"), arrivals[3].spec):
        there = MemoryStore()
        view = simulate(
            there,
            fleet(),
            arrivals,
            lambda c: work[c.job],
            Unidle(),
            options=SimulationOptions(forecaster=Forecaster(), until_ns=late),
        )
        out = io.BytesIO()
        write_snapshot(freeze(view, Forecaster.of(view).recall()), out)
        path = tmp_path / "snapshot"
        path.write_bytes(out.getvalue())
        frozen = load_snapshot(path)
        again = thaw(frozen)
        here = submitted(view, spec)
        there_too = submitted(again, spec, Forecaster.recalled(frozen.history))
        assert [p.value_ns for p in here.predictions] == [p.value_ns for p in there_too.predictions]
        answers.append(next_decision(again, there_too))
        assert answers[-1] == next_decision(view, here)
    assert len(answers) == 2


def test_a_snapshot_of_a_snapshot_is_the_same(tmp_path: Path) -> None:
    arrivals, work = jobs(2, 25)
    view = simulate(MemoryStore(), fleet(), arrivals, lambda c: work[c.job], Unidle(), options=SimulationOptions(forecaster=Forecaster(), until_ns=200 * S))  # fmt: skip
    first = freeze(view, Forecaster.of(view).recall())
    assert any(job.holds is not None and job.holds.saved_ns for job in first.jobs)
    assert any(job.run_time is not None for job in first.jobs)
    again = thaw(first)
    assert freeze(again, first.history) == first
