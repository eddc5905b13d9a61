"""GPUs of AMD as the kernel lists them, on trees written from the documented format."""

from __future__ import annotations

from pathlib import Path

from fleet import kfd_trees
from unidle.fleet.amd import gpus_by_kfd
from unidle.place.nodes.links import choose_gpus

GIB = 1 << 30


def test_eight_linked_gpus_have_their_name_memory_identity_and_numa_node(tmp_path: Path):
    kfd_trees.mi300x(tmp_path)
    gpus, links = gpus_by_kfd(tmp_path, ())
    assert [gpu.number for gpu in gpus] == list(range(8))
    assert {(gpu.model, gpu.memory_bytes) for gpu in gpus} == {("AMD Instinct MI300X OAM", 192 * GIB)}
    assert (gpus[0].uuid, gpus[7].uuid) == ("GPU-5eed000000000000", "GPU-5eed000000000007")
    assert (gpus[0].bus_id, gpus[7].bus_id) == ("0000:05:00.0", "0000:75:00.0")
    assert {links.way(a, b) for a in range(8) for b in range(a)} == {"XGMI1"}
    assert links.numa == (0,) * 4 + (1,) * 4
    assert links.cpus[0] == "0-95" and links.cpus[7] == "96-191"


def test_dies_of_one_package_are_nearer_than_those_of_two(tmp_path: Path):
    kfd_trees.mi250x(tmp_path)
    _, links = gpus_by_kfd(tmp_path, ())
    assert [links.way(0, k) for k in range(1, 8)] == [
        "XGMI4", "XGMI1", "XGMI2", "XGMI", "XGMI", "XGMI1", "XGMI2",
    ]  # fmt: skip
    pair = choose_gpus(links, [0, 2, 3, 5, 7], 2)
    assert pair is not None and pair.gpus == (2, 3)


def test_cards_without_a_bridge_are_as_near_as_pcie_makes_them(tmp_path: Path):
    kfd_trees.mi210_pair(tmp_path)
    gpus, links = gpus_by_kfd(tmp_path, ())
    assert len(gpus) == 2 and links.way(0, 1) == "SYS"
    assert [gpu.uuid for gpu in gpus] == ["", ""]  # they have no unique_id


def test_the_name_comes_from_the_card_else_from_libdrm_else_from_the_instruction_set(tmp_path: Path):
    kfd_trees.mi210_pair(tmp_path)
    table = tmp_path / "amdgpu.ids"
    table.write_text(
        "# List of AMDGPU IDs\n1.0.0\n740F,\t00,\tnot this one\n740F,\t02,\tAMD Instinct MI210\n"
    )
    assert gpus_by_kfd(tmp_path, (tmp_path / "none", table))[0][0].model == "AMD Instinct MI210"
    assert gpus_by_kfd(tmp_path, ())[0][0].model == "gfx90a"
    (tmp_path / "bus/pci/devices/0000:23:00.0/product_name").write_text("Instinct MI210 OEM\n")
    assert gpus_by_kfd(tmp_path, (table,))[0][0].model == "Instinct MI210 OEM"


def test_partitions_that_share_an_identity_are_named_by_their_number(tmp_path: Path):
    kfd_trees.cpus(tmp_path, 1)
    for k in range(3):
        kfd_trees.gpu(tmp_path, 1 + k, 0x10 + k, 0x74A1, 90402, 96 * GIB, 7 if k < 2 else 8, 0)
    assert [gpu.uuid for gpu in gpus_by_kfd(tmp_path, ())[0]] == ["", "", "GPU-0000000000000008"]


def test_a_machine_with_the_driver_but_no_gpu_has_none(tmp_path: Path):
    kfd_trees.cpus(tmp_path, 2)
    assert gpus_by_kfd(tmp_path, ())[0] == ()
    assert gpus_by_kfd(tmp_path / "nowhere", ())[0] == ()
