"""Runs the declarative scenarios of ``tests/scenarios/remedy``.

A file holds one scenario: ``fleet`` (fields of a fleet file), ``jobs`` (fields of a job file, what the gang ``does``,
and ``submit_s``), ``commands`` (how remedies and checks answer in turn: ``code``, ``after_s``, ``never`` or ``away``) and ``rounds``.
At ``at_s`` a round may ``kill`` the controller, tell of a ``fault`` (target: action), or ``ask`` as an operator does; then
it expects: of ``nodes`` ``state``, ``step``, ``try``, a part of the reason (``says``); of ``jobs`` ``state``, ``where`` (nodes), ``attempts``,
``retries``; ``begun`` remedies and checks; ``ledger`` seconds of a device by leaf. Each runs twice and leaves the same log.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import yaml

from control.remedy_worlds import RemedyWorld

FILES = sorted((Path(__file__).parents[1] / "scenarios" / "remedy").glob("*.yaml"))


def drive(scenario: dict[str, Any]) -> RemedyWorld:
    world = RemedyWorld(scenario["fleet"], scenario.get("jobs", {}), scenario.get("commands", {}))
    arrivals = {name: job.pop("submit_s", 0) for name, job in world.jobs.items()}
    for turn in scenario["rounds"]:
        for name, at_s in sorted(arrivals.items(), key=lambda item: item[1]):
            if at_s <= turn["at_s"] and name not in world.controller.view.jobs:
                world.until(at_s)
                world.submit(name)
        if turn.get("kill"):
            world.kill()
            world.clock.advance_to(1 + int(turn["at_s"] * 10**9))
            world.take_up()
        world.until(turn["at_s"])
        for target, action in turn.get("fault", {}).items():
            world.fault(target, action)
        for asked in turn.get("ask", ()):
            world.ask(**asked)
        world.until(turn["at_s"])
        check(world, turn)
    return world


def check(world: RemedyWorld, turn: dict[str, Any]) -> None:
    care, at = world.controller.view.care, f"at {turn['at_s']} s"
    for target, expected in turn.get("nodes", {}).items():
        here = care.targets.get(target)
        seen = {
            "state": here.state if here is not None else "healthy", "step": here.step if here is not None else "",
            "try": here.try_ if here is not None else 0, "cordoned": target in care.cordons,
        }  # fmt: skip
        wanted = dict(expected)
        says = wanted.pop("says", "")
        assert {key: seen[key] for key in wanted} == wanted, f"{target} {at}: {here}"
        assert here is None or says in here.because.text, f"{target} {at}"
    for name, expected in turn.get("jobs", {}).items():
        job = world.job(name)
        seen = {
            "state": job.state, "attempts": len(job.attempts), "retries": job.retries,
            "where": sorted({p.node for p in job.live.places}) if job.live is not None else [],
        }  # fmt: skip
        assert {key: seen[key] for key in expected} == expected, f"{name} {at}"
    if "begun" in turn:
        assert world.commands is not None
        assert dict(world.commands.begun) == turn["begun"], at
    for device, expected in turn.get("ledger", {}).items():
        spent = world.device_s(device)
        assert {leaf: spent.get(leaf, 0) for leaf in expected} == expected, f"{device} {at}: {spent}"


@pytest.mark.parametrize("path", FILES, ids=lambda path: path.stem)
def test_scenario(path: Path) -> None:
    first, second = drive(yaml.safe_load(path.read_text())), drive(yaml.safe_load(path.read_text()))
    assert [e[1:] for e in first.store.read()] == [e[1:] for e in second.store.read()]
