"""The kinds of faults: from real lines of kernel logs, from detectors, checks and failures of jobs to one name and component."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

from unidle.guard.counters import GpuReading, MachineReading, gpu_faults, machine_faults
from unidle.guard.fault_kinds import CLASSES, SeenFault, class_of, class_of_failure, component_of
from unidle.guard.log.model import LogLine
from unidle.guard.log.reader import findings
from unidle.probe.check.registry import PROBES

PAGE = Path(__file__).parents[2] / "docs" / "fault-kinds.md"
FOURTEEN = (
    "gpu_lost", "gpu_ecc", "nvlink", "p2p", "ib_link", "nic", "power", "host", "storage", "kernel", "driver",
    "network", "operation", "user_code",
)  # fmt: skip
# lines of real machines: issues and test data of gpud, NVSentinel, NVIDIA's driver, and the kernel's own sources
LINES = [
    ("gpu_lost", "[6781741.548779] NVRM: Xid (PCI:0000:91:00): 79, pid='<unknown>', name=<unknown>, GPU has fallen off the bus."),
    ("gpu_lost", "NVRM: GPU 0000:06:00.0: GPU has fallen off the bus."),
    ("gpu_ecc", "Dec  2 11:38:47 worker4 kernel: [  219.471050] NVRM: Xid (PCI:0000:07:00): 64, pid='<unknown>', name=<unknown>, Dynamic Page Retirement: Blacklisting failed.  Page should have been blacklisted on boot(0x00000000007fffa8)."),
    ("gpu_ecc", "[Mon Feb 2 22:52:45 2026] NVRM: Xid (PCI:0000:cb:00): 94, pid=538578, name=python, channel 0x0000000b"),
    ("gpu", "[14370.687545] NVRM: Xid (PCI:0000:0a:00): 62, pid='<unknown>', name=<unknown>, 2023b230 20238a3a 2023e8b6 2023eac4 2023ec3c 2023ea86 00000000 00000000"),
    ("nvlink", "[  101.000000] NVRM: Xid (PCI:0000:3b:00): 74, pid=1234, name=python, NVLink: fatal error detected on link 6(0x10000, 0x0, 0x0, 0x0, 0x0, 0x0, 0x0)"),
    ("nvlink", "kern  :err   : 2025-01-25T10:34:54,859532+00:00 nvidia-nvswitch1: SXid (PCI:0000:84:00.0): 12028, Data {0x000001c0, 0x00bd5c8a, 0x00000500, 0x00000064, 0x00000000, 0x40008000, 0x5a001100, 0x00000000, 0x00000000}"),
    ("ib_link", "[  101.000000] mlx5_core 0000:ab:00.0 eth5: Link down"),
    ("nic", "[  101.000000] mlx5_core 0000:ab:00.0: poll_health:739:(pid 0): device's health compromised - reached miss count"),
    ("power", "[  101.000000] ipmi_si: power supply 1 failed"),
    ("cooling", "[  101.000000] thermal thermal_zone0: acpitz: critical temperature reached, shutting down"),
    ("host", "[  101.000000] mce: [Hardware Error]: CPU 3: Machine Check Exception: 5 Bank 0: be00000000800400"),
    ("host", "[  101.000000] pcieport 0000:3a:00.0: AER: PCIe Bus Error: severity=Uncorrected (Fatal), type=Transaction Layer"),
    ("storage", "[  101.000000] blk_update_request: critical medium error, dev sda, sector 1234 op 0x0:(READ)"),
    ("storage", "[  101.000000] nfs: server fs01 not responding, still trying"),
    ("kernel", "[  101.000000] Kernel panic - not syncing: Fatal exception in interrupt"),
    ("kernel", "[  101.000000] BUG: unable to handle page fault for address: ffffa0c2"),
    ("driver", "[  101.000000] NVRM: API mismatch: the client has the version 550.54.15, but this kernel module has the version 535.161.07."),
    ("user_code", "[3629619.021460] NVRM: Xid (PCI:0000:00:0e): 31, pid=810735, name=python, channel 0x0000000d, intr 00000000. MMU Fault: ENGINE GRAPHICS GPC1 GPCCLIENT_T1_3 faulted @ 0x7f74_e9d5f000. Fault is of type FAULT_PDE ACCESS_TYPE_VIRT_READ"),
    ("user_code", "[Fri Aug 30 11:43:09 2024] NVRM: Xid (PCI:0000:cb:00): 13, pid='<unknown>', name=<unknown>, Graphics SM Warp Exception on (GPC 7, TPC 7, SM 0): Illegal Instruction Parameter"),
]  # fmt: skip


@pytest.mark.parametrize(("kind", "line"), LINES)
def test_a_line_of_a_kernel_log_is_of_one_kind(kind: str, line: str) -> None:
    (found,) = findings([LogLine(1, line.encode())])
    assert found.role in ("culprit", "symptom")
    assert class_of(SeenFault(found.kind, found.code, found.action, found.because)) == kind


def test_what_counters_show_is_of_the_same_kinds() -> None:
    before = GpuReading(sram_errors=0, dram_errors=0)
    now = GpuReading(sram_errors=1, dram_errors=2, remap_failed=True, slowed=0x88, slowed_times={0x08: 3})
    gpu = [*gpu_faults(before, now, "x"), *gpu_faults(before, GpuReading(lost=True), "x")]
    link = MachineReading(links={"mlx5_0/1": False}, down_times={"mlx5_0/1": 3}, errors={"mc0": 1})
    machine = list(machine_faults(MachineReading(links={"mlx5_0/1": True}, errors={"mc0": 0}), link, {}))
    kinds = [class_of(SeenFault(f.kind, f.code, f.action, f.because)) for f in (*gpu, *machine)]
    assert kinds == ["gpu_ecc", "gpu_ecc", "gpu_ecc", "power", "gpu_lost", "ib_link", "host"]


@pytest.mark.parametrize(
    ("text", "kind"),
    [
        ("node n1 is unfit: allreduce: 3.1 GB/s, at least 460", "p2p"),
        ("node n1 is unfit: pcie.width: 8 lanes, at least 16", "p2p"),
        ("node n1 is unfit: ecc.uncorrected: 5", "gpu_ecc"),
        ("node n1 is unfit: storage.write: read-only file system", "storage"),
        ("n2: n1 0.2 Gbit/s, n3 not reached", "network"),
    ],
)
def test_a_check_that_failed_before_a_gang_names_the_part_that_it_checks(text: str, kind: str) -> None:
    assert class_of(SeenFault("preflight", None, "drain", text)) == kind


def test_every_probe_of_a_check_has_a_kind() -> None:
    for probe in PROBES:
        fault = SeenFault("preflight", None, "drain", f"node n1 is unfit: {probe.name}: x")
        assert class_of(fault) != "unknown", probe.name


@pytest.mark.parametrize(
    ("failure", "code", "kind"),
    [
        ("code", 1, "user_code"), ("memory", -9, "user_code"), ("network", 1, "network"), ("machine", None, "host"),
        ("unknown", -9, "operation"), ("unknown", 143, "operation"), ("unknown", 3, "unknown"),
    ],
)  # fmt: skip
def test_a_job_that_failed_by_itself_has_a_kind_too(failure: str, code: int | None, kind: str) -> None:
    assert class_of_failure(failure, code) == kind


def test_a_kind_that_an_operator_reports_is_that_kind_and_a_class_of_a_trace_is_its_component() -> None:
    assert class_of(SeenFault("operation", None, "drain", "the cable was pulled")) == "operation"
    assert (component_of("gpu_ecc"), component_of("Fan")) == ("GPU", "Fan")


def test_the_page_has_a_row_for_each_kind_and_names_tests_that_exist() -> None:
    rows = re.findall(r"^\| `(\w+)` \| ([^|]+) \|.*`(tests/\S+\.py)` \|$", PAGE.read_text(), re.MULTILINE)
    assert {name: component.strip() for name, component, _ in rows} == {
        name: one.component for name, one in CLASSES.items() if name not in ("hang", "unknown")
    }
    assert [name for name, _, _ in rows[:14]] == list(FOURTEEN)
    for _, _, test in rows:
        assert (PAGE.parents[1] / test).is_file(), test
