"""GPUs of every vendor on this machine: trees of sysfs and outputs of tools written from the documented formats."""

# ruff: noqa: N802 - the names are those of NVML
from __future__ import annotations

from pathlib import Path
from types import SimpleNamespace
from typing import Literal

import pytest

from fleet import kfd_trees, npu_outputs, topo_outputs
from unidle.doctor import gpu as doctor
from unidle.engine.local.devices.discovery import discover, find_amd, find_ascend, find_nvidia, list_nvidia
from unidle.engine.local.devices.slicing import Grant, local_slicer, wish_of
from unidle.engine.local.devices.visible import hidden_amd, visible_devices
from unidle.engine.local.launch import environments
from unidle.engine.protocol import StartGang
from unidle.errors import CannotRun
from unidle.files.document import Bounds
from unidle.files.fleet import fleet_from_mapping, fleet_to_yaml
from unidle.files.tree import parse
from unidle.fleet import Device, Fleet, Node
from unidle.jobs import JobSpec, RankPlace, Share

HIDE_NVIDIA = {"CUDA_VISIBLE_DEVICES": ""}


def program(directory: Path, name: str, answers: dict[str, str], code: int = 0) -> None:
    """A real program that prints what the tool would, by its arguments."""
    directory.mkdir(exist_ok=True)
    cases = ""
    for k, (arguments, text) in enumerate(answers.items()):
        (directory / f"{name}.{k}").write_text(text)
        cases += f'"{arguments}") cat "$0.{k}" ;;\n'
    path = directory / name
    path.write_text(
        f'#!/bin/sh\nPATH=/usr/bin:/bin\ncase "$*" in\n{cases}*) echo "bad option" >&2; exit 9 ;;\nesac\nexit {code}\n'
    )
    path.chmod(0o755)


def ascend(root: Path, info: str, topo: str, chips: int = 8, code: int = 0) -> dict[str, str]:
    """An Ascend machine below ``root``; returns the environment in which its tool is found."""
    (root / "dev").mkdir(exist_ok=True)
    for k in range(chips):
        (root / f"dev/davinci{k}").touch()
    program(root / "bin", "npu-smi", {"info": info, "info -t topo": topo}, code)
    return {**HIDE_NVIDIA, "PATH": str(root / "bin")}


def test_a_machine_of_amd_has_its_gpus_with_links_and_addresses(tmp_path: Path) -> None:
    kfd_trees.mi300x(tmp_path / "sys")
    fleet = discover(root=tmp_path, environ=HIDE_NVIDIA)
    (node,) = fleet.nodes
    assert [d.id for d in node.devices] == [f"local/{k}" for k in range(8)]
    assert {(d.vendor, d.kind, d.model, d.memory_bytes, d.number) for d in node.devices} == {
        ("amd", "gpu", "AMD Instinct MI300X OAM", 192 << 30, None)
    }
    assert node.labels["gpu7.pci"] == "0000:75:00.0"
    assert fleet.gpu_links[node.gpu_links].way(0, 7) == "XGMI1"
    assert fleet.source == "discovered: 8 of 8 AMD GPUs by KFD"


def test_a_machine_of_ascend_has_its_npus_with_links(tmp_path: Path) -> None:
    environ = ascend(tmp_path, npu_outputs.A2_INFO, npu_outputs.A2_TOPO)
    fleet = discover(root=tmp_path, environ=environ)
    assert {(d.vendor, d.model, d.memory_bytes) for d in fleet.devices()} == {
        ("ascend", "Ascend 910B3", 64 << 30)
    }
    assert fleet.gpu_links["local"].way(0, 7) == "HCCS"
    assert fleet.source == "discovered: 8 of 8 Ascend NPUs by npu-smi"


