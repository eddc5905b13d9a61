"""The retention section of a fleet file, and what is wrong with it."""

from __future__ import annotations

from typing import Any

import pytest
import yaml

from unidle.errors import BadInput
from unidle.files.fleet import fleet_from_mapping, fleet_to_yaml
from unidle.files.job import job_from_mapping
from unidle.fleet.policies import HOUR_NS, RetentionPolicy

NODES = [{"id": "n", "devices": {"count": 1, "kind": "cpu"}}]


def policy(retention: dict[str, Any]) -> RetentionPolicy:
    return fleet_from_mapping({"nodes": NODES, "retention": retention}, "fleet").retention


def test_without_a_section_nothing_is_removed_or_compressed() -> None:
    found = fleet_from_mapping({"nodes": NODES}, "fleet").retention
    assert found == RetentionPolicy() and not found.on and not found.removes


def test_a_section_without_a_limit_compresses_after_an_hour() -> None:
    assert policy({}) == RetentionPolicy(compress_ns=HOUR_NS)
    assert policy({}).on and not policy({}).removes


def test_every_field_has_its_unit_and_survives_a_round_trip() -> None:
    given = {"age": "30d", "size": "20GB", "jobs": 10_000, "compress": "10m"}
    found = policy(given)
    assert found == RetentionPolicy(30 * 24 * HOUR_NS, 20 * 10**9, 10_000, HOUR_NS // 6)
    for text in (given, {"jobs": 0, "compress": False}, {"compress": True}):
        fleet = fleet_from_mapping({"nodes": NODES, "retention": text}, "fleet")
        again = fleet_from_mapping(yaml.safe_load(fleet_to_yaml(fleet)), "fleet")
        assert again.retention == fleet.retention


@pytest.mark.parametrize(
    ("retention", "problem"),
    [
        ({"age": 30}, "retention.age: must be a time with its unit"),
        ({"age": "0.5s"}, "retention.age: must be from 1 s to 3650 days (got '0.5s'); for instance 30d"),
        ({"age": "4000d"}, "retention.age: must be from 1 s to 3650 days"),
        ({"compress": "0s"}, "retention.compress: must be from 1 s to 3650 days"),
        ({"compress": "later"}, "retention.compress"),
        ({"size": "1kB"}, "retention.size: must be from 1MiB to 1 PiB (got '1kB'); for instance 20GB"),
        ({"size": "big"}, "retention.size"),
        ({"jobs": -1}, "retention.jobs"),
        ({"jobs": "many"}, "retention.jobs"),
        ({"ages": "30d"}, "retention.ages: unknown field"),
    ],
)
def test_a_wrong_policy_is_one_clear_error(retention: dict[str, Any], problem: str) -> None:
    with pytest.raises(BadInput) as caught:
        policy(retention)
    assert problem in caught.value.line()
    assert caught.value.exit_code == 2


def test_a_job_asks_to_be_kept() -> None:
    assert job_from_mapping({"command": ["x"], "keep": True}, "job", ".").keep
    with pytest.raises(BadInput, match="keep: must be true or false"):
        job_from_mapping({"command": ["x"], "keep": "yes"}, "job", ".")
