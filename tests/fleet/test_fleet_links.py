"""Links inside a node, read from ``nvidia-smi topo -m`` and from NVML."""

from __future__ import annotations

from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from fleet import topo_outputs
from unidle.errors import BadInput
from unidle.fleet.links import GpuLinks, closeness, parse_topo
from unidle.fleet.nvml import links_by_nvml, numa_node, short_bus_id


def test_a_switched_machine_has_the_same_links_between_all_gpus():
    links = parse_topo(topo_outputs.A100_X8)
    assert links.gpus == tuple(range(8))
    assert {links.way(a, b) for a in range(8) for b in range(8) if a != b} == {"NV12"}
    assert links.numa == (0,) * 4 + (1,) * 4
    assert links.cpus[0] == "0-63,128-191"


def test_nics_are_told_from_gpus_and_have_their_real_names():
    links = parse_topo(topo_outputs.H100_X8)
    assert links.gpus == tuple(range(8))
    assert links.way(0, 7) == "NV18"
    assert links.nics["mlx5_3"][3] == "PXB" and links.nics["mlx5_3"][7] == "SYS"
    assert len(links.nics) == 8


def test_pcie_levels_are_told_apart():
    links = parse_topo(topo_outputs.PCIE_X8)
    assert [links.way(0, k) for k in (1, 2, 4)] == ["PIX", "PXB", "SYS"]
    assert [links.way(4, k) for k in (5, 6)] == ["PHB", "NODE"]
    assert links.nics == {}


def test_a_mixed_machine_without_tabs_reads_the_same():
    links = parse_topo(topo_outputs.MIXED)
    assert links.way(0, 1) == "NV4" and links.way(2, 3) == "SYS"
    assert links.nics == {"mlx5_0": ("PIX", "PXB", "NODE", "SYS"), "mlx5_1": ("SYS", "SYS", "SYS", "PHB")}
    assert links.numa == (0, 0, 0, 1)


def test_one_gpu_has_no_links():
    assert parse_topo("\tGPU0\tCPU Affinity\tNUMA Affinity\nGPU0\t X \t0-7\tN/A\n").numa == (None,)


def test_nvlink_is_closer_than_any_way_over_pcie():
    ways = ["NV18", "NV1", "PIX", "PXB", "PHB", "NODE", "SYS"]
    assert sorted(ways, key=closeness, reverse=True) == ways


@pytest.mark.parametrize(
    ("text", "problem"),
    [
        ("", "there is no line with the names of the GPUs"),
        ("No devices were found", "there is no line with the names"),
        ("\tGPU0\tGPU1\nGPU0\t X \tNV4\n", "the row of a column is missing"),
        ("\tGPU0\tGPU1\nGPU0\t X \nGPU1\tNV4\t X \n", "1 link for 2 columns"),
        ("\tGPU0\tGPU1\nGPU0\t X \tFOO\nGPU1\tFOO\t X \n", "not a kind of link"),
        ("\tGPU0\tGPU1\nGPU0\t X \tPIX\nGPU1\tSYS\t X \n", "GPU0 and GPU1 disagree"),
        ("\tGPU0\tGPU1\nGPU0\t X \tPIX\nGPU0\t X \tPIX\n", "a row comes twice"),
    ],
)
def test_what_is_no_matrix_is_refused_with_its_line(text: str, problem: str):
    with pytest.raises(BadInput, match=problem):
        parse_topo(text)


words = st.sampled_from(
    [
        "GPU0",
        "GPU1",
        "NIC0",
        "X",
        " X ",
        "NV4",
        "PIX",
        "SYS",
        "N/A",
        "CPU",
        "Affinity",
        "0-7",
        "0",
        "",
        "é",
        "\x1b[4m",
        "GPU99999999999",
    ]
)


@given(rows=st.lists(st.lists(words, max_size=6), max_size=6), between=st.sampled_from(["\t", " "]))
def test_any_text_is_a_matrix_or_one_clear_error(rows: list[list[str]], between: str):
    found: GpuLinks | BadInput
    try:
        found = parse_topo("\n".join(between.join(row) for row in rows))
    except BadInput as error:
        found = error
    assert "\n" not in str(found)
    if isinstance(found, GpuLinks):
        assert all(len(row) == len(found.gpus) for row in found.ways)


class RecordedNvml:
    """NVML's answers about a machine, written from the API reference: no machine gave them."""

    class NVMLError(Exception):
        pass

    NVML_NVLINK_MAX_LINKS = 18

    def __init__(
        self, buses: list[str], links: dict[tuple[int, int], str | None], levels: dict[tuple[int, int], int]
    ):
        self._buses, self._links, self._levels = buses, links, levels

    def nvmlDeviceGetCount(self) -> int:  # noqa: N802
        return len(self._buses)

    def nvmlDeviceGetHandleByIndex(self, index: int) -> int:  # noqa: N802
        return index

    def nvmlDeviceGetPciInfo(self, handle: int) -> Any:  # noqa: N802
        return SimpleNamespace(busId=self._buses[handle].encode())

    def nvmlDeviceGetNvLinkState(self, device: int, link: int) -> int:  # noqa: N802
        if (device, link) not in self._links:
            raise self.NVMLError("not supported")
        return int(self._links[device, link] is not None)

    def nvmlDeviceGetNvLinkRemotePciInfo(self, device: int, link: int) -> Any:  # noqa: N802
        return SimpleNamespace(busId=self._links[device, link])

    def nvmlDeviceGetNvLinkRemoteDeviceType(self, handle: int, link: int) -> int:  # noqa: N802
        return 0 if self._links[handle, link] in self._buses else 2

    def nvmlDeviceGetTopologyCommonAncestor(self, device1: int, device2: int) -> int:  # noqa: N802
        return self._levels[device1, device2]


def test_gpus_on_switches_have_the_links_of_the_one_with_fewer():
    buses = [f"00000000:{k:02X}:00.0" for k in (7, 15, 71)]
    switch = "00000000:C4:00.0"
    links: dict[tuple[int, int], str | None] = {(g, k): switch for g in range(3) for k in range(12)}
    links[2, 11] = None  # a link that is down
    found = links_by_nvml(RecordedNvml(buses, links, {}), Path("/nowhere"))
    assert found.way(0, 1) == "NV12" and found.way(0, 2) == found.way(2, 0) == "NV11"


def test_bridged_pairs_and_pcie_levels_are_told_apart(tmp_path: Path):
    buses = ["00000000:3B:00.0", "00000000:5E:00.0", "00000000:AF:00.0"]
    links: dict[tuple[int, int], str | None] = {(0, k): buses[1] for k in range(4)} | {
        (1, k): buses[0] for k in range(4)
    }
    for bus, node in zip(buses, ("0", "0", "-1"), strict=True):
        device = tmp_path / "bus/pci/devices" / short_bus_id(bus)
        device.mkdir(parents=True)
        (device / "numa_node").write_text(node + "\n")
    cpus = tmp_path / "devices/system/node/node0"
    cpus.mkdir(parents=True)
    (cpus / "cpulist").write_text("0-15,32-47\n")
    found = links_by_nvml(RecordedNvml(buses, links, {(0, 2): 50, (1, 2): 40}), tmp_path)
    assert found == GpuLinks(
        (0, 1, 2), (("X", "NV4", "SYS"), ("NV4", "X", "NODE"), ("SYS", "NODE", "X")), (0, 0, None), ("0-15,32-47", "0-15,32-47", "")
    )  # fmt: skip
    assert numa_node("0000:ff:00.0", tmp_path) is None
