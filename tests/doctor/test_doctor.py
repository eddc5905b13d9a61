"""The doctor: each check on machines made of files, and all of them on this one."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

from unidle.doctor import DoctorCheck, checks, gpu, kernel, machine, tools
from unidle.doctor.check import mounts

ROOT_CAPS = frozenset(range(41))
NONE: frozenset[int] = frozenset()


def put(root: Path, files: dict[str, str]) -> Path:
    for name, text in files.items():
        path = root / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text)
    return root


def states(found: DoctorCheck) -> tuple[str, bool]:
    """The state, and whether a remedy is given."""
    return found.state, bool(found.remedy)


def test_this_machine_is_described_in_full() -> None:
    found = checks()
    assert len({c.name for c in found}) == len(found)
    for check in found:
        assert check.detail and check.needed_for
        assert (check.state == "ok") == (not check.remedy), check
        assert "\n" not in check.detail + check.remedy
    assert found[0] == DoctorCheck("Python", "ok", f"CPython {sys.version.split()[0]}", "everything")


def test_nothing_is_left_behind() -> None:
    checks()
    for base in Path("/sys/fs/cgroup"), Path("/sys/fs/cgroup/unified"), Path("/sys/fs/cgroup/memory"):
        assert not list(base.glob("unidle-doctor-*"))


def test_the_doctor_imports_no_torch() -> None:
    code = (
        "import sys; sys.path[:0] = sys.argv[1:]\n"
        "from unidle.doctor import checks\n"
        "checks(); print(sorted({'torch', 'numpy', 'pydantic'} & set(sys.modules)))\n"
    )
    ran = subprocess.run([sys.executable, "-c", code, *sys.path], capture_output=True, text=True, check=True)
    assert ran.stdout == "[]\n"


@pytest.mark.skipif(os.getuid() != 0, reason="another user can only be tried by root")
def test_a_user_without_rights_is_told_what_to_do() -> None:
    code = (
        "import os, sys\n"
        "from unidle.doctor import checks\n"
        "checks()  # imports what that user may not be able to read\n"
        "os.setgroups([]); os.setgid(65534); os.setuid(65534)\n"
        "for c in checks('/tmp/store.db'): print(c.name, c.state, sep=':')\n"
    )
    environ = {**os.environ, "PYTHONPATH": os.pathsep.join(sys.path)}
    ran = subprocess.run(
        [sys.executable, "-c", code], capture_output=True, text=True, check=True, env=environ, cwd="/"
    )
    found = dict(line.split(":") for line in ran.stdout.splitlines())
    assert found["network namespaces"] == "missing"
    assert found["cgroups"] == "limited"


def test_the_capabilities_of_root_are_read(tmp_path: Path) -> None:
    put(tmp_path, {"proc/self/status": "Name:\tx\nCapEff:\t000001ffffffffff\n"})
    assert kernel.capabilities(tmp_path) == ROOT_CAPS
    assert kernel.capabilities(tmp_path / "none") == NONE


V2_MOUNT = "cgroup2 /sys/fs/cgroup cgroup2 rw,nosuid 0 0\n"
V1_MOUNTS = "".join(
    f"cgroup /sys/fs/cgroup/{name} cgroup rw,{name} 0 0\n" for name in ("cpu", "memory", "pids", "freezer")
)


def test_no_cgroups_are_missing(tmp_path: Path) -> None:
    put(tmp_path, {"proc/self/mounts": "proc /proc proc rw 0 0\n"})
    assert states(kernel.cgroups(tmp_path)) == ("missing", True)


def test_v1_cgroups_cannot_kill_a_tree(tmp_path: Path) -> None:
    put(
        tmp_path,
        {
            "proc/self/mounts": V1_MOUNTS,
            "proc/self/cgroup": "1:cpu:/\n2:memory:/job\n3:pids:/\n4:freezer:/\n",
        },
    )
    for name in ("cpu", "memory/job", "pids", "freezer"):
        (tmp_path / "sys/fs/cgroup" / name).mkdir(parents=True)
    found = kernel.cgroups(tmp_path)
    assert found.state == "limited"
    assert found.detail == "v1: memory, cpu, pids, freeze; not kill"
    assert not list((tmp_path / "sys").rglob("unidle-doctor-*"))


def test_v2_cgroups_offer_the_controllers_that_are_handed_down(tmp_path: Path) -> None:
    # A directory of plain files has no cgroup.kill in a new child: what a 5.13 kernel shows.
    put(tmp_path, {
        "proc/self/mounts": V2_MOUNT,
        "proc/self/cgroup": "0::/user.slice\n",
        "sys/fs/cgroup/user.slice/cgroup.controllers": "memory pids\n",
    })  # fmt: skip
    found = kernel.cgroups(tmp_path)
    assert found.detail == "v2: memory, pids; not cpu, kill, freeze"
    assert states(found) == ("limited", True)


def test_a_cgroup_path_from_outside_the_container_falls_back_to_the_mount(tmp_path: Path) -> None:
    put(tmp_path, {
        "proc/self/mounts": V2_MOUNT,
        "proc/self/cgroup": "0::/../../outside\n",
        "sys/fs/cgroup/cgroup.controllers": "cpu memory pids\n",
    })  # fmt: skip
    assert kernel.cgroups(tmp_path).detail == "v2: memory, cpu, pids; not kill, freeze"


def test_pressure_is_found_by_its_file(tmp_path: Path) -> None:
    assert states(kernel.pressure(tmp_path)) == ("missing", True)
    put(tmp_path, {"proc/pressure/cpu": "some avg10=0.00\n"})
    assert states(kernel.pressure(tmp_path)) == ("ok", False)


def test_ebpf_needs_types_and_rights(tmp_path: Path) -> None:
    assert states(kernel.ebpf(tmp_path, ROOT_CAPS)) == ("missing", True)
    put(tmp_path, {"sys/kernel/btf/vmlinux": "x"})
    assert states(kernel.ebpf(tmp_path, ROOT_CAPS)) == ("ok", False)
    assert states(kernel.ebpf(tmp_path, frozenset({kernel.CAP_BPF, kernel.CAP_PERFMON}))) == ("ok", False)
    assert states(kernel.ebpf(tmp_path, frozenset({kernel.CAP_BPF}))) == ("limited", True)
    put(tmp_path, {"sys/kernel/security/lockdown": "none integrity [confidentiality]\n"})
    assert states(kernel.ebpf(tmp_path, ROOT_CAPS)) == ("missing", True)


@pytest.mark.parametrize(
    ("text", "held", "state"),
    [
        ("2", NONE, "limited"),
        ("2", ROOT_CAPS, "ok"),
        ("1", NONE, "ok"),
        ("-1", NONE, "ok"),
        ("4", NONE, "limited"),
    ],
)
def test_perf_events_depend_on_the_setting_and_the_user(
    tmp_path: Path, text: str, held: frozenset[int], state: str
) -> None:
    assert kernel.perf_events(tmp_path, held).state == "missing"
    put(tmp_path, {"proc/sys/kernel/perf_event_paranoid": f"{text}\n"})
    assert kernel.perf_events(tmp_path, held).state == state


def test_mounts_are_read_with_their_escapes(tmp_path: Path) -> None:
    put(
        tmp_path,
        {"proc/self/mounts": "a /mnt/my\\040disk\\134x ext4 rw,noatime 0 0\nb /mnt/é xfs rw 0 0\nbroken\n"},
    )
    assert [m.path for m in mounts(tmp_path)] == ["/mnt/my disk\\x", "/mnt/é"]


@pytest.mark.parametrize(
    ("kind", "state"), [("ext4", "ok"), ("nfs4", "limited"), ("tmpfs", "limited"), ("fuse.sshfs", "limited")]
)
def test_the_store_wants_a_local_disk(tmp_path: Path, kind: str, state: str) -> None:
    root = put(tmp_path / "root", {"proc/self/mounts": f"a / xfs rw 0 0\nb {tmp_path} {kind} rw 0 0\n"})
    found = machine.disk(root, tmp_path / "not/yet/there.db")
    assert found.state == state
    assert found.detail.startswith(kind)


def test_the_last_of_several_mounts_on_one_path_counts(tmp_path: Path) -> None:
    put(tmp_path, {"proc/self/mounts": "a / xfs rw 0 0\nb /data nfs rw 0 0\nc /data ext4 rw 0 0\n"})
    assert machine.file_system(tmp_path, Path("/data/x")) == "ext4"
    assert machine.file_system(tmp_path, Path("/database")) == "xfs"


@pytest.mark.parametrize(
    ("source", "state"), [("tsc", "ok"), ("kvm-clock", "ok"), ("hpet", "limited"), ("acpi_pm", "limited")]
)
def test_a_slow_clock_source_is_named(tmp_path: Path, source: str, state: str) -> None:
    put(tmp_path, {"sys/devices/system/clocksource/clocksource0/current_clocksource": f"{source}\n"})
    assert machine.clock(tmp_path).state == state


@pytest.mark.parametrize(("kernel_says", "state"), [(0, "ok"), (5, "limited"), (None, "limited")])
def test_time_sync_is_what_the_kernel_says(kernel_says: int | None, state: str) -> None:
    assert machine.time_sync(kernel_says).state == state


def test_the_kernel_is_asked_for_its_time_state() -> None:
    assert machine.kernel_time_state() in {None, 0, 1, 2, 3, 4, 5}


@pytest.mark.parametrize(
    ("bounds", "state", "remedy"),
    [
        ((machine.UNLIMITED, machine.UNLIMITED), "ok", ""),
        ((4096, 4096), "ok", ""),
        ((1024, machine.UNLIMITED), "limited", "ulimit -n 65536"),
        (
            (1024, 1024),
            "limited",
            "ulimit -n 65536, after raising the hard limit in /etc/security/limits.conf",
        ),
    ],
)
def test_low_limits_are_named(bounds: machine.Limit, state: str, remedy: str) -> None:
    found = machine.open_files(bounds)
    assert (found.state, found.remedy) == (state, remedy)
    assert machine.processes(bounds).state == state


def test_locked_memory_is_counted_in_bytes() -> None:
    assert machine.locked_memory((8 << 20, 8 << 20)).state == "limited"
    assert (
        machine.locked_memory((machine.UNLIMITED, machine.UNLIMITED)).detail
        == "unlimited (at most unlimited)"
    )


@pytest.mark.parametrize(("text", "state"), [("32768\t60999", "ok"), ("50000\t50100", "limited")])
def test_a_small_range_of_ports_is_named(tmp_path: Path, text: str, state: str) -> None:
    assert machine.ports(tmp_path).state == "missing"
    put(tmp_path, {"proc/sys/net/ipv4/ip_local_port_range": text})
    assert machine.ports(tmp_path).state == state


@pytest.mark.parametrize(
    ("text", "state"),
    [
        ("[always] madvise never", "ok"),
        ("always [madvise] never", "ok"),
        ("always madvise [never]", "limited"),
    ],
)
def test_huge_pages_are_read(tmp_path: Path, text: str, state: str) -> None:
    assert machine.huge_pages(tmp_path).state == "missing"
    put(tmp_path, {"sys/kernel/mm/transparent_hugepage/enabled": text})
    assert machine.huge_pages(tmp_path).state == state


def program(path: Path) -> Path:
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text("#!/bin/sh\n")
    path.chmod(0o755)
    return path


def test_programs_are_found_on_the_path_or_in_their_usual_place(tmp_path: Path) -> None:
    empty = {"PATH": str(tmp_path / "bin"), "HOME": str(tmp_path)}
    assert (
        states(tools.chromium(empty))
        == states(tools.go(tmp_path, empty))
        == states(tools.rust(empty))
        == ("missing", True)
    )
    program(tmp_path / "bin/google-chrome")
    program(tmp_path / ".cargo/bin/cargo")
    program(tmp_path / "usr/local/go/bin/go")
    put(tmp_path, {"usr/local/go/VERSION": "go1.24.1\ntime 2025\n"})
    assert tools.chromium(empty).detail == str(tmp_path / "bin/google-chrome")
    assert tools.rust(empty).detail == str(tmp_path / ".cargo/bin/cargo")
    assert tools.go(tmp_path, empty).detail == f"go1.24.1 at {tmp_path}/usr/local/go/bin/go"


def test_kubernetes_is_found_through_its_variable(tmp_path: Path) -> None:
    environ = {"PATH": "", "KUBEBUILDER_ASSETS": str(tmp_path)}
    assert tools.kubernetes(environ).state == "missing"
    program(tmp_path / "etcd")
    assert tools.kubernetes(environ).detail == "no kube-apiserver"
    program(tmp_path / "kube-apiserver")
    assert tools.kubernetes(environ).state == "ok"


def test_the_newest_postgresql_server_is_named(tmp_path: Path) -> None:
    for version in ("9.6", "15", "17"):
        program(tmp_path / f"usr/lib/postgresql/{version}/bin/initdb")
    assert tools.postgresql(tmp_path, {"PATH": ""}).detail.endswith("server 17")


def test_gpus_and_driver_are_asked_together() -> None:
    found = gpu.gpus()
    assert {c.name for c in found} <= {"GPU", "CUDA driver"}
    if found[0].state == "missing":
        assert "NVML" in found[0].detail or "no GPU" in found[0].detail
