"""Memory, CPUs, clock, shared memory and the kernel's log, on this machine and on trees as the kernel documents them."""

from __future__ import annotations

import mmap
import os
import subprocess
import sys
import time
from dataclasses import dataclass
from pathlib import Path

import pytest

import needs
from unidle.fleet import Node
from unidle.probe.check import Check, Context, Outcome, ProbeResult, shipped
from unidle.probe.check.host import (
    clock,
    clock_check,
    cpu,
    cpu_list,
    cpus_allowed,
    memory,
    memory_free_bytes,
    shared_memory,
)
from unidle.probe.check.kernel_log import kernel_log
from unidle.probe.check.memory_pattern import pattern, try_piece
from unidle.probe.check.model import Absent, LogReading
from unidle.probe.check.thresholds import ModelThresholds
from unidle.probe.log_reading import read_log


def checks(outcome: Outcome) -> dict[str, Check]:
    assert isinstance(outcome, ProbeResult)
    return {check.name: check for check in outcome.checks}


def written(root: Path, files: dict[str, str]) -> Path:
    for name, text in files.items():
        (root / name).parent.mkdir(parents=True, exist_ok=True)
        (root / name).write_text(text + "\n")
    return root


MEMINFO = "MemTotal:       131072000 kB\nMemAvailable:   {free} kB\nSwapTotal:      1000 kB\nSwapFree:       {swap} kB"


def test_memory_of_this_machine_is_what_the_kernel_says():
    found = checks(memory(Context(book=shipped())))
    assert found["memory.total"].value == os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES")
    assert 0 < found["memory.free"].value <= 1  # type: ignore[operator]


def test_a_module_of_memory_that_is_gone_and_one_that_fails_are_found(tmp_path: Path):
    files = {"proc/meminfo": MEMINFO.format(free=120_000_000, swap=900)}
    mc = "sys/devices/system/edac/mc/mc0"
    files |= {f"{mc}/ue_count": "1", f"{mc}/ce_count": "12", f"{mc}/dimm1/dimm_label": "P0_DIMM_B1"}
    files |= {f"{mc}/dimm1/dimm_ue_count": "1", f"{mc}/dimm0/dimm_ue_count": "0"}
    node = Node("n", "s", (), memory_bytes=256 << 30)
    found = checks(memory(Context(book=shipped(), root=written(tmp_path, files), declared=node)))
    assert found["memory.total"].ok is False  # 125 of 256 GiB
    assert (found["memory.uncorrectable"].ok, found["memory.uncorrectable"].value) == (False, 1)
    assert found["memory.uncorrectable"].because == "mc0: 1 (P0_DIMM_B1)"
    assert found["memory.corrected"].ok is True and found["memory.swap"].ok is True


def test_memory_that_is_used_up_and_swap_in_use_are_found(tmp_path: Path):
    root = written(tmp_path, {"proc/meminfo": MEMINFO.format(free=1_000_000, swap=10)})
    found = checks(memory(Context(book=shipped(), root=root)))
    assert found["memory.free"].ok is False and found["memory.swap"].ok is False


def test_the_limit_of_a_control_group_counts_as_the_end_of_memory(tmp_path: Path):
    group = "sys/fs/cgroup/jobs.slice"
    files = {
        "proc/meminfo": MEMINFO.format(free=120_000_000, swap=1000),
        "proc/self/cgroup": "0::/jobs.slice/one",
    }
    files |= {f"{group}/memory.max": str(4 << 30), f"{group}/memory.current": str((4 << 30) - 1000)}
    root = written(tmp_path, files)
    assert checks(memory(Context(book=shipped(), root=root)))["memory.free"].ok is False
    # an agent in a pod with a limit of its own checks for ranks in other pods
    found = checks(memory(Context(book=shipped(), root=root, whole_node=True)))
    assert found["memory.free"].ok is True and found["memory.free"].because == "122.9 GB can be had"
    assert (
        memory_free_bytes(Context(book=shipped(), root=root, whole_node=True)) == 1000
    )  # what it can use itself


def test_cpus_of_a_whole_node_are_all_that_are_online(tmp_path: Path):
    files = {"sys/devices/system/cpu/online": "0-4095", "proc/self/cgroup": ""}
    root = written(tmp_path, files)
    assert checks(cpu(Context(root=root, book=shipped(), whole_node=True)))["cpu"].value == 4096
    assert checks(cpu(Context(root=root, book=shipped())))["cpu"].value == len(os.sched_getaffinity(0))


