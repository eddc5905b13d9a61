"""The rule for moving jobs in a fleet file."""

from __future__ import annotations

from pathlib import Path

import pytest

from unidle.errors import BadInput
from unidle.files.fleet import fleet_to_yaml, load_fleet
from unidle.fleet.queues import Migration

NODES = "nodes: [{id: n1, devices: {count: 2, kind: cpu}}]\n"


def load(tmp_path: Path, text: str) -> Migration | None:
    path = tmp_path / "fleet.yaml"
    path.write_text(NODES + text)
    fleet = load_fleet(path)
    path.write_text(fleet_to_yaml(fleet))
    assert load_fleet(path).migration == fleet.migration
    return fleet.migration


def test_without_a_rule_no_job_is_moved(tmp_path: Path) -> None:
    assert load(tmp_path, "") is None


def test_a_rule_has_sound_defaults_and_says_what_it_is_told(tmp_path: Path) -> None:
    assert load(tmp_path, "migration: {}") == Migration(16, ("low", "medium"), 1_000_000)
    assert load(tmp_path, "migration: {moves_most: 2, levels: [low], gain_least: 2.5}") == Migration(
        2, ("low",), 2_500_000
    )


@pytest.mark.parametrize(
    ("text", "says"),
    [
        ("{moves_most: 0}", "migration.moves_most"),
        ("{moves_most: many}", "migration.moves_most"),
        ("{gain_least: 0.5}", "migration.gain_least"),
        ("{gain_least: .nan}", "migration.gain_least"),
        ("{levels: [high]}", "migration.levels[0]"),
        ("{levels: []}", "migration.levels"),
        ("{moves: 3}", "moves_most"),
        ("true", "migration"),
    ],
)
def test_a_bad_rule_is_one_clear_error_with_its_line(tmp_path: Path, text: str, says: str) -> None:
    with pytest.raises(BadInput) as caught:
        load(tmp_path, f"migration: {text}")
    (line,) = str(caught.value).splitlines()
    assert says in line and "fleet.yaml:2" in line, line
