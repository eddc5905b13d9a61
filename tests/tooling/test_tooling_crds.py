"""The file of custom resources is what the types of the file formats give, and a structural schema."""

from __future__ import annotations

import re
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import yaml

from unidle.files.schema import fleet_schema, job_schema

ROOT = Path(__file__).resolve().parents[2]
DEFINITIONS = list(yaml.safe_load_all((ROOT / "deploy" / "kubernetes" / "crds.yaml").read_text()))
# What a structural schema may not have, below its validations.
FORBIDDEN = (
    "$ref",
    "$defs",
    "anyOf",
    "oneOf",
    "propertyNames",
    "examples",
    "prefixItems",
    "uniqueItems",
    "title",
)


def spec_of(definition: dict[str, Any]) -> dict[str, Any]:
    [version] = definition["spec"]["versions"]
    found: dict[str, Any] = version["schema"]["openAPIV3Schema"]["properties"]["spec"]
    return found


def nodes_of(schema: dict[str, Any]) -> Iterator[dict[str, Any]]:
    yield schema
    below = list(schema.get("properties", {}).values())
    below += [schema[key] for key in ("items", "additionalProperties") if key in schema]
    for part in below:
        yield from nodes_of(part)


def test_the_file_is_what_the_types_give() -> None:
    done = subprocess.run([sys.executable, ROOT / "scripts" / "crds.py"], capture_output=True, text=True)
    assert done.returncode == 0, done.stderr


@pytest.mark.parametrize("definition", DEFINITIONS, ids=lambda found: found["spec"]["names"]["kind"])
def test_each_schema_is_structural(definition: dict[str, Any]) -> None:
    for node in nodes_of(spec_of(definition)):
        assert not set(FORBIDDEN) & node.keys()
        open_ended = node.get("x-kubernetes-int-or-string") or node.get(
            "x-kubernetes-preserve-unknown-fields"
        )
        assert ("type" in node) != bool(open_ended), node
        assert not re.search(r"\(\?[!=<]", node.get("pattern", ""))


def test_every_field_of_a_file_is_in_one_of_the_resources() -> None:
    by_kind = {found["spec"]["names"]["kind"]: set(spec_of(found)["properties"]) for found in DEFINITIONS}
    assert by_kind["Job"] == set(job_schema()["properties"])
    # nodes are those of the cluster, which has no hosts with agents alone; each queue is an object of its own
    of_fleet = set(fleet_schema()["properties"]) - {"nodes", "hosts", "queues"}
    assert by_kind["Topology"] | by_kind["FleetPolicy"] == of_fleet
    assert by_kind["Queue"] | {"name"} == set(fleet_schema()["$defs"]["QueuePart"]["properties"])
