"""Runs the declarative scenarios of ``tests/scenarios/idle``.

A file holds one scenario: ``fleet`` (fields of a fleet file), ``jobs`` (fields of a job file, and what the gang
``does``: a ``SimJob`` with times in seconds) that are submitted at the start, and ``rounds``. A round has a time
``at_s`` and may ``kill`` the controller before it, which is taken up again at ``at_s``. It expects of each job:
its ``state``; whether a notice stands (``told``); the ``code`` of its reason; ``notices`` so far; leaves of its
ledger in device-seconds (``ledger``). Each scenario is run twice and has to leave the same log.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import yaml

from control.idle_worlds import IdleWorld
from unidle.control.queries.describe import explain, reason_now

FILES = sorted((Path(__file__).parents[1] / "scenarios" / "idle").glob("*.yaml"))


def drive(scenario: dict[str, Any]) -> IdleWorld:
    world = IdleWorld(scenario["fleet"], scenario["jobs"])
    for name in scenario["jobs"]:
        world.submit(name)
    for turn in scenario["rounds"]:
        if turn.get("kill"):
            world.kill()
            world.clock.advance_to(1 + int(turn["at_s"] * 10**9))
            world.take_up()
        world.until(turn["at_s"])
        for name, expected in turn["expect"].items():
            assert seen(world, name, expected) == expected, f"{name} at {turn['at_s']} s"
    return world


def seen(world: IdleWorld, name: str, expected: dict[str, Any]) -> dict[str, Any]:
    """What is to be seen of the job, as far as it is expected."""
    job = world.job(name)
    assert explain(world.controller.view, job)["code"]
    because = reason_now(job)
    said: dict[str, Any] = {
        "state": job.state,
        "told": job.live is not None and job.live.notice is not None,
        "code": because.code if because else None,
        "notices": sum(len(attempt.notices) for attempt in job.attempts),
        "attempts": len(job.attempts),
    }
    if "ledger" in expected:
        spent = world.ledger_s(name)
        said["ledger"] = {leaf: round(spent.get(leaf, 0), 3) for leaf in expected["ledger"]}
    return {key: said[key] for key in expected}


@pytest.mark.parametrize("path", FILES, ids=lambda path: path.stem)
def test_scenario(path: Path) -> None:
    scenario = yaml.safe_load(path.read_text())
    first, second = drive(scenario), drive(scenario)
    assert [e[1:] for e in first.store.read()] == [e[1:] for e in second.store.read()]
