"""The links between a node's GPUs in a fleet file: three forms, one name for all nodes alike, and bad input."""

from __future__ import annotations

import io
from pathlib import Path

import pytest

from fleet import topo_outputs
from unidle.errors import BadInput
from unidle.files.fleet import fleet_from_mapping, load_fleet
from unidle.files.snapshot import PlacementSnapshot, load_snapshot, write_snapshot
from unidle.fleet import Fleet
from unidle.fleet.links import parse_topo


def load(tmp_path: Path, text: str) -> Fleet:
    path = tmp_path / "fleet.yaml"
    path.write_text(text)
    return load_fleet(path)


def refused(tmp_path: Path, links: str, gpus: int = 2, name: str = "a") -> str:
    text = f"gpu_links:\n  a: {links}\nnodes:\n  - {{id: n, devices: {{count: {gpus}, kind: gpu}}, gpu_links: {name}}}\n"
    with pytest.raises(BadInput) as caught:
        load(tmp_path, text)
    return str(caught.value).replace(str(tmp_path) + "/", "")


@pytest.mark.parametrize("output", ["A100_X8", "H100_X8", "PCIE_X8"])
def test_the_output_of_nvidia_smi_lies_beside_the_fleet_file(tmp_path: Path, output: str):
    (tmp_path / "topo.txt").write_text(getattr(topo_outputs, output))
    fleet = load(
        tmp_path,
        """
        gpu_links: {hgx: {topo: topo.txt}}
        nodes: [{id: "n[1-3]", devices: {count: 8, kind: gpu}, gpu_links: hgx}]
        """,
    )
    assert fleet.gpu_links == {"hgx": parse_topo(getattr(topo_outputs, output))}
    assert [node.gpu_links for node in fleet.nodes] == ["hgx"] * 3


def test_islands_say_what_is_inside_and_between(tmp_path: Path):
    fleet = load(
        tmp_path,
        """
        gpu_links: {pairs: {islands: [[0, 2], [1, 3]], link: NV4, between: NODE, numa: [0, 0, 0, null]}}
        nodes: [{id: n, devices: {count: 4, kind: gpu}, gpu_links: pairs}]
        """,
    )
    links = fleet.gpu_links["pairs"]
    assert [links.way(0, k) for k in (1, 2, 3)] == ["NODE", "NV4", "NODE"]
    assert links.gpus == (0, 1, 2, 3) and links.numa == (0, 0, 0, None)


def test_a_matrix_may_be_of_gpus_that_are_not_the_first(tmp_path: Path):
    fleet = load(
        tmp_path,
        """
        gpu_links: {a: {matrix: [X XGMI2, XGMI2 X], gpus: [4, 6], nics: {mlx5_0: PIX SYS}}}
        nodes: [{id: n, devices: [{kind: gpu, index: 4}, {kind: gpu, index: 6}, {kind: cpu}], gpu_links: a}]
        """,
    )
    assert fleet.gpu_links["a"].way(6, 4) == "XGMI2"
    assert fleet.gpu_links["a"].nics == {"mlx5_0": ("PIX", "SYS")}


def test_a_large_fleet_has_the_links_of_alike_nodes_once(tmp_path: Path):
    nodes = [{"id": "n[1-10000]", "devices": {"count": 8, "kind": "gpu"}}]
    bare = fleet_from_mapping({"nodes": nodes}, "test")
    links = {"hgx": {"islands": [[0, 1, 2, 3], [4, 5, 6, 7]], "link": "NV12"}}
    wired = fleet_from_mapping({"nodes": [{**nodes[0], "gpu_links": "hgx"}], "gpu_links": links}, "test")
    sizes = []
    for fleet in (bare, wired):
        out = io.BytesIO()
        write_snapshot(PlacementSnapshot(1, fleet, {}, ()), out)
        sizes.append(len(out.getvalue()))
        (tmp_path / "snapshot").write_bytes(out.getvalue())
        assert load_snapshot(tmp_path / "snapshot").fleet == fleet
    assert sizes[1] - sizes[0] < 10_000 * len("hgx") + 1_000


