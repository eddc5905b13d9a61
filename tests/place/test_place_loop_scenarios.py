"""Runs the scenarios of ``tests/scenarios/moving`` and ``tests/scenarios/repair/loop`` in the real loop, on the simulated engine.

A file holds a ``fleet`` (as in a fleet file), ``jobs`` with ``at_s``, the fields of a job file and in ``truth``
those of ``SimJob`` in seconds, and ``faults`` (``at_s``, ``node``, ``up_s``). ``expect`` has, by job, its
``state``, the ``nodes`` of each attempt (ranks by node, in order), why each attempt but the last was stopped,
and figures of the reason of the last one. Each scenario is run twice and has to go the same way.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import yaml

from place.test_place_quotas import Twice
from unidle.control.replay.simulate import Arrival, simulate
from unidle.engine.sim.workload import S, SimJob
from unidle.events import types as ev
from unidle.files.fleet import fleet_from_mapping
from unidle.files.job import job_from_mapping
from unidle.store.memory import MemoryStore
from unidle.view.jobs import JobView
from unidle.view.state import View

ROOT = Path(__file__).parents[1] / "scenarios"
FILES = sorted([*(ROOT / "moving").glob("*.yaml"), *(ROOT / "repair" / "loop").glob("*.yaml")])


def run(scenario: dict[str, Any]) -> tuple[View, list[ev.Event]]:
    arrivals, behaviour = [], {}
    for given in scenario["jobs"]:
        fields = {key: value for key, value in given.items() if key not in ("at_s", "truth")}
        spec = job_from_mapping({"command": ["x"], "device": "gpu", **fields}, given["name"], ROOT)
        arrivals.append(Arrival(1 + int(given.get("at_s", 0) * S), given["name"], spec))
        behaviour[given["name"]] = truth(given["truth"])
    faults = [(1 + f["at_s"] * S, f["node"], 1 + f["up_s"] * S) for f in scenario.get("faults", ())]
    store = MemoryStore()
    view = simulate(
        store, fleet_from_mapping(scenario["fleet"], "the scenario"), arrivals,
        lambda command: behaviour[command.job], Twice(), faults=faults,
    )  # fmt: skip
    return view, [ev.decode(e.kind, e.body, e.seq) for e in store.read()]


def truth(given: dict[str, Any]) -> SimJob:
    seconds = {f"{key[:-2]}_ns": int(value * S) for key, value in given.items() if key.endswith("_s")}
    plain = {key: value for key, value in given.items() if not key.endswith("_s") and key != "fails"}
    fails = {
        attempt: (rank, int(after_s * S), code)
        for attempt, (rank, after_s, code) in given.get("fails", {}).items()
    }
    return SimJob(**{"work_ns": 100 * S, **seconds, **plain, "fails": fails})


def seen(job: JobView) -> dict[str, Any]:
    placed = []
    for attempt in job.attempts:
        ranks: dict[str, int] = {}
        for place in attempt.places:
            ranks[place.node] = ranks.get(place.node, 0) + 1
        placed.append(ranks)
    return {
        "state": job.state,
        "nodes": placed,
        "stopped": [a.stop.why if a.stop else None for a in job.attempts[:-1]],
        "because": job.attempts[-1].because.figures if job.attempts else {},
        "code": job.attempts[-1].because.code if job.attempts else None,
        "began_s": (job.attempts[-1].placed_ns - 1) // S if job.attempts else None,
    }


@pytest.mark.parametrize("path", FILES, ids=[path.stem for path in FILES])
def test_a_scenario_goes_as_it_says(path: Path) -> None:
    scenario = yaml.safe_load(path.read_text())
    view, events = run(scenario)
    for name, expected in scenario["expect"].items():
        found = seen(view.jobs[name])
        for what, value in expected.items():
            if what == "because":
                assert {key: found[what].get(key) for key in value} == value, (name, found)
            else:
                assert found[what] == value, (name, what, found)
    assert run(scenario)[1] == events


def test_there_are_scenarios() -> None:
    assert len(FILES) >= 6
