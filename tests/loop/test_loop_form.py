"""The runner of scenarios is loud: a mistake in a file, or a thing that is not as it says, is an error that says where."""

from __future__ import annotations

import copy
from pathlib import Path
from typing import Any

import pytest
import yaml

from loop.form import BadScene, scene_of
from loop.test_loop_scenarios import FILES, play

GOOD: dict[str, Any] = yaml.safe_load(
    """
    capability: 1
    about: one job on one node
    fleet: {nodes: [{id: n0, devices: {count: 2, kind: gpu}}]}
    jobs: [{job: a, work_s: 10, ranks: 2}, {job: b, work_s: 10, submit_s: 1}]
    events: [{at_s: 5, cancel: b}]
    expected: [{at_s: 2, runs: {a: n0}, waits: {b: no_fit}, free: 0}]
    ends: {b: cancelled}
    """
)


def changed(*path: str | int, to: Any) -> dict[str, Any]:
    data = copy.deepcopy(GOOD)
    at: Any = data
    for step in path[:-1]:
        at = at[step]
    at[path[-1]] = to
    return data


@pytest.mark.parametrize(
    ("path", "to", "says"),
    [
        (("jobs", 0, "rank"), 2, "rank"),
        (("jobs", 0, "work_s"), "long", "work_s"),
        (("fleet", "nodes", 0, "parent"), "leaf", "leaf"),
        (("fleet", "queues"), [{"name": "a", "parent": "b"}], "b"),
        (("capability",), 16, "no capability 16"),
        (("events", 0, "fail"), "n0", "one of fail, cancel, controller"),
        (("events", 0, "cancel"), "c", "no job c"),
        (("expected", 0, "runs"), {"c": "n0"}, "no job c"),
        (("expected", 0, "runs"), {"a": "n9"}, "no node or tier n9"),
        (("expected", 0, "queues"), {"q": {"used": 1}}, "no queue q"),
        (("expected", 0, "run"), {}, "run"),
        (("expected",), [{"at_s": 3}], "nothing is expected"),
        (("expected",), [], "nothing is expected"),
        (("ends",), {"c": "failed"}, "no job c"),
        (("jobs", 1, "job"), "a", "same name"),
    ],
)  # fmt: skip
def test_a_mistake_in_a_scenario_is_named(path: tuple[str | int, ...], to: Any, says: str) -> None:
    with pytest.raises(BadScene, match=says):
        scene_of(changed(*path, to=to), "bad")


@pytest.mark.parametrize(
    ("path", "to", "says"),
    [
        (("expected", 0, "runs"), {"b": "n0"}, "b runs: it is queued"),
        (("expected", 0, "runs"), {"a": {"nodes": {"n0": 1}}}, "expected {'n0': 1}, found {'n0': 2}"),
        (("expected", 0, "waits"), {"a": "no_fit"}, "a waits: it is running"),
        (("expected", 0, "waits"), {"b": "quota"}, "expected the reason quota"),
        (("expected", 0, "waits"), {"b": {"figures": {"free": 1}}}, "free: expected 1, found 0"),
        (("expected", 0, "free"), 2, "free: expected 2, found 0"),
        (("expected", 0, "started"), ["a", "b"], "started"),
        (("ends",), {}, "ends: b: state: expected succeeded, found cancelled"),
    ],
)
def test_what_is_not_as_a_scenario_says_fails_it(
    path: tuple[str | int, ...], to: Any, says: str, tmp_path: Path
) -> None:
    play(scene_of(GOOD, "good"), tmp_path)
    with pytest.raises(pytest.fail.Exception) as failed:
        play(scene_of(changed(*path, to=to), "wrong"), tmp_path)
    assert says in str(failed.value)


def test_each_file_is_one_scenario_that_is_well_formed() -> None:
    assert FILES
    for path in FILES:
        scene_of(yaml.safe_load(path.read_text()), path.stem)
