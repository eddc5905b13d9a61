"""Drill files: what fits is read, what does not is one error with field, value and remedy."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
import yaml
from jsonschema import Draft202012Validator

from unidle.drill import fail
from unidle.errors import BadInput
from unidle.files.drill import FORMS, devices_for, load_drill
from unidle.files.job import job_from_mapping
from unidle.files.schema import drill_schema

EXAMPLE = Path(__file__).parents[2] / "examples" / "drill" / "drill.yaml"
JOB = {"command": ["true"], "ranks": 4, "checkpoint": {"path": "ckpt"}}
KILL = {"kind": "kill", "target": "rank:2", "at_step": 4}


def write(tmp_path: Path, **fields: Any) -> Path:
    path = tmp_path / "drill.json"
    path.write_text(json.dumps({"job": JOB, "nodes": 2, "faults": [KILL], **fields}))
    return path


@pytest.mark.parametrize("path", [EXAMPLE, EXAMPLE.with_name("signs.yaml")], ids=lambda path: path.stem)
def test_examples_are_read_and_fit_their_schema(path: Path) -> None:
    assert load_drill(path).faults
    Draft202012Validator(drill_schema()).validate(yaml.safe_load(path.read_text()))


def test_the_example_has_every_fault_that_hurts_a_job() -> None:

    drill = load_drill(EXAMPLE)
    assert drill.nodes == ("n1", "n2", "n3")
    assert drill.devices == (2, 1, 1)
    assert {fault.kind for fault in drill.faults} == FORMS.keys() - {"kernel_log", "nvml", "power_cut"}


def test_the_fluent_form_builds_the_same_faults(tmp_path: Path) -> None:
    given = [
        KILL,
        {"kind": "slow", "target": "rank:1", "factor": 1.25, "at_step": 20},
        {"kind": "cut", "target": "node:n1", "for_s": 10, "at_s": 5},
        {"kind": "rate", "target": "link:n1-n2", "mbit_per_s": 2, "after": "recovery"},
        {"kind": "delay", "target": "link:n1-n2", "ms": 5, "during": "recovery"},
        {"kind": "corrupt_checkpoint", "how": "flip", "at_step": 9},
        {"kind": "disk_slow", "bytes_per_s": "1MB", "at_step": 9},
        {"kind": "nvml", "target": "device:n2/1", "field": "dram_errors", "value": 3, "at_step": 9},
        {"kind": "controller_kill", "at_s": 1},
    ]
    built = (
        fail.rank(2).at_step(4),
        fail.rank(1).slow(1.25).at_step(20),
        fail.node("n1").cut().for_s(10).at_s(5),
        fail.link("n1", "n2").rate(2).after_recovery(),
        fail.link("n1", "n2").delay(5).during_recovery(),
        fail.checkpoint().corrupt("flip").at_step(9),
        fail.checkpoint().disk_slow(1_000_000).at_step(9),
        fail.device("n2/1").reads("dram_errors", 3).at_step(9),
        fail.controller().at_s(1),
    )
    assert load_drill(write(tmp_path, faults=given)).faults == built


def test_the_seed_chooses_and_repeats_its_choice(tmp_path: Path) -> None:
    anyone = [{"kind": "kill", "target": "rank:any", "at_step": k} for k in range(20)]
    chosen = [load_drill(write(tmp_path, faults=anyone, seed=seed)).faults for seed in (7, 7, 8)]
    assert chosen[0] == chosen[1] != chosen[2]
    assert {fault.target for fault in chosen[0]} == {f"rank:{k}" for k in range(4)}


@pytest.mark.parametrize(
    ("fields", "words"),
    [
        ({"faults": []}, "faults"),
        ({"faults": [{"kind": "bang", "at_step": 1}]}, "faults[0].kind"),
        ({"faults": [KILL | {"target": "rank:4"}]}, "no such rank"),
        ({"faults": [KILL | {"target": "node:n3"}]}, "no such node"),
        ({"faults": [KILL | {"target": "link:n1-n2"}]}, "kill is not possible for this target"),
        ({"faults": [KILL | {"target": "bob"}]}, "faults[0].target"),
        ({"faults": [{"kind": "kill", "target": "rank:1"}]}, "needs one time"),
        ({"faults": [KILL | {"at_s": 3}]}, "at_step and at_s"),
        ({"faults": [{"kind": "kill", "at_step": 1}]}, "needs a target"),
        ({"faults": [{"kind": "kill", "target": "rank:1", "during": "recovery"}]}, "no previous fault"),
        ({"faults": [KILL | {"kind": "slow"}]}, "slow needs factor"),
        ({"faults": [KILL | {"factor": 2}]}, "does not go with kill"),
        ({"faults": [{"kind": "cut", "target": "link:n1-n9", "at_step": 1}]}, "not a link"),
        ({"faults": [{"kind": "nvml", "target": "device:n1/2", "field": "x", "value": 1, "at_step": 1}]}, "no such device"),
        ({"job": {"command": ["true"]}, "faults": [{"kind": "disk_full", "at_step": 1}]}, "no checkpoints"),
        ({"job": {"ranks": 2}}, "command"),
        ({"job": "none.yaml"}, "no such file"),
        ({"nodes": 0}, "nodes"),
        ({"devices": [1]}, "devices"),
        ({"result": "/etc/passwd"}, "result"),
        ({"sead": 1}, "sead"),
    ],
)  # fmt: skip
def test_what_does_not_fit_is_one_error_that_names_it(
    tmp_path: Path, fields: dict[str, Any], words: str
) -> None:
    with pytest.raises(BadInput) as caught:
        load_drill(write(tmp_path, **fields))
    assert words in caught.value.line()
    assert caught.value.remedy


@pytest.mark.parametrize(
    ("ranks", "nodes", "each"), [(4, 3, (2, 1, 1)), (4, 2, (2, 2)), (1, 2, (1, 1)), (5, 5, (1,) * 5)]
)
def test_the_devices_of_all_nodes_hold_the_job(ranks: int, nodes: int, each: tuple[int, ...]) -> None:
    job = job_from_mapping({"command": ["true"], "ranks": ranks}, "test", ".")
    assert devices_for(job, nodes) == each
