"""What a fleet file may say about sick nodes, and what it says when it is wrong."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import yaml

from unidle.errors import BadInput
from unidle.files.fleet import fleet_from_mapping, fleet_to_yaml, load_fleet_and_notices
from unidle.fleet.policies import Breaker, GuardPolicy, Hook, Lemon, Out
from unidle.fleet.spares import Spares

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


def test_without_the_section_there_is_a_short_check_and_nothing_is_repaired() -> None:
    fleet = fleet_from_mapping({"nodes": NODES}, "fleet")
    assert fleet.guard == GuardPolicy() and fleet.guard.preflight == "auto" and not fleet.guard.remedies
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
        ({"spares": 1}, "guard.spares"),
        ({"spares": -1}, "guard.spares"),
        ({"spares": "n"}, "guard.spares"),
        ({"spares": ["n2"]}, "guard.spares[0]"),
        ({"spares": ["n["]}, "guard.spares[0]"),
        ({"spares": ["n"]}, "guard.spares"),
        ({"spare_grace": "soon"}, "guard.spare_grace"),
        ({"probation_work": "high"}, "guard.probation_work"),
    ],
)
def test_what_is_wrong_is_one_error_that_names_the_field(guard: dict[str, Any], field: str) -> None:
    with pytest.raises(BadInput) as error:
        policy(guard)
    assert field in error.value.line()


# -- spares ------------------------------------------------------------------------------------------------

MIXED = [
    {"id": "a[1-3]", "devices": {"count": 2, "kind": "gpu", "model": "A100"}},
    {"id": "h[1-2]", "devices": {"count": 2, "kind": "gpu", "model": "H100"}},
    {"id": "front", "cpus": 4},
]


@pytest.mark.parametrize(
    ("spares", "kept"), [(1, ["a3", "h2"]), (["a2", "h[1-2]"], ["a2", "h1", "h2"]), (0, []), ([], [])]
)
def test_spares_are_so_many_of_each_kind_or_those_that_are_named(spares: Any, kept: list[str]) -> None:
    fleet = fleet_from_mapping({"nodes": MIXED, "guard": {"spares": spares, "spare_grace": "3s"}}, "fleet")
    assert sorted(Spares(fleet).of()) == kept and fleet.guard.spare_grace_ns == 3 * S
    again = fleet_from_mapping(yaml.safe_load(fleet_to_yaml(fleet)), "again").guard
    assert again == fleet.guard and again.keeps_spares == bool(kept)


def test_the_last_usable_nodes_without_other_work_are_spares() -> None:
    fleet = fleet_from_mapping({"nodes": MIXED[:1], "guard": {"spares": 1}}, "fleet")
    assert Spares(fleet).of(firm={"a3": 1}) == {"a2"}
    assert Spares(fleet).of(firm={"a3": 1}, barred=["a2/1"]) == {"a1"}
    assert Spares(fleet).of(firm={"a1": 1, "a3": 1}, barred=["a2"]) == set()


def test_as_many_spares_as_nodes_of_a_kind_are_refused_with_the_kind() -> None:
    with pytest.raises(BadInput, match="no node with H100 GPUs for other jobs: there are 2") as error:
        fleet_from_mapping({"nodes": MIXED, "guard": {"spares": 2}}, "fleet")
    assert "keep at most 1" in error.value.line()


def test_a_file_for_hosts_that_join_needs_no_nodes_and_may_name_spares_that_are_not_there_yet(
    tmp_path: Path,
) -> None:
    file = tmp_path / "fleet.yaml"
    file.write_text(
        "guard: {preflight: standard, spares: ['h[1-2]'], remedy: {reboot: {command: [reboot]}}}\n"
    )
    fleet, _ = load_fleet_and_notices(file, hosts_join=True)
    assert not fleet.nodes and fleet.guard.spare_nodes == ("h1", "h2")
    assert fleet.guard.preflight == "standard" and fleet.guard.remedies["reboot"].command == ("reboot",)
    with pytest.raises(BadInput, match="nodes: the field is missing"):
        load_fleet_and_notices(file)


def test_nodes_of_a_file_for_hosts_are_read_as_in_any_other(tmp_path: Path) -> None:
    file = tmp_path / "fleet.yaml"
    file.write_text("nodes: [{id: n1, devices: {kind: cpu}}]\n")
    assert load_fleet_and_notices(file, hosts_join=True)[0] == load_fleet_and_notices(file)[0]
    file.write_text("nodes: [{id: n1}]\n")
    with pytest.raises(BadInput, match="the fleet has no device"):
        load_fleet_and_notices(file, hosts_join=True)


def test_the_check_of_links_may_be_bound_to_ports() -> None:
    found = policy({"between": {"ports": "7500-7509"}})
    assert found.between is not None and found.between.ports == (7500, 7509)
    text = fleet_to_yaml(
        fleet_from_mapping({"nodes": NODES, "guard": {"between": {"ports": "7500-7509"}}}, "fleet")
    )
    assert yaml.safe_load(text)["guard"]["between"] == {"ports": "7500-7509"}


@pytest.mark.parametrize(
    ("ports", "why"),
    [
        ("7500-7501", "has 2 ports"),
        ("7509-7500", "the lower one first"),
        ("80-90", "1024"),
        ("7500", "range"),
        ("7-99999", "1024"),
    ],
)
def test_ports_that_are_no_usable_range_are_refused(ports: str, why: str) -> None:
    with pytest.raises(BadInput, match=why):
        policy({"between": {"ports": ports}})
