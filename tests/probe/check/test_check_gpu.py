"""GPUs as NVML, KFD and sysfs tell of them; values were written from the documented formats."""

from __future__ import annotations

import inspect
import os
import shutil
from pathlib import Path

import pynvml
import pytest

from fleet import kfd_trees
from probe.check.recorded_node import RecordedNode
from unidle.cli.check import _other_gpus
from unidle.fleet import Device, Node
from unidle.probe.check import Absent, Check, Context, ProbeResult, check_node, chosen, shipped
from unidle.probe.check.gpu import devices
from unidle.probe.check.gpu_memory import ecc
from unidle.probe.check.runner import answer

GPU_PROBES = ("devices", "driver", "clocks", "heat", "ecc", "remap", "pcie", "nvlink", "leftovers")


def h100(count: int = 8) -> Node:
    gpus = tuple(Device(f"n1/{k}", "n1", k, "gpu", "H100") for k in range(count))
    return Node("n1", "site", gpus)


def look(nvml: RecordedNode, tmp_path: Path, **more: object) -> dict[str, Check]:
    """The answers of all GPU probes, by name."""
    context = Context(book=shipped(), nvml=nvml, root=tmp_path, **more)  # type: ignore[arg-type]
    outcomes = [answer(probe, context) for probe in chosen("quick", GPU_PROBES)]
    return {
        check.name: check
        for outcome in outcomes
        if isinstance(outcome, ProbeResult)
        for check in outcome.checks
    }


def bad(checks: dict[str, Check]) -> set[str]:
    return {name for name, check in checks.items() if check.ok is False}


def test_a_healthy_node_of_eight_gpus_passes_every_check(tmp_path: Path):
    checks = look(RecordedNode(), tmp_path, declared=h100())
    assert {check.ok for check in checks.values()} == {True}
    assert checks["devices"].value == 8 and checks["devices"].threshold == 8
    assert checks["nvlink"].value == 18 and checks["pcie.width"].value == 16
    assert set(checks) >= {"driver.persistence", "driver.fabric", "clocks", "heat", "heat.memory", "ecc.sram", "ecc.dram"}  # fmt: skip


def test_the_recorded_node_is_asked_as_the_library_is():
    """So that no probe passes here that the module's own functions would refuse."""
    recorded = [name for name in vars(RecordedNode) if name.startswith("nvml")]
    assert len(recorded) > 25
    for name in recorded:
        ours = list(inspect.signature(getattr(RecordedNode, name)).parameters)[1:]
        genuine = inspect.signature(inspect.unwrap(getattr(pynvml, name))).parameters.values()
        needed = [p for p in genuine if p.default is p.empty and p.kind is p.POSITIONAL_OR_KEYWORD]
        assert len(ours) == len(needed) or any(p.kind is p.VAR_POSITIONAL for p in genuine), name


FAULTS = [
    ("clocks", {"reasons": 0x40}, "GPU 5: thermal slowdown by hardware"),
    ("clocks", {"reasons": 0x80 | 0x4}, "power brake"),
    ("clocks.limit", {"clock_sm": 1200}, "GPU 5"),
    ("heat", {"temperature": 92}, "GPU 5"),
    ("heat.memory", {"memory_temperature": 99}, "GPU 5"),
    ("heat.power_limit", {"power_limit": 400_000}, "GPU 5"),
    ("ecc", {"ecc": [0, 0]}, "off on GPU 5"),
    ("ecc.sram", {"sram": {"aggregateUncParity": 1}}, "GPU 5 (0000:15:00.0): 1"),
    ("ecc.sram", {"sram": {"volatileUncSecDed": 2}}, "GPU 5"),
    ("ecc.dram", {"dram_uncorrected": 3}, "GPU 5"),
    ("remap.pending", {"remapped": [0, 1, 1, 0]}, "needs a reset"),
    ("remap.failed", {"remapped": [0, 9, 0, 1]}, "replace it"),
    ("pcie.width", {"pcie_width": 8}, "GPU 5 (0000:15:00.0)"),
    ("pcie.generation", {"pcie_generation": 3}, "GPU 5"),
    ("pcie.replays", {"pcie_replays": 5000}, "GPU 5"),
    ("nvlink", {"nvlinks_down": [3, 7]}, "GPU 5: 16 of 18 (down: 3, 7)"),
    ("nvlink", {"nvlinks": 0}, "GPU 5: 0 of 18"),
    ("nvlink.errors", {"nvlink_errors": {f"4.{pynvml.NVML_NVLINK_ERROR_DL_REPLAY}": 7}}, "GPU 5: 7 replay"),
    ("driver.persistence", {"persistence": 0}, "GPU 5"),
    ("driver.fabric", {"fabric": {"state": 2, "status": 0}}, "GPU 5 (in progress)"),
    ("driver.fabric", {"fabric": {"state": 3, "status": 999}}, "failed with 999"),
    ("leftovers.memory", {"memory_used": 40 << 30}, "GPU 5"),
]  # fmt: skip