def test_cpus_of_this_machine_are_counted_within_affinity():
    mine = os.sched_getaffinity(0)
    found = checks(cpu(Context(book=shipped())))
    assert found["cpu"].value <= len(mine)  # type: ignore[operator]
    code = "from unidle.probe.check.host import *; from unidle.probe.check import *; import os; os.sched_setaffinity(0, {min(os.sched_getaffinity(0))}); print(cpus_allowed(Context()))"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert float(done.stdout) <= 1


@needs.cgroups
def test_a_quota_of_a_control_group_is_seen():
    root = next(
        (r for r in needs.cgroup_roots() if (r / "cpu.cfs_quota_us").exists() or (r / "cpu.max").exists()),
        None,
    )
    root = root or next(r for r in needs.cgroup_roots())
    group = root / f"unidle-check-test-{os.getpid()}"
    group.mkdir()
    try:
        if (group / "cpu.cfs_quota_us").exists():
            (group / "cpu.cfs_period_us").write_text("100000")
            (group / "cpu.cfs_quota_us").write_text("50000")
        elif (group / "cpu.max").exists():
            (group / "cpu.max").write_text("50000 100000")
        else:
            pytest.fail("no hierarchy has a CPU controller")
        code = f"open({str(group / 'cgroup.procs')!r}, 'w').write('0'); from unidle.probe.check.host import *; from unidle.probe.check import *; print(cpus_allowed(Context()))"
        done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
        assert float(done.stdout) == 0.5
    finally:
        group.rmdir()


def test_cpus_that_are_offline_and_clocks_that_are_held_down_are_found(tmp_path: Path):
    files = {"sys/devices/system/cpu/online": "0-62,64"}
    policy = "sys/devices/system/cpu/cpufreq/policy3"
    files |= {f"{policy}/scaling_max_freq": "1000000", f"{policy}/cpuinfo_max_freq": "3800000"}
    files |= {f"{policy}/scaling_governor": "performance", f"{policy}/scaling_driver": "intel_pstate"}
    root = written(tmp_path, files)
    node = Node("n", "s", (), cpus=128)
    found = checks(cpu(Context(book=shipped(), root=root, declared=node)))
    assert found["cpu"].ok is False and "64 online" in found["cpu"].because
    assert (found["cpu.clock"].ok, found["cpu.clock"].value) == (False, 0.263)
    (root / policy / "scaling_max_freq").write_text("3800000")
    assert checks(cpu(Context(book=shipped(), root=root)))["cpu.clock"].ok is True


def test_a_governor_of_the_lowest_clock_is_found_but_not_where_it_is_a_hint(tmp_path: Path):
    policy = "sys/devices/system/cpu/cpufreq/policy0"
    files = {f"{policy}/scaling_max_freq": "3000000", f"{policy}/cpuinfo_max_freq": "3000000"}
    files |= {f"{policy}/cpuinfo_min_freq": "1000000", f"{policy}/scaling_governor": "powersave"}
    root = written(tmp_path, files | {f"{policy}/scaling_driver": "acpi-cpufreq"})
    assert checks(cpu(Context(book=shipped(), root=root)))["cpu.clock"].ok is False
    (root / policy / "scaling_driver").write_text("intel_pstate")
    assert checks(cpu(Context(book=shipped(), root=root)))["cpu.clock"].ok is True


def test_lists_of_cpus_are_read_as_the_kernel_writes_them():
    assert cpu_list("0-3,8,10-11") == [0, 1, 2, 3, 8, 10, 11]
    assert cpu_list("") == []
    assert cpus_allowed(Context(root=Path("/nowhere"))) == len(os.sched_getaffinity(0))


def test_a_clock_that_no_one_sets_is_a_fault_only_where_nodes_are_compared():
    alone, among = Context(book=shipped()), Context(book=shipped(), nodes=2)
    assert clock_check(alone, 5, synchronised=False, offset_ms=0).ok is True
    assert clock_check(among, 5, synchronised=False, offset_ms=0).ok is False
    assert clock_check(among, 0, synchronised=True, offset_ms=3.5).ok is True
    assert clock_check(among, 0, synchronised=True, offset_ms=250).ok is False
    assert clock_check(among, -1, synchronised=False, offset_ms=0).ok is None
    assert checks(clock(alone))["clock"].ok in (True, False)  # the kernel here can be asked


def test_shared_memory_of_dead_processes_is_found_and_that_of_living_ones_left_alone(tmp_path: Path):
    shm = tmp_path / "dev/shm"
    shm.mkdir(parents=True)
    gone = subprocess.Popen(["true"])
    gone.wait()
    (tmp_path / "proc" / str(os.getpid())).mkdir(parents=True)
    for name in (f"torch_{gone.pid}_123_0", f"torch_{os.getpid()}_5_0", f"other_{gone.pid}"):
        (shm / name).write_bytes(bytes(2 << 20))
        os.utime(shm / name, (time.time() - 3600,) * 2)
    book = ModelThresholds({"shm_stale_bytes": 1 << 20})
    found = checks(shared_memory(Context(book=book, root=tmp_path)))["shared_memory"]
    assert (found.ok, found.value) == (False, 2 << 20) and f"torch_{gone.pid}" in found.because
    assert checks(shared_memory(Context(book=shipped(), root=tmp_path)))["shared_memory"].ok is True


