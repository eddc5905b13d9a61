"""`unidle place --json` as a stranger would use it: the figures of the groups are those of a calculation by hand."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from e2e.commands import ask

MIXED = """
tiers:
  - {id: dc, kind: site}
  - {id: sp1, kind: spine, parent: dc, fabric: infiniband}
  - {id: sp2, kind: spine, parent: dc, fabric: roce}
  - {id: eth, kind: spine, parent: dc, fabric: ethernet}
  - {id: "ib[1-2]", kind: leaf, parent: sp1}
  - {id: r1, kind: leaf, parent: sp2}
  - {id: e1, kind: leaf, parent: eth}
nodes:
  - {id: "a[1-2]", parent: ib1, devices: {count: 8, kind: gpu, model: H100}}
  - {id: "b[1-2]", parent: ib2, devices: {count: 8, kind: gpu, model: H100}}
  - {id: "c[1-2]", parent: r1, devices: {count: 8, kind: gpu, model: H100}}
  - {id: "d[1-2]", parent: e1, devices: {count: 8, kind: gpu, model: A100}}
links:
  - {tier: device, fabric: nvlink, gbps: 3600}
  - {tier: node, fabric: infiniband, gbps: 400}
  - {tier: node, fabric: roce, gbps: 200}
  - {tier: node, fabric: ethernet, gbps: 25}
  - {tier: leaf, fabric: infiniband, gbps: 800}
  - {tier: spine, gbps: 10}
"""
LABELLED = """
topology: {labels: [aiops.io/switch]}
nodes:
  - {id: "n[1-2]", devices: {count: 4, kind: gpu}, labels: {aiops.io/switch: leaf1}}
  - {id: "m[1-4]", devices: {count: 4, kind: gpu}, labels: {aiops.io/switch: leaf2}}
links: [{tier: node, gbps: 100}, {tier: switch, gbps: 200}, {tier: device, gbps: 2400}]
"""
ACTIVATIONS = (
    8 * 4096 * 8192 * 2
)  # bytes: 8 microbatches of 4,096 tokens, hidden 8,192, 16 bits (docs of the model)
PARAMS = 70 * 10**9
LAYERS = 80


def place(tmp_path: Path, fleet: str, **fields: Any) -> dict[str, Any]:
    (tmp_path / "fleet.yaml").write_text(fleet)
    (tmp_path / "job.yaml").write_text(json.dumps({"command": ["train"], "device": "gpu", **fields}))
    answer = ask("place", "--fleet", tmp_path / "fleet.yaml", "--job", tmp_path / "job.yaml")
    assert isinstance(answer, dict)
    return answer


def ns(bits: float, bits_per_s: float) -> Any:
    return pytest.approx(bits / bits_per_s * 1e9, rel=1e-6)


def test_groups_within_leaves_cost_what_their_rings_carry(tmp_path: Path) -> None:
    answer = place(
        tmp_path, MIXED, ranks=32, layout={"tp": 8, "dp": 2, "pp": 2}, topology={"fabric": "infiniband"}
    )
    assert [rank["node"] for rank in answer["ranks"]] == ["a1"] * 8 + ["a2"] * 8 + ["b1"] * 8 + ["b2"] * 8
    tp, dp, pp = (answer["groups"][group] for group in ("tp", "dp", "pp"))
    assert (tp["groups"], tp["ranks"], tp["bytes"]) == (4, 8, 4 * ACTIVATIONS * LAYERS // 2)
    assert (tp["tier"], tp["time_ns"]) == ("device", ns(8 * tp["bytes"] * 2 * 7 / 8, 3600e9))
    # a node has 8 ranks, each in a data group of its own: 8 rings cross its way up, each with 2 (2-1)/2 of the gradients
    assert (dp["groups"], dp["ranks"], dp["bytes"]) == (16, 2, 2 * PARAMS // 16)
    assert (dp["tier"], dp["time_ns"]) == ("node", ns(8 * 8 * dp["bytes"], 400e9))
    # and 8 pipelines leave it for the other leaf
    assert (pp["groups"], pp["ranks"], pp["bytes"]) == (16, 2, ACTIVATIONS // 8)
    assert (pp["tier"], pp["time_ns"]) == ("node", ns(8 * 8 * pp["bytes"], 400e9))
    assert (dp["spread"], pp["spread"]["leaf"], pp["spread"]["spine"]) == (
        {"node": 2, "leaf": 1, "spine": 1, "site": 1}, 2, 1,
    )  # fmt: skip


def test_a_gang_over_all_fabrics_pays_for_the_slowest_way_up(tmp_path: Path) -> None:
    answer = place(tmp_path, MIXED, ranks=64, layout={"tp": 8, "dp": 4, "pp": 2})
    dp, pp = answer["groups"]["dp"], answer["groups"]["pp"]
    # stage 1 is on c1, c2, d1, d2: its 8 data groups of 4 cross from one spine to another over 10 Gbit/s
    assert (dp["tier"], dp["time_ns"]) == ("spine", ns(8 * 8 * dp["bytes"] * 2 * 3 / 4, 10e9))
    assert (pp["tier"], pp["time_ns"]) == ("spine", ns(8 * 32 * pp["bytes"], 10e9))
    assert " over " not in answer["because"][0].partition(";")[0]  # no class of links carries it


def test_a_fabric_that_a_job_requires_is_that_of_its_nodes(tmp_path: Path) -> None:
    job = {"ranks": 16, "layout": {"tp": 8, "dp": 2}}
    for fabric, nodes in (("infiniband", {"a1", "a2"}), ("roce", {"c1", "c2"}), ("ethernet", {"d1", "d2"})):
        answer = place(tmp_path, MIXED, **job, topology={"fabric": fabric})
        assert {rank["node"] for rank in answer["ranks"]} == nodes
    answer = place(tmp_path, MIXED, ranks=32, topology={"fabric": "roce"})
    assert (answer["placed"], answer["ranks"], answer["groups"], answer["because"]) == (False, [], {}, [])
    first, barrier = answer["blocked_by"]
    assert first["code"] == "never_fits"
    assert [barrier[k] for k in ("domains", "fitting", "largest", "needs")] == [8, 2, 16, 32]
    assert barrier["unblock"] == "drop this constraint, in spine sp1"


def test_switches_that_labels_name_are_tiers_like_any_other(tmp_path: Path) -> None:
    job = {
        "ranks": 12,
        "layout": {"tp": 4, "dp": 3},
        "topology": {"require": "switch", "groups": {"tp": "node"}},
    }
    answer = place(tmp_path, LABELLED, **job)
    assert {rank["node"] for rank in answer["ranks"]} <= {"m1", "m2", "m3", "m4"}
    assert {rank["rank"] for rank in answer["ranks"]} == set(range(12))
    assert len({rank["device"] for rank in answer["ranks"]}) == 12
    dp = answer["groups"]["dp"]
    assert (dp["tier"], dp["time_ns"]) == ("node", ns(8 * 4 * dp["bytes"] * 2 * 2 / 3, 100e9))
    assert dp["spread"] == {"node": 3, "switch": 1, "site": 1}