@pytest.mark.parametrize(
    ("name", "change", "says"), FAULTS, ids=[f"{n}-{k}" for k, (n, _, _) in enumerate(FAULTS)]
)
def test_each_fault_of_one_gpu_fails_its_check_alone_and_names_the_gpu(tmp_path: Path, name, change, says):
    nvml = RecordedNode()
    nvml.gpus[5].update(change)
    checks = look(nvml, tmp_path, declared=h100())
    assert bad(checks) == {name}
    assert says in checks[name].because


def test_an_idle_gpu_is_judged_by_the_generation_that_its_link_can_do(tmp_path: Path):
    nvml = RecordedNode()
    nvml.gpus[5].update({"pstate": 8, "pcie_generation": 1})
    assert bad(look(nvml, tmp_path)) == set()
    nvml.gpus[5]["pcie_generation_max"] = 4
    assert bad(look(nvml, tmp_path)) == {"pcie.generation"}


def test_a_lost_gpu_and_one_that_the_driver_never_found_are_missed(tmp_path: Path):
    nvml = RecordedNode()
    nvml.lost = {2}
    checks = look(nvml, tmp_path)
    assert bad(checks) == {"devices"} and "1 of NVML's 8 GPUs do not answer" in checks["devices"].because
    nvml = RecordedNode()
    del nvml.gpus[7]
    assert look(nvml, tmp_path)["devices"].ok is False  # an H100 node has eight
    declared = look(nvml, tmp_path, declared=h100(7))["devices"]
    assert (declared.ok, declared.value, declared.threshold) == (True, 7, 7)
    pci = tmp_path / "sys/bus/pci/devices"
    for k in range(8):
        (pci / f"0000:{0x10 + k:02x}:00.0").mkdir(parents=True)
        (pci / f"0000:{0x10 + k:02x}:00.0/vendor").write_text("0x10de\n")
        (pci / f"0000:{0x10 + k:02x}:00.0/class").write_text("0x030200\n")
    checks = look(nvml, tmp_path, declared=h100(7))
    assert (
        "PCI lists 8 GPUs of NVIDIA, its driver 7" in checks["devices"].because and not checks["devices"].ok
    )


def test_a_foreign_process_on_a_gpu_is_named_and_one_of_a_known_job_is_not(tmp_path: Path):
    nvml = RecordedNode()
    nvml.gpus[0]["processes"] = [os.getpid()]
    nvml.gpus[0]["memory_used"] = 60 << 30
    (tmp_path / "proc" / str(os.getpid())).mkdir(parents=True)
    (tmp_path / "proc" / str(os.getpid()) / "comm").write_text("python\n")
    checks = look(nvml, tmp_path)
    assert bad(checks) == {"leftovers"} and f"{os.getpid()} python" in checks["leftovers"].because
    assert bad(look(nvml, tmp_path, known_pids=frozenset({os.getpid()}))) == set()


