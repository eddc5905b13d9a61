"""Devices cut on demand through the whole loop: tests/scenarios/cuts, and what holds after every event."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import yaml
from hypothesis import given, settings
from hypothesis import strategies as st

from share.cutting import World, check_ledger, run, told, used_by
from unidle.fleet import WHOLE_PPM

FILE = Path(__file__).parent.parent / "scenarios/cuts/loop.yaml"
SCENARIOS: list[dict[str, Any]] = yaml.safe_load(FILE.read_text())


@pytest.mark.parametrize("scenario", SCENARIOS, ids=[s["name"].replace(" ", "-") for s in SCENARIOS])
def test_scenario(scenario: dict[str, Any]) -> None:
    world = World.of(scenario)
    for look in scenario["looks"]:
        store, view = run(world, look["at"])
        check_ledger(store)
        for job, expected in look.get("runs", {}).items():
            wanted = expected if isinstance(expected[0], list) else [expected]
            assert told(view, job).runs == [tuple(w) for w in wanted], (job, told(view, job))
        for job, expected in look.get("waits", {}).items():
            code, says = (expected, "") if isinstance(expected, str) else (expected["code"], expected["says"])
            found = told(view, job)
            assert found.code == code and says in found.text, (job, found)
        running = {job.spec.name for job in view.jobs.values() if job.live is not None}
        assert running == set(look.get("runs", {})), "others run"
        for device, shares in look.get("shares", {}).items():
            found_shares = [p.share_ppm for p in view.fleet.slices() if p.device == device]
            assert found_shares == shares
        for queue, used in look.get("queues", {}).items():
            assert used_by(view)[queue] == used
