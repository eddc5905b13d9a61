"""The scenarios of ``tests/scenarios/links``: jobs come and go, and which GPUs each rank gets, through the scheduler."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import yaml
from hypothesis import given, settings
from hypothesis import strategies as st

from unidle.events import types as ev
from unidle.files.fleet import fleet_from_mapping
from unidle.files.job import job_from_mapping
from unidle.jobs import Reason
from unidle.place.protocol import Place
from unidle.place.scheduler import Scheduler
from unidle.view.fold import apply
from unidle.view.placement_input import view_of
from unidle.view.state import View

FILES = sorted((Path(__file__).parent.parent / "scenarios/links").glob("*.yaml"))
KEYS = {"gpus", "slices", "says", "silent"}


class World:
    """A view that is told what the scheduler decides; each round is also decided by one that knows nothing yet."""

    def __init__(self, scenario: dict[str, Any], name: str) -> None:
        self.view, self.policy, self.now_ns = (
            view_of(fleet_from_mapping(scenario["fleet"], name)),
            Scheduler(),
            1_000,
        )

    def tell(self, *events: ev.Event) -> View:
        for event in events:
            apply(self.view, event, self.view.seq + 1, self.now_ns)
        return self.view

    def round(self, step: dict[str, Any]) -> dict[str, Place]:
        self.now_ns += 1_000
        for job in step.get("end", ()):
            done = Reason("done", "")
            self.tell(ev.AttemptEnded(job, 1, "succeeded", done), ev.JobEnded(job, "succeeded", done))
        for job, fields in step.get("submit", {}).items():
            spec = job_from_mapping({"command": ["x"], "device": "gpu", **fields}, job, Path())
            self.tell(ev.JobSubmitted(job, spec))
        plan = self.policy.decide(self.view, self.now_ns)
        assert plan == Scheduler().decide(self.view, self.now_ns)
        for place in plan.places:
            self.tell(ev.AttemptPlaced(place.job, 1, place.places, place.because))
        return {place.job: place for place in plan.places}


def gpus(place: Place) -> dict[str, list[list[int]]]:
    """By node the GPUs of each of its ranks, in rank order."""
    found: dict[str, list[list[int]]] = {}
    for rank in place.places:
        found.setdefault(rank.node, []).append([int(s.rpartition("/")[2]) for s in rank.slices])
    return found


@pytest.mark.parametrize("file", FILES, ids=[file.stem for file in FILES])
def test_scenario(file: Path) -> None:
    scenario = yaml.safe_load(file.read_text())
    world = World(scenario, file.stem)
    for step in scenario["rounds"]:
        placed, expected = world.round(step), step["expect"]
        assert expected and set(expected) <= KEYS
        for job, there in expected.get("gpus", {}).items():
            assert gpus(placed[job]) == there, (job, placed[job])
        for job, slices in expected.get("slices", {}).items():
            assert [list(rank.slices) for rank in placed[job].places] == slices
        for job, text in expected.get("says", {}).items():
            assert text in placed[job].because.text
        for job in expected.get("silent", ()):
            assert "connected" not in placed[job].because.text and "links" not in placed[job].because.text


def test_there_are_scenarios() -> None:
    assert len(FILES) >= 6


WIRED = {
    "gpu_links": {
        "pairs": {"islands": [[0, 1], [2, 3]], "link": "NV4", "between": "SYS"},
        "crossed": {"islands": [[0, 2], [1, 3]], "link": "XGMI2", "between": "XGMI", "numa": [0, 1, 0, 1]},
    },
    "nodes": [
        {"id": "p[1-2]", "devices": {"count": 4, "kind": "gpu"}, "gpu_links": "pairs"},
        {"id": "c1", "devices": {"count": 4, "kind": "gpu", "vendor": "amd"}, "gpu_links": "crossed"},
        {"id": "u1", "devices": {"count": 4, "kind": "gpu"}},
    ],
}
jobs = st.builds(
    lambda ranks, each, tp: {
        "ranks": ranks * tp,
        "devices_per_rank": each,
        "layout": {"tp": tp, "dp": ranks},
    },
    st.integers(1, 3),
    st.integers(1, 3),
    st.integers(1, 2),
)


@settings(max_examples=60)
@given(rounds=st.lists(st.tuples(st.lists(jobs, max_size=3), st.integers(0, 5)), min_size=1, max_size=6))
def test_whatever_comes_and_goes_no_gpu_has_two_holders_and_no_gang_is_halved(
    rounds: list[tuple[list[dict[str, Any]], int]],
) -> None:
    world = World({"fleet": WIRED}, "wired")
    held: dict[str, set[str]] = {}
    specs: dict[str, dict[str, Any]] = {}
    for number, (coming, going) in enumerate(rounds):
        ending = sorted(held)[:going]
        for job in ending:
            del held[job]
        submit = {f"j{number}-{k}": fields for k, fields in enumerate(coming)}
        specs |= submit
        for job, place in world.round({"end": ending, "submit": submit}).items():
            wanted, slices = specs[job], [s for rank in place.places for s in rank.slices]
            assert [len(rank.slices) for rank in place.places] == [wanted["devices_per_rank"]] * wanted[
                "ranks"
            ]
            assert all(s.startswith(f"{rank.node}/") for rank in place.places for s in rank.slices)
            assert len(set(slices)) == len(slices)
            assert all(taken.isdisjoint(slices) for taken in held.values())
            held[job] = set(slices)