def test_what_the_driver_does_not_tell_is_unknown_and_neither_good_nor_bad(tmp_path: Path):
    nvml = RecordedNode()
    nvml.silent = {
        "nvmlDeviceGetEccMode", "nvmlDeviceGetRemappedRows", "nvmlDeviceGetRetiredPagesPendingStatus",
        "nvmlDeviceGetCurrentClocksEventReasons", "nvmlDeviceGetCurrentClocksThrottleReasons",
        "nvmlDeviceGetGpuFabricInfo", "nvmlDeviceGetNvLinkErrorCounter",
    }  # fmt: skip
    checks = look(nvml, tmp_path)
    assert {name for name, check in checks.items() if check.ok is None} == {
        "ecc", "remap", "clocks", "driver.fabric", "nvlink.errors",
    }  # fmt: skip
    assert bad(checks) == set()
    assert all(check.because for check in checks.values())


def test_one_gpu_alone_needs_no_nvlinks(tmp_path: Path):
    nvml = RecordedNode()
    nvml.gpus = nvml.gpus[:1]
    nvml.gpus[0]["nvlinks"] = 0
    assert bad(look(nvml, tmp_path, declared=h100(1))) == set()


def test_gpus_that_are_declared_but_have_no_driver_fail_and_are_not_passed_over(tmp_path: Path):
    context = Context(book=shipped(), declared=h100(), root=tmp_path)
    outcome = answer(chosen("quick", ["driver"])[0], context)
    assert isinstance(outcome, ProbeResult) and outcome.checks[0].ok is False
    outcome = devices(context)
    assert isinstance(outcome, ProbeResult) and (outcome.checks[0].ok, outcome.checks[0].value) == (False, 0)


def test_a_node_without_gpus_has_nothing_for_the_gpu_checks(tmp_path: Path):
    report = check_node(Context(book=shipped(), root=tmp_path), chosen("quick", GPU_PROBES))
    assert [check.name for check in report.checks] == ["devices"] and report.ok is True
    assert {name for name, _ in report.absent} == set(GPU_PROBES) - {"devices"}


def test_gpus_of_amd_are_counted_and_their_uncorrected_errors_found(tmp_path: Path):
    kfd_trees.mi300x(tmp_path / "sys")
    gpus = tuple(Device(f"n1/{k}", "n1", k, "gpu", "MI300X", vendor="amd") for k in range(8))
    context = Context(
        book=shipped(), root=tmp_path, declared=Node("n1", "site", gpus), other_gpus=_other_gpus
    )
    outcome = devices(context)
    assert isinstance(outcome, ProbeResult) and outcome.checks[0].ok and outcome.checks[0].value == 8
    shutil.rmtree(tmp_path / "sys/class/kfd/kfd/topology/nodes/9")
    outcome = devices(context)
    assert (
        isinstance(outcome, ProbeResult)
        and "amd: 7 of 8" in outcome.checks[0].because
        and not outcome.checks[0].ok
    )
    assert isinstance(ecc(Context(book=shipped(), root=tmp_path / "none")), Absent)
    ras = tmp_path / "sys/class/drm/card3/device/ras"
    ras.mkdir(parents=True)
    (ras / "umc_err_count").write_text("ue: 2\nce: 14\n")
    outcome = ecc(context)
    assert isinstance(outcome, ProbeResult)
    assert outcome.checks[-1] == Check("ecc.amd", False, 2, "errors", 0, "card3: 2")


def test_pcie_of_a_gpu_without_nvml_is_read_from_sysfs(tmp_path: Path):
    device = tmp_path / "sys/bus/pci/devices/0000:41:00.0"
    device.mkdir(parents=True)
    files = {"vendor": "0x10de", "class": "0x030200", "current_link_width": "8", "max_link_width": "16"}
    for name, text in (files | {"max_link_speed": "32.0 GT/s PCIe"}).items():
        (device / name).write_text(text + "\n")
    outcome = answer(chosen("quick", ["pcie"])[0], Context(book=shipped(), root=tmp_path))
    assert isinstance(outcome, ProbeResult)
    width, generation = outcome.checks
    assert (width.ok, width.value, width.threshold) == (
        False,
        8,
        16,
    ) and "0000:41:00.0: 8 of 16" in width.because
    assert (generation.ok, generation.value) == (True, 5)
