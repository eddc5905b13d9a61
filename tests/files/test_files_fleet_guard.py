"""What a fleet file may say about sick nodes, and what it says when it is wrong."""

from __future__ import annotations

from typing import Any

import pytest
import yaml

from unidle.errors import BadInput
from unidle.files.fleet import fleet_from_mapping, fleet_to_yaml
from unidle.fleet.guard import Breaker, GuardPolicy, Hook, Lemon, Out

NODES = [{"id": "n", "devices": {"count": 1, "kind": "cpu"}}]
FULL: dict[str, Any] = {
    "preflight": "standard", "preflight_age": "5m", "drain": "2m", "drain_hard": "1s", "suspect": "2h",
    "quarantine": "2d", "probation": "1h", "probation_every": "5m", "accept_unknown": True,
    "remedy": {"reboot": {"command": ["ssh", "{address}", "reboot"], "timeout": "90s", "tries": 3, "pause": "1m"}},
    "prove": {"command": ["check", "{node}"], "tries": 1}, "quick": {"timeout": "5s"},
    "out": {"nodes": 4, "percent": 20, "tier_percent": 25, "per_hour": 3},
    "breaker": {"nodes": 5, "percent": 2, "within": "1h"}, "lemon": {"times": 4, "within": "7d"},
}  # fmt: skip
S = 1_000_000_000


def policy(guard: dict[str, Any]) -> GuardPolicy:
    return fleet_from_mapping({"nodes": NODES, "guard": guard}, "fleet").guard


def test_without_the_section_nothing_is_checked_and_nothing_repaired() -> None:
    fleet = fleet_from_mapping({"nodes": NODES}, "fleet")
    assert fleet.guard == GuardPolicy() and fleet.guard.preflight == "off" and not fleet.guard.remedies
    assert policy({}).preflight == "quick"


def test_every_field_counts_and_comes_back_as_text() -> None:
    found = policy(FULL)
    assert found.remedies == {"reboot": Hook(("ssh", "{address}", "reboot"), 90 * S, 3, 60 * S)}
    assert found.out == Out(4, 200_000, 250_000, 3)
    assert found.breaker == Breaker(5, 20_000, 3600 * S) and found.lemon == Lemon(4, 7 * 86_400 * S)
    fleet = fleet_from_mapping({"nodes": NODES, "guard": FULL}, "fleet")
    assert fleet_from_mapping(yaml.safe_load(fleet_to_yaml(fleet)), "again").guard == found


@pytest.mark.parametrize(
    ("guard", "field"),
    [
        ({"remedy": {"reboot": {}}}, "guard.remedy.reboot.command"),
        ({"remedy": {"reboot": {"command": ["x", "{host}"]}}}, "guard.remedy.reboot.command[1]"),
        ({"remedy": {"pray": {"command": ["x"]}}}, "guard.remedy"),
        ({"drain": "soon"}, "guard.drain"),
        ({"drain": "9999d"}, "guard.drain"),
        ({"out": {"percent": 0}}, "guard.out.percent"),
        ({"prove": {"tries": 0}}, "guard.prove.tries"),
        ({"preflight": "maybe"}, "guard.preflight"),
    ],
)
def test_what_is_wrong_is_one_error_that_names_the_field(guard: dict[str, Any], field: str) -> None:
    with pytest.raises(BadInput) as error:
        policy(guard)
    assert field in error.value.line()
