"""Limits, freeze, pressure and peaks of ranks, by real control groups."""

from __future__ import annotations

from pathlib import Path

import pytest

import needs
from engine_local.local_gangs import Machine, group_of, python, sh
from unidle.engine.local.ranks import cgroups, process_tree
from unidle.engine.local.ranks.cgroups import ControlGroup, group_paths, hierarchies, usable
from unidle.jobs import Limits

pytestmark = needs.cgroups
MIB = 1 << 20
COUNT = "import itertools, os, time\nfor k in itertools.count():\n os.pwrite(fd := os.open('count', 65), b'%8d' % k, 0); os.close(fd); time.sleep(0.002)"


def scheduled_by(groups: str) -> list[str]:
    """The lines of a process's cgroup file that name v1's cpu controller."""
    return [line for line in groups.splitlines() if "cpu" in line.split(":")[1].split(",")]


def test_a_rank_over_its_memory_limit_is_told_as_out_of_memory(machine: Machine) -> None:
    gang = machine.start(
        python("x = bytearray(300 << 20); print('unreachable')"), limits=Limits(memory_bytes=64 * MIB)
    )
    assert gang.codes() == [-9]
    info = gang.last("exit").info
    assert info is not None and info["oom"] is True
    assert 32 * MIB < int(info["peak_bytes"] or 0) <= 64 * MIB


def test_the_peak_of_memory_is_that_of_the_whole_tree(machine: Machine) -> None:
    code = """
import os
x = bytearray(b'x') * (40 << 20)
if os.fork():
    os.wait()
else:
    y = bytearray(b'y') * (40 << 20)
"""
    gang = machine.start(python(code))
    assert gang.codes() == [0]
    info = gang.last("exit").info
    assert info is not None and 80 * MIB <= int(info["peak_bytes"] or 0) < 150 * MIB
    assert info["oom"] is False and "pressure_cpu_us" in info and "pressure_memory_us" in info


def test_without_a_cpu_limit_a_rank_is_scheduled_like_any_process(machine: Machine) -> None:
    gang = machine.start(sh("cat /proc/self/cgroup"))
    assert gang.codes() == [0]
    assert scheduled_by(gang.log()) == scheduled_by(Path("/proc/self/cgroup").read_text())


def test_a_rank_gets_no_more_than_its_cpus(machine: Machine) -> None:
    code = "import time\nend = time.monotonic() + 1\nwhile time.monotonic() < end: pass"
    gang = machine.start(python(code), limits=Limits(cpus=0.25))
    assert gang.codes() == [0]
    info = gang.last("exit").info
    assert info is not None and 0 < int(info["cpu_ns"] or 0) < 600_000_000


def test_a_rank_gets_no_more_than_its_processes(machine: Machine) -> None:
    code = """
import os, time
made = 0
try:
    while made < 50:
        if os.fork() == 0:
            time.sleep(300)
        made += 1
except OSError:
    print("made", made)
"""
    gang = machine.start(python(code), limits=Limits(pids=10))
    assert gang.codes() == [0]
    assert gang.log() == "made 9\n"


def test_limits_that_cannot_be_enforced_are_noted(tmp_path: Path) -> None:
    machine = Machine(tmp_path / "runs", grouped=False)
    gang = machine.start(sh("true"), limits=Limits(memory_bytes=64 * MIB, cpus=1, pids=10))
    assert gang.codes() == [0]
    assert gang.notes().count("not enforced") == 3
    machine.close()


def test_a_frozen_gang_stands_still_until_it_is_thawed(any_machine: Machine, tmp_path: Path) -> None:
    gang = any_machine.start(python(COUNT), workdir=str(tmp_path))
    count = tmp_path / "count"
    gang.until(lambda: count.exists() and count.read_bytes() > b"       3")
    assert any_machine.engine.freeze("job", 1) is any_machine.grouped
    if not any_machine.grouped:
        pid = gang.last("spawn").pid or 0
        gang.until(lambda: (process_tree.stat_of(pid) or "")[0] == "T")
    frozen_at = count.read_bytes()
    any_machine.engine.wait(None)
    assert count.read_bytes() == frozen_at
    any_machine.engine.thaw("job", 1)
    gang.until(lambda: count.read_bytes() > frozen_at)


def test_a_frozen_gang_can_be_stopped(any_machine: Machine, tmp_path: Path) -> None:
    gang = any_machine.start(python(COUNT), workdir=str(tmp_path))
    gang.until((tmp_path / "count").exists)
    any_machine.engine.freeze("job", 1)
    gang.stop(10)
    assert gang.codes() == [-15]


def test_groups_are_gone_when_the_end_is_told(machine: Machine) -> None:
    gang = machine.start(sh("mkdir -p /dev/null; sleep 0.1"), 2, limits=Limits(cpus=1))
    gang.spawned()
    paths = [Path(path) for path in group_of(gang).paths.values()]
    assert all(path.is_dir() for path in paths)
    gang.ends()
    assert not any(path.exists() for path in paths)


