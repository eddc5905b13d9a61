"""The scenarios of ``tests/scenarios/fleets``: fleets of several vendors and models, and what queues used before."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import yaml

from unidle.control.replay.simulate import Arrival, simulate
from unidle.engine.protocol import StartGang
from unidle.engine.sim.workload import S, SimJob
from unidle.events import types as ev
from unidle.files.fleet import fleet_from_mapping
from unidle.files.job import job_from_mapping
from unidle.place.protocol import Plan
from unidle.place.scheduler import Scheduler
from unidle.store.memory import MemoryStore
from unidle.view.jobs import JobView
from unidle.view.state import View

FOLDER = Path(__file__).parent.parent / "scenarios/fleets"
SCENARIOS: list[dict[str, Any]] = [
    scenario for file in sorted(FOLDER.glob("*.yaml")) for scenario in yaml.safe_load(file.read_text())
]
FLEET = ("nodes", "prices", "queues", "history")


class Twice(Scheduler):
    """What a policy keeps between rounds must not change what it decides."""

    def decide(self, view: View, now_ns: int) -> Plan:
        fresh = Scheduler().decide(view, now_ns)
        kept = super().decide(view, now_ns)
        assert kept == fresh
        return kept


def run(scenario: dict[str, Any]) -> tuple[View, dict[str, str]]:
    """The final view, and the first reason why each job waited."""
    fleet = fleet_from_mapping({k: scenario[k] for k in FLEET if k in scenario}, scenario["name"])
    models = {piece.id: d.model for d in fleet.devices() for piece in fleet.slices() if piece.device == d.id}
    steps, works, arrivals = scenario.get("step_s", {}), {}, []
    for given in scenario["jobs"]:
        rest = {k: v for k, v in given.items() if k not in ("job", "at_s", "work_s")}
        rest["name"] = rest.get("name", given["job"]).replace(" ", "-")
        spec = job_from_mapping({"command": ["x"], "device": "gpu", "user": "ann"} | rest, given["job"], "/")
        arrivals.append(Arrival(1 + int(given.get("at_s", 0) * S), given["job"], spec))
        works[given["job"]] = given["work_s"]

    def workload(command: StartGang) -> SimJob:
        step_s = max(steps.get(models[s], 0) for place in command.places for s in place.slices)
        return SimJob(int(works[command.job] * S), step_ns=int(step_s * S))

    store = MemoryStore()
    view = simulate(store, fleet, arrivals, workload, Twice())
    judged: dict[str, str] = {}
    for stored in store.read():
        event = ev.decode(stored.kind, stored.body, stored.seq)
        if isinstance(event, ev.JobJudged):
            judged.setdefault(event.job, event.because.text)
    return view, judged


def outcome(view: View, job: JobView) -> dict[str, Any]:
    if not job.attempts:
        assert job.verdict is not None
        return {"state": job.state, "code": job.verdict.code, "says": job.verdict.text}
    attempt = job.attempts[-1]
    numbers = view.book.indexes(s for place in attempt.places for s in place.slices)
    return {
        "models": sorted({view.book.slices[k].model for k in numbers}),
        "start_s": (attempt.placed_ns - 1) // S, "says": attempt.because.text,
    }  # fmt: skip


@pytest.mark.parametrize("scenario", SCENARIOS, ids=[s["name"].replace(" ", "-") for s in SCENARIOS])
def test_scenario(scenario: dict[str, Any]):
    view, judged = run(scenario)
    for name, expected in scenario["expect"].items():
        found = outcome(view, view.jobs[name])
        for what, value in expected.items():
            if what == "judged":
                assert value in judged[name], judged
            elif what == "says":
                assert value in found["says"], found
            else:
                assert found.get(what) == value, (name, found)