@pytest.mark.parametrize(
    ("links", "says"),
    [
        ("{}", "fleet.yaml:2: gpu_links.a: it has nothing; give one of topo"),
        ("{topo: x, islands: [[0, 1]]}", "it has topo and islands; give one of"),
        (
            "{islands: [[0, 1]], link: NVLINK}",
            "fleet.yaml:2: gpu_links.a.link: must be one of NV1 and up, XGMI1 and up",
        ),
        ("{islands: [[0, 1], [1]]}", "gpu_links.a.islands[1][0]: the GPU is in two islands, or twice in one (got 1)"),
        ("{islands: [[0, 1]], numa: [0]}", "gpu_links.a.numa: 1 entry for 2 GPUs; give one for each GPU"),
        ("{islands: [[0, 1]], gpus: [0, 1]}", "gpu_links.a.gpus: the islands name the GPUs; remove it"),
        ("{matrix: [X NV4, NV3 X]}", "gpu_links.a.matrix[1]: GPUs 0 and 1 disagree on their link (got 'NV4 and NV3')"),
        ("{matrix: [X NV4]}", "gpu_links.a.matrix[0]: 2 words for 1 GPU (got 'X NV4')"),
        ("{matrix: [X FOO, FOO X]}", "gpu_links.a.matrix[0]: not the kind of link to the GPU of column 2 (got 'FOO')"),
        ("{matrix: [NV4 X, X NV4]}", "not the kind of link to the GPU of column 1 (got 'NV4'); X for the GPU itself"),
        ("{matrix: [X NV4, NV4 X], gpus: [1, 1]}", "gpu_links.a.gpus: 1 GPU for 2 lines of matrix"),
        ("{islands: [[0, 1, 2]]}", "fleet.yaml:4: nodes[0].gpu_links: a has links of GPUs 0-2, and the node has 0-1"),
        ("{islands: [[0, 7]]}", "a has links of GPUs 0, 7, and the node has 0-1 (got 'a'); name links of just"),
        ("{topo: none.txt}", "fleet.yaml:2: gpu_links.a.topo: none.txt: there is no such file"),
        (f"{{islands: [{[*range(40)]}, {[*range(40, 80)]}]}}", "gpu_links.a.islands: more than 64 GPUs; make it smaller"),
        ("{islands: [[0, 1]], links: NV4}", "gpu_links.a.links: unknown field; the closest known field is link"),
    ],
)  # fmt: skip
def test_bad_links_are_one_clear_error(tmp_path: Path, links: str, says: str):
    assert says in refused(tmp_path, links)


def test_links_that_are_not_there_are_named(tmp_path: Path):
    says = refused(tmp_path, "{islands: [[0, 1]]}", name="b")
    assert says.startswith(
        "fleet.yaml:4: nodes[0].gpu_links: there is no such entry in gpu_links (got 'b'); the closest is a"
    )


def test_an_error_in_the_file_beside_names_both_files_and_the_line(tmp_path: Path):
    (tmp_path / "topo.txt").write_text("\tGPU0\tGPU1\nGPU0\t X \tFOO\nGPU1\tFOO\t X \n")
    says = refused(tmp_path, "{topo: topo.txt}")
    assert says.startswith("fleet.yaml:2: gpu_links.a.topo: topo.txt:2: not a kind of link (got 'FOO')")


def test_gpus_of_several_vendors_are_counted_as_their_tools_count_them(tmp_path: Path):
    fleet = load(
        tmp_path,
        """
        nodes:
          - id: n
            devices:
              - {count: 2, kind: gpu}
              - {count: 2, kind: gpu, vendor: amd}
              - {kind: cpu}
              - {kind: gpu, vendor: amd}
              - {kind: gpu, vendor: ascend, number: 5}
        """,
    )
    numbers = [(device.vendor, device.number) for device in fleet.devices() if device.kind == "gpu"]
    assert numbers == [("nvidia", None)] * 2 + [("amd", 0), ("amd", 1), ("amd", 2), ("ascend", 5)]