@dataclass(frozen=True)
class Line:
    kind: str
    code: int | None
    device: str | None
    role: str
    action: str
    because: str


def test_the_kernel_log_fails_a_node_for_culprits_that_need_a_repair_only():
    faults = [
        Line("xid", 79, "0000:cb:00.0", "culprit", "reboot_node", "fallen off the bus"),
        Line("xid", 45, "0000:cb:00.0", "symptom", "reset_gpu", "after 79"),
        Line("xid", 13, "0000:0f:00.0", "culprit", "restart_app", "illegal address"),
        Line("xid", 63, "0000:0f:00.0", "info", "ignore", "row remapped"),
    ]
    found = checks(kernel_log(Context(kernel_log=lambda: LogReading(faults))))["kernel_log"]
    assert (found.ok, found.value) == (False, 1)
    assert found.because == "xid 79 on 0000:cb:00.0: fallen off the bus (reboot_node)"
    assert checks(kernel_log(Context(kernel_log=lambda: LogReading(faults[1:]))))["kernel_log"].ok is True


def test_a_kernel_log_that_cannot_be_read_is_unknown_never_good():
    assert checks(kernel_log(Context()))["kernel_log"].ok is None
    found = checks(kernel_log(Context(kernel_log=lambda: LogReading((), "/dev/kmsg may not be opened"))))
    assert (found["kernel_log"].ok, found["kernel_log"].because) == (None, "/dev/kmsg may not be opened")


def test_a_pattern_in_memory_is_kept_and_one_bit_that_flips_is_found():
    found = checks(pattern(Context(book=ModelThresholds({"memory_test_bytes": 8 << 20}))))["memory.pattern"]
    assert (found.ok, found.value) == (True, 0)
    with mmap.mmap(-1, 4 << 20) as piece:

        def flip(memory: mmap.mmap) -> None:
            memory[(3 << 20) + 77] ^= 0x10

        assert try_piece(piece, flip) == [3 << 20]
        assert try_piece(piece) == []


def test_a_chunk_that_is_read_from_another_address_is_found():
    with mmap.mmap(-1, 4 << 20) as piece:

        def alias(memory: mmap.mmap) -> None:
            memory[1 << 20 : 2 << 20] = memory[0 : 1 << 20]

        assert try_piece(piece, alias) == [1 << 20]


def test_a_reading_of_the_kernel_log_that_begins_later_says_so():
    found = checks(kernel_log(Context(kernel_log=lambda: LogReading((), None, "60 s ago"))))["kernel_log"]
    assert (found.ok, found.unit) == (True, "faults since 60 s ago")


def test_lines_of_the_kernel_log_that_are_older_than_asked_for_do_not_count(monkeypatch: pytest.MonkeyPatch):
    from unidle.probe import kernel_log as ring

    now_us = time.monotonic_ns() // 1000
    lines = [
        f"3,{n},{now_us - age_s * 1_000_000},-;EXT4-fs error (device sda{n}): x: Detected aborted journal".encode()
        for n, age_s in ((1, 900), (2, 30))
    ]
    batches = [[ring.LogLine(n, line, "b") for n, line in enumerate(lines, 1)]]
    monkeypatch.setattr(ring.KernelLog, "_open", lambda self: None)
    monkeypatch.setattr(ring.KernelLog, "poll", lambda self: batches.pop() if batches else [])
    assert [one.device for one in read_log("kmsg", 60).findings] == ["sda2"]
    batches.append([ring.LogLine(n, line, "b") for n, line in enumerate(lines, 1)])
    assert [one.device for one in read_log("kmsg").findings] == ["sda1", "sda2"]
    batches.append([ring.LogLine(n, line, "b") for n, line in enumerate(lines, 1)])
    since_s = time.clock_gettime(time.CLOCK_BOOTTIME) - 60
    assert [one.device for one in read_log("kmsg", None, since_s).findings] == ["sda2"]


def test_a_kernel_log_that_is_switched_off_is_not_checked_and_decides_nothing():
    assert kernel_log(Context(kernel_log="switched off")) == Absent("switched off")


def test_faults_without_a_date_are_left_out_and_counted():
    found = checks(kernel_log(Context(kernel_log=lambda: LogReading((), undated=2))))["kernel_log"]
    assert (found.ok, found.because) == (True, "none; 2 lines without a date not counted")