def test_capabilities_say_what_serves_each_use(machine: Machine) -> None:
    found = machine.engine.capabilities()
    assert found["cgroup"] in ("v2", "hybrid", "v1")
    assert all(value.startswith(("yes", "no", "by")) for use, value in found.items() if use != "cgroup")
    assert cgroups.capabilities({}, "x")["cgroup"] == "none"
    assert cgroups.capabilities({}, "x")["memory limit"].startswith("no: ")


def test_v1_alone_freezes_and_kills(machine: Machine) -> None:
    """As on a machine without v2."""
    machine.engine.__dict__["_groups"] = {k: v for k, v in machine.engine._groups.items() if k != "unified"}
    if "freezer" not in machine.engine._groups:
        pytest.skip("needs the v1 freezer")
    gang = machine.start(sh("trap '' TERM; (trap '' TERM; echo up; exec sleep 300) & wait; sleep 300"))
    gang.printed("up")
    assert machine.engine.freeze("job", 1) is True
    machine.engine.thaw("job", 1)
    gang.stop(0.1)
    assert gang.codes() == [-9]


def test_v2_alone_freezes_kills_and_tells_pressure(machine: Machine) -> None:
    """As on a machine without v1; its controllers are those that v1 does not hold here."""
    machine.engine.__dict__["_groups"] = {k: v for k, v in machine.engine._groups.items() if k == "unified"}
    if not machine.engine._groups:
        pytest.skip("needs v2 control groups")
    gang = machine.start(sh("trap '' TERM; echo up; while :; do sleep 0.02; done"))
    gang.printed("up")
    assert machine.engine.freeze("job", 1) is True
    gang.stop(0.1)
    assert gang.codes() == [-9]
    info = gang.last("exit").info
    assert info is not None and "pressure_cpu_us" in info


def test_v2_limits_and_usage_are_in_the_files_of_the_kernels_names(tmp_path: Path) -> None:
    """On plain files that mimic a v2 directory: this machine may have the controllers in v1 only."""
    place = tmp_path / "group"
    place.mkdir()
    for name in ("memory.max", "memory.swap.max", "cpu.max", "pids.max"):
        (place / name).touch()
    (place / "memory.peak").write_text("123456\n")
    (place / "memory.events").write_text("low 0\nhigh 0\nmax 7\noom 1\noom_kill 1\noom_group_kill 0\n")
    (place / "cpu.stat").write_text("usage_usec 2500\nuser_usec 2000\nsystem_usec 500\n")
    (place / "io.pressure").write_text(
        "some avg10=0.00 avg60=0.00 avg300=0.00 total=77\nfull avg10=0.00 total=5\n"
    )
    group = ControlGroup({"unified": str(place)})
    assert group.limit(1000, 1.5, 20) == []
    written = {
        name: (place / name).read_text().strip()
        for name in ("memory.max", "memory.swap.max", "cpu.max", "pids.max")
    }
    assert written == {
        "memory.max": "1000",
        "memory.swap.max": "0",
        "cpu.max": "150000 100000",
        "pids.max": "20",
    }
    assert group.usage() == {"peak_bytes": 123456, "oom": True, "cpu_ns": 2_500_000, "pressure_io_us": 77}


MOUNTS = """\
30 24 0:26 / /sys/fs/cgroup rw,nosuid shared:4 - cgroup2 cgroup2 rw,nsdelegate
31 24 0:27 /docker/abc /sys/fs/cgroup/memory ro - cgroup cgroup rw,memory
32 24 0:28 / /sys/fs/cgroup/cpu,cpuacct rw - cgroup cgroup rw,cpu,cpuacct
33 24 0:29 / /sys/fs/cgroup/systemd rw - cgroup cgroup rw,xattr,name=systemd
"""
OWN = "4:memory:/docker/abc/x\n3:cpu,cpuacct:/y\n1:name=systemd:/z\n0::/user.slice/me.scope\n"


def test_candidates_are_below_this_processs_own_groups() -> None:
    assert hierarchies(MOUNTS, OWN) == {
        "unified": [
            "/sys/fs/cgroup/user.slice/me.scope",
            "/sys/fs/cgroup/user.slice",
            "/sys/fs/cgroup",
        ],
        "memory": ["/sys/fs/cgroup/memory/x"],
        "cpu": ["/sys/fs/cgroup/cpu,cpuacct/y"],
        "cpuacct": ["/sys/fs/cgroup/cpu,cpuacct/y"],
    }


def test_a_directory_that_cannot_hold_groups_is_passed_over(tmp_path: Path) -> None:
    assert (
        usable({"unified": [str(tmp_path / "none"), "/proc"], "memory": ["/proc/self"]}, "unidle-test") == {}
    )
    assert group_paths({"memory": "/m"}, "unidle-1", "j.1.0") == {"memory": "/m/unidle-1/j.1.0"}