def test_gpus_of_several_vendors_are_one_node_that_survives_the_way_through_a_file(tmp_path: Path) -> None:
    kfd_trees.mi250x(tmp_path / "sys")
    environ = ascend(tmp_path, npu_outputs.A3_INFO, npu_outputs.A3_TOPO, chips=4)
    fleet = discover(root=tmp_path, environ=environ)
    (node,) = fleet.nodes
    assert [(d.index, d.vendor, d.number) for d in node.devices] == [
        *((k, "amd", None) for k in range(8)),
        *((8 + k, "ascend", k) for k in range(4)),
    ]
    links = fleet.gpu_links["local"]
    assert (links.way(0, 1), links.way(8, 9), links.way(7, 8)) == ("XGMI4", "SIO", "NA")
    document = parse(fleet_to_yaml(fleet), "fleet.yaml", "fleet", Bounds())
    assert isinstance(document.data, dict)
    again = fleet_from_mapping(document.data, "fleet.yaml")
    assert again.gpu_links == fleet.gpu_links and again.nodes[0].gpu_links == "local"
    assert [(d.vendor, d.number, d.uuid) for d in again.devices()] == [
        (d.vendor, d.number, d.uuid) for d in node.devices
    ]


@pytest.mark.parametrize(
    ("environ", "left"),
    [
        ({"ROCR_VISIBLE_DEVICES": "1,GPU-5eed000000000006"}, [1, 6]),
        ({"ROCR_VISIBLE_DEVICES": "4,5,6,7", "HIP_VISIBLE_DEVICES": "0,3"}, [4, 7]),
        ({"HIP_VISIBLE_DEVICES": "2"}, [2]),
        ({"ROCR_VISIBLE_DEVICES": ""}, []),
    ],
)
def test_gpus_that_variables_hide_are_left_out_with_their_links(
    tmp_path: Path, environ: dict[str, str], left: list[int]
) -> None:
    kfd_trees.mi300x(tmp_path / "sys")
    found = find_amd(tmp_path, environ)
    assert [gpu.number for gpu in found.gpus] == left
    fleet = discover(2, tmp_path, {**HIDE_NVIDIA, **environ})
    assert [d.index for d in fleet.devices()] == (left or [0, 1])
    if len(left) > 1:
        assert fleet.gpu_links["local"].gpus == tuple(left)
        assert fleet.gpu_links["local"].numa == tuple(k // 4 for k in left)


def test_hip_counts_what_rocr_left() -> None:
    assert hidden_amd(
        ["GPU-a", "GPU-b", "GPU-c"], {"ROCR_VISIBLE_DEVICES": "GPU-b,2", "HIP_VISIBLE_DEVICES": "1"}
    ) == {0, 1}
    assert hidden_amd(["", ""], {}) == set()


def test_a_vendor_without_a_trace_is_not_asked(tmp_path: Path) -> None:
    program(tmp_path / "bin", "npu-smi", {"info": "must not be called"}, code=1)
    environ = {**HIDE_NVIDIA, "PATH": str(tmp_path / "bin")}
    assert find_ascend(tmp_path, environ).says == find_amd(tmp_path, environ).says == ""
    assert all(device.kind == "cpu" for device in discover(1, tmp_path, environ).devices())


def test_a_tool_that_fails_is_one_clear_message_and_cpu_devices(tmp_path: Path) -> None:
    environ = ascend(tmp_path, "dcmi module initialize failed. ret is -8005\n", "", code=3)
    fleet = discover(2, tmp_path, environ)
    assert [device.kind for device in fleet.devices()] == ["cpu", "cpu"]
    assert fleet.source == (
        "discovered: no Ascend NPU (npu-smi info exited with 3: dcmi module initialize failed. ret is -8005)"
    )
    (tmp_path / "bin/npu-smi").unlink()
    assert find_ascend(tmp_path, environ).says == "no Ascend NPU (there is no npu-smi on the search path)"


def test_links_that_no_tool_tells_are_unknown_and_the_npus_are_found(tmp_path: Path) -> None:
    environ = ascend(tmp_path, npu_outputs.A2_INFO, "This device does not support topo\n")
    found = find_ascend(tmp_path, environ)
    assert len(found.gpus) == 8 and found.links is None
    assert found.says.startswith(
        "8 of 8 Ascend NPUs by npu-smi, links not known (npu-smi info -t topo:1: there is no line"
    )
    assert discover(root=tmp_path, environ=environ).gpu_links == {}


class OldNvml:
    """NVML of a driver that lists GPUs and cannot tell their topology; written from the API reference."""

    NVMLError, NVML_NVLINK_MAX_LINKS, NVML_FEATURE_ENABLED = RuntimeError, 6, 1

    def nvmlSystemGetDriverVersion(self) -> str:
        return "390.30"

    def nvmlDeviceGetCount(self) -> int:
        return 8

    def nvmlDeviceGetHandleByIndex(self, index: int) -> int:
        return index

    def nvmlDeviceGetUUID(self, handle: int) -> str:
        return f"GPU-{handle:08x}"

    def nvmlDeviceGetName(self, handle: int) -> str:
        return "Tesla P100-PCIE-16GB" if handle >= 0 else ""

    def nvmlDeviceGetPciInfo(self, handle: int) -> SimpleNamespace:
        return SimpleNamespace(busId=f"00000000:{handle + 1:02X}:00.0")

    def nvmlDeviceGetMemoryInfo(self, handle: int) -> SimpleNamespace:
        return SimpleNamespace(total=16 << 30 if handle >= 0 else 0)

    def nvmlDeviceGetNvLinkState(self, device: int, link: int) -> int:
        raise self.NVMLError(f"not supported: {device} {link}")


def test_where_nvml_cannot_tell_the_links_nvidia_smi_is_asked(tmp_path: Path) -> None:
    program(tmp_path / "bin", "nvidia-smi", {"topo -m": topo_outputs.PCIE_X8})
    found = list_nvidia(OldNvml(), tmp_path, {"PATH": str(tmp_path / "bin")})
    assert found.links is not None and found.links.way(4, 5) == "PHB"
    assert found.says == "8 of 8 GPUs by NVML"


def test_where_nobody_tells_the_links_they_are_unknown_and_the_reason_is_kept(tmp_path: Path) -> None:
    found = list_nvidia(OldNvml(), tmp_path, {"PATH": str(tmp_path)})
    assert len(found.gpus) == 8 and found.links is None
    assert found.says.startswith("8 of 8 GPUs by NVML, links not known (NVML: ")
    assert found.says.endswith("there is no nvidia-smi on the search path)")


def test_nvidia_is_found_or_says_why_not() -> None:
    found = find_nvidia()
    assert found.gpus or "NVML" in found.says


# -- what ranks see ----------------------------------------------------------------------------------


def devices(*vendors: str) -> list[Device]:
    return [
        Device(f"n/{k}", "n", k, "gpu", uuid=f"GPU-{k}" if v != "ascend" else "", vendor=v, number=k % 4)  # type: ignore[arg-type]
        for k, v in enumerate(vendors)
    ]


def test_amd_is_shown_by_rocr_and_hip_counts_what_is_left() -> None:
    gpus = devices("amd", "amd", "amd")
    assert visible_devices(gpus[1:], {"amd"}) == {
        "CUDA_VISIBLE_DEVICES": "",
        "ROCR_VISIBLE_DEVICES": "GPU-1,GPU-2",
        "HIP_VISIBLE_DEVICES": "0,1",
    }


def test_ascend_is_shown_by_ascending_numbers() -> None:
    gpus = devices("amd", "amd", "amd", "amd", "ascend", "ascend", "ascend")
    assert visible_devices([gpus[6], gpus[4]], {"ascend", "amd"}) == {
        "CUDA_VISIBLE_DEVICES": "",
        "ROCR_VISIBLE_DEVICES": "",
        "HIP_VISIBLE_DEVICES": "",
        "ASCEND_RT_VISIBLE_DEVICES": "0,2",
    }


def test_a_rank_without_gpus_sees_none_of_any_vendor() -> None:
    assert visible_devices([], {"nvidia", "amd", "ascend"}) == {
        "CUDA_VISIBLE_DEVICES": "",
        "ROCR_VISIBLE_DEVICES": "",
        "HIP_VISIBLE_DEVICES": "",
        "ASCEND_RT_VISIBLE_DEVICES": "-1",
    }
    assert visible_devices([], set()) == {"CUDA_VISIBLE_DEVICES": ""}


def test_a_rank_never_gets_gpus_of_two_vendors() -> None:
    with pytest.raises(CannotRun, match=r"a rank's GPUs are of amd and nvidia .*models.include"):
        visible_devices(devices("amd", "nvidia"), {"amd", "nvidia"})


def test_each_rank_of_a_mixed_fleet_sees_its_own_vendors_gpus() -> None:
    gpus = tuple(devices("nvidia", "amd"))
    fleet = Fleet(nodes=(Node("n", "", gpus),))
    places = (RankPlace(0, "n", ("n/0",)), RankPlace(1, "n", ("n/1",)))
    envs = environments(StartGang("j", 1, JobSpec(("x",), ranks=2), places), fleet, 1, "x", {})
    names = ("CUDA_VISIBLE_DEVICES", "ROCR_VISIBLE_DEVICES", "HIP_VISIBLE_DEVICES")
    assert [tuple(env[name] for name in names) for env in envs] == [("GPU-0", "", ""), ("", "GPU-1", "0")]


def test_parts_of_other_vendors_gpus_take_turns_and_nothing_else(tmp_path: Path) -> None:
    gpu = Device("n/0", "n", 0, "gpu", slices_ppm=(500_000, 500_000), vendor="amd")
    slicer = local_slicer(str(tmp_path), Fleet(nodes=(Node("n", "", (gpu,)),)), "test")
    usable, why = slicer.modes(gpu)
    assert usable == {"whole", "time"}
    assert why["mps"] == "n/0 is a GPU of amd, and MIG and MPS are NVIDIA's"

    def ask(mode: Literal["any", "mps", "mig"]) -> list[Grant]:
        spec = JobSpec(("x",), share=Share(500_000, mode=mode))
        return slicer.grants(wish_of(StartGang("j", 1, spec, (RankPlace(0, "n", ("n/0#0",)),))))

    assert ask("any") == [Grant()]
    slicer.release("j", 1)
    with pytest.raises(CannotRun, match="MIG and MPS are NVIDIA's"):
        ask("mps")


# -- what doctor says --------------------------------------------------------------------------------


def test_doctor_names_what_it_found(tmp_path: Path) -> None:
    kfd_trees.mi300x(tmp_path / "sys")
    environ = ascend(tmp_path, npu_outputs.A3_INFO, npu_outputs.A3_TOPO, chips=4)
    (tmp_path / "dev/kfd").touch()
    found = {check.name: check for check in doctor.gpus(tmp_path, environ)}
    assert found["AMD GPU"].state == "ok"
    assert found["AMD GPU"].detail == (
        "8 x AMD Instinct MI300X OAM, 1,536 GiB in all; 8 GPUs, XGMI1 between all, 2 NUMA nodes (8 of 8 AMD GPUs by KFD)"
    )
    assert found["Ascend NPU"].detail.startswith(
        "4 x Ascend910, 256 GiB in all; 4 GPUs, SIO at best and HCCS_SW at worst"
    )
    assert found.get("GPU") is None or found["GPU"].state != "missing"


def test_doctor_says_what_keeps_a_vendors_gpus_from_use(tmp_path: Path) -> None:
    kfd_trees.mi300x(tmp_path / "sys")
    environ = ascend(tmp_path, "no device\n", "", code=1)
    found = {check.name: check for check in doctor.gpus(tmp_path, environ)}
    assert found["AMD GPU"].state == found["Ascend NPU"].state == "limited"
    assert "may not be opened" in found["AMD GPU"].detail and "render and video" in found["AMD GPU"].remedy
    assert "npu-smi info exited with 1: no device" in found["Ascend NPU"].detail
