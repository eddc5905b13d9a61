"""The scenarios of ``tests/scenarios/topology``: a fleet, a gang, and where it goes or why it does not."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest
import yaml

from place.trees import plan_or_why
from unidle.files.fleet import fleet_from_mapping
from unidle.jobs import JobSpec, Layout, Topology
from unidle.place.network.constraint import Blocked, Gang, gang_of
from unidle.place.network.domains import DomainCapacity
from unidle.place.network.tree import Ints, Tree, tree_of

FILE = Path(__file__).parent.parent / "scenarios/topology/gangs.yaml"
SCENARIOS: list[dict[str, Any]] = yaml.safe_load(FILE.read_text())


def world(scenario: dict[str, Any]) -> tuple[Tree, Ints]:
    tiers = []
    for name, given in scenario.get("tiers", {}).items():
        kind, parent, fabric = ([given] if isinstance(given, str) else given) + [None] * (
            3 - (1 if isinstance(given, str) else len(given))
        )
        tiers.append({"id": name, "kind": kind, "parent": parent, "fabric": fabric})
    nodes = []
    for name, (where, room) in scenario["nodes"].items():
        place = {"labels": where} if isinstance(where, dict) else {"parent": where}
        nodes.append({"id": name, "devices": {"count": room, "kind": "gpu"}} | place)
    data: dict[str, Any] = {"nodes": nodes} | ({"tiers": tiers} if tiers else {})
    if "labels" in scenario:
        data["topology"] = {"labels": scenario["labels"]}
    tree = tree_of(fleet_from_mapping(data, scenario["name"]))
    room = {name: room for name, (_, room) in scenario["nodes"].items()}
    return tree, np.array([room[name] for name in tree.nodes])


def gang(given: dict[str, Any]) -> Gang:
    wishes = {k: v for k, v in given.items() if k not in ("ranks", "layout")}
    layout = Layout(**given["layout"]) if "layout" in given else None
    return gang_of(JobSpec(("x",), ranks=given["ranks"], layout=layout, topology=Topology(**wishes)))


def outcome(tree: Tree, room: Ints, given: dict[str, Any]) -> dict[str, Any]:
    plan = plan_or_why(DomainCapacity(tree, room), gang(given))
    if isinstance(plan, Blocked):
        first = plan.barriers[0]
        return {
            "blocked": plan.because.code, "by": [b.constraint.text() for b in plan.barriers if b.constraint],
            "largest": first.largest, "fitting": first.fitting, "domains": first.domains,
            "unblock": first.unblock, "says": plan.because.text,
        }  # fmt: skip
    counts = dict(zip(plan.names(tree), plan.counts.tolist(), strict=True))
    by_tier: dict[str, set[int]] = {}
    for code, kind in enumerate(tree.kinds[1:], 1):
        held = np.bincount(tree.within(code)[plan.nodes] + 1, weights=plan.counts)
        by_tier[kind] = {int(n) for n in held if n}
    return {
        "tier": tree.tiers[plan.vertex] if plan.vertex >= 0 else tree.nodes[plan.nodes[0]],
        "counts": counts, "left_over": plan.left_over, "fabric": plan.fabric,
        "relaxed": [c.text() for c in plan.relaxed], "by_tier": by_tier, "says": plan.because.text,
    }  # fmt: skip


@pytest.mark.parametrize("scenario", SCENARIOS, ids=[s["name"].replace(" ", "-") for s in SCENARIOS])
def test_scenario(scenario: dict[str, Any]):
    found = outcome(*world(scenario), scenario["gang"])
    for what, expected in scenario["expect"].items():
        if what == "unblock" or what == "says":
            assert expected in found[what], found
        elif what == "by_tier":
            assert {kind: {n} for kind, n in expected.items()}.items() <= found[what].items(), found
        else:
            assert found.get(what) == expected, found
