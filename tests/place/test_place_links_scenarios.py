"""The scenarios of ``tests/scenarios/links``: jobs come and go, and which GPUs each rank gets, through the scheduler."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import yaml

from unidle.events import types as ev
from unidle.files.fleet import fleet_from_mapping
from unidle.files.job import job_from_mapping
from unidle.jobs import Reason
from unidle.place.plan import Place
from unidle.place.scheduler import Scheduler
from unidle.view.fold import apply
from unidle.view.frozen import view_of
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

    def round(self, given: dict[str, Any]) -> dict[str, Place]:
        self.now_ns += 1_000
        for job in given.get("end", ()):
            done = Reason("done", "")
            self.tell(ev.AttemptEnded(job, 1, "succeeded", done), ev.JobEnded(job, "succeeded", done))
        for job, fields in given.get("submit", {}).items():
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
    for given in scenario["rounds"]:
        placed, expected = world.round(given), given["expect"]
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
