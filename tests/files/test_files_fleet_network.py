"""The network in a fleet file: tiers by labels, link classes, links of whole tiers, bounds."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from unidle.errors import BadInput
from unidle.files.fleet import fleet_from_mapping, fleet_to_yaml, load_fleet
from unidle.fleet import Link, Tier
from unidle.fleet.labels import kinds_of, well_known

GPU = {"kind": "gpu"}


def nodes(*labels: dict[str, str]) -> list[dict[str, Any]]:
    return [{"id": f"n{k}", "devices": GPU, "labels": given} for k, given in enumerate(labels)]


def load(tmp_path: Path, text: str) -> Any:
    path = tmp_path / "fleet.yaml"
    path.write_text(text)
    return load_fleet(path)


def refused(tmp_path: Path, text: str) -> str:
    with pytest.raises(BadInput) as caught:
        load(tmp_path, text)
    return str(caught.value).removeprefix(str(tmp_path) + "/")


def test_any_label_that_the_operator_names_is_a_tier():
    given = nodes({"aiops.io/switch": "leaf1"}, {"aiops.io/switch": "leaf2"}, {"aiops.io/switch": "leaf1"})
    fleet = fleet_from_mapping({"nodes": given, "topology": {"labels": ["aiops.io/switch"]}}, "test")
    assert fleet.tiers == (
        Tier("site", "site"),
        Tier("leaf1", "switch", "site"),
        Tier("leaf2", "switch", "site"),
    )
    assert [node.parent for node in fleet.nodes] == ["leaf1", "leaf2", "leaf1"]


def test_well_known_labels_are_found_without_being_named():
    keys = (
        "network.topology.nvidia.com/leaf",
        "network.topology.nvidia.com/spine",
        "topology.kubernetes.io/zone",
    )
    fleet = fleet_from_mapping(
        {
            "nodes": nodes(
                dict(zip(keys, ("l1", "s1", "z1"), strict=True)),
                dict(zip(keys, ("l2", "s1", "z1"), strict=True)),
            )
        },
        "test",
    )
    assert [(t.id, t.kind, t.parent) for t in fleet.tiers] == [
        ("site", "site", None), ("z1", "zone", "site"), ("s1", "spine", "z1"), ("l1", "leaf", "s1"), ("l2", "leaf", "s1")
    ]  # fmt: skip


def test_label_families_are_ordered_from_the_node_upwards():
    aws = [f"topology.k8s.aws/network-node-layer-{k}" for k in (1, 2, 3)]
    assert well_known(aws) == tuple(reversed(aws))
    topograph = [f"fabric.topograph.run/tier-{k}" for k in (2, 0, 10, 1)]
    assert [key[-2:].strip("-") for key in well_known([*topograph, "accelerator.topograph.run/domain"])] == [
        "in",
        "0",
        "1",
        "2",
        "10",
    ]
    gce = [f"cloud.google.com/gce-topology-{k}" for k in ("block", "host", "subblock")]
    assert kinds_of(well_known([*gce, "topology.kubernetes.io/zone"])) == (
        "host",
        "subblock",
        "block",
        "zone",
    )
    assert well_known(["kubernetes.io/hostname", "zone"]) == ()
    own = ("a.io/switch", "b.io/switch", "c.io/node", "d.io/fleet")
    assert kinds_of(own) == own, (
        "the fleet is the whole, and a job that must stay in one of these is kept there"
    )


def test_a_node_without_a_label_hangs_from_its_next_tier():
    given = nodes({"r": "r1", "z": "z1"}, {"z": "z1"}, {})
    fleet = fleet_from_mapping({"nodes": given, "topology": {"labels": ["r", "z"]}}, "test")
    assert [node.parent for node in fleet.nodes] == ["r1", "z1", "site"]


def test_a_value_that_names_two_things_is_told_apart():
    given = nodes({"r": "a", "z": "a"}, {"r": "n0", "z": "b"})
    fleet = fleet_from_mapping({"nodes": given, "topology": {"labels": ["r", "z"]}}, "test")
    assert [t.id for t in fleet.tiers] == ["site", "z-a", "b", "r-a", "r-n0"]


def test_no_labels_are_used_where_none_are_wanted_or_tiers_are_declared():
    given = nodes({"topology.kubernetes.io/zone": "z1"})
    assert len(fleet_from_mapping({"nodes": given, "topology": {"labels": []}}, "test").tiers) == 1
    declared = {"nodes": given, "tiers": [{"id": "t", "kind": "rack"}]}
    assert fleet_from_mapping(declared, "test").nodes[0].parent == "t"


def test_a_fleet_by_labels_survives_the_way_through_text(tmp_path: Path):
    given = nodes({"r": "r1", "z": "z1"}, {"r": "r2", "z": "z1"})
    links = [{"tier": "r", "gbps": 400, "fabric": "roce"}, {"a": "n0", "b": "r1", "gbps": 100}]
    fleet = fleet_from_mapping({"nodes": given, "topology": {"labels": ["r", "z"]}, "links": links}, "test")
    assert load(tmp_path, fleet_to_yaml(fleet)) == fleet


def test_classes_stand_on_tiers_nodes_and_links(tmp_path: Path):
    text = """
        tiers: [{id: l, kind: leaf, fabric: infiniband}]
        nodes: [{id: n, devices: {kind: gpu}, fabric: roce}]
        links: [{a: n, b: l, gbps: 400, fabric: ethernet}, {tier: device, gbps: 3600, latency_us: 1}]
    """
    fleet = load(tmp_path, text)
    assert (fleet.tiers[0].fabric, fleet.nodes[0].fabric) == ("infiniband", "roce")
    assert fleet.links == (
        Link("n", "l", 400 * 10**9, 0, "ethernet"),
        Link("", "", 3600 * 10**9, 1000, None, "device"),
    )
    assert load(tmp_path, fleet_to_yaml(fleet)) == fleet


NODE = "nodes: [{id: n1, labels: {r: r1}, devices: {kind: cpu}}]"


@pytest.mark.parametrize(
    ("text", "problem"),
    [
        ("topology: {labels: [r, z]}\nnodes:\n- {id: a, labels: {r: r1, z: z1}, devices: {kind: cpu}}\n- {id: b, labels: {r: r1, z: z2}, devices: {kind: cpu}}",
         "fleet.yaml:4: nodes[1].labels.r: r r1 has two parents: z z1 by a node before, z z2 here"),
        ("topology: {labels: [r, z]}\nnodes:\n- {id: a, labels: {r: r1, z: z1}, devices: {kind: cpu}}\n- {id: b, labels: {r: r1}, devices: {kind: cpu}}",
         "fleet.yaml:4: nodes[1].labels.r: r r1 has two parents: z z1 by a node before, nothing above it here"),
        (f"topology: {{labels: [rr]}}\n{NODE}", "topology.labels[0]: there is no such label on any node (got 'rr'); the closest is r"),
        (f"topology: {{labels: [r, r]}}\n{NODE}", "topology.labels[1]: the label is given twice"),
        (f"topology: {{labels: [kubernetes.io/hostname]}}\n{NODE}", "names the node itself"),
        (f"topology: {{labels: [r]}}\ntiers: [{{id: t, kind: x}}]\n{NODE}", "topology.labels: the tiers are declared too"),
        (f"topology: {{label: [r]}}\n{NODE}", "topology.label: unknown field"),
        ("topology: {labels: [r]}\nnodes: [{id: n1, labels: {r: 'a b'}, devices: {kind: cpu}}]", "nodes[0].labels.r: names a tier, so it must be letters"),
        (f"{NODE}\nlinks: [{{gbps: 1}}]", "links[0].a: the field is missing; give both ends, a and b, or the kind"),
        (f"{NODE}\nlinks: [{{a: n1, gbps: 1}}]", "links[0].b: the field is missing"),
        (f"{NODE}\nlinks: [{{a: n1, tier: node, gbps: 1}}]", "links[0].tier: the link has ends too"),
        (f"{NODE}\nlinks: [{{tier: lef, gbps: 1}}]", "links[0].tier: there is no such kind of tier (got 'lef')"),
        (f"{NODE}\nlinks: [{{tier: node, gbps: 1, fabric: wifi}}]", "links[0].fabric: must be infiniband, roce, ethernet or nvlink"),
        ("nodes: [{id: 'n[1-1000000]', devices: {kind: cpu}}]", "nodes[0].id: it expands to more than 200,000 names"),
        ("nodes: [{id: 'n[1-1000]x[1-1000]', devices: {kind: cpu}}]", "it expands to more than 200,000 names"),
        ("nodes: [{id: 'a[1-150000]', devices: {kind: cpu}}, {id: 'b[1-150000]', devices: {kind: cpu}}]", "nodes[1]: more than 200,000 nodes"),
    ],
)  # fmt: skip
def test_a_wrong_network_is_refused(tmp_path: Path, text: str, problem: str):
    assert problem in refused(tmp_path, text)


def test_a_million_nodes_one_by_one_are_refused_by_size(tmp_path: Path):
    path = tmp_path / "fleet.yaml"
    with path.open("w") as file:
        file.write("nodes:\n")
        for k in range(1_000_000):
            file.write(f"- {{id: n{k}, devices: {{kind: gpu}}}}\n")
    with pytest.raises(BadInput, match="the file is too large: at most 8,388,608 bytes are read"):
        load_fleet(path)
