"""The machine's disk, clocks and limits."""

from __future__ import annotations

import os
import resource
import time
from pathlib import Path
from typing import Final, Literal

from unidle.doctor.check import DoctorCheck, mounts, read

# A store on these loses its locks or its content; SQLite's WAL needs memory shared on one host.
_REMOTE: Final = frozenset(
    {"nfs", "nfs4", "cifs", "smb3", "smbfs", "9p", "afs", "ceph", "glusterfs", "lustre", "beegfs"}
)
_FLEETING: Final = frozenset({"tmpfs", "ramfs"})
_ROOMY_BYTES: Final = 2 << 30

Limit = tuple[int, int]
UNLIMITED: Final = resource.RLIM_INFINITY


def disk(root: Path, place: Path) -> DoctorCheck:
    """Free space and kind of the file system that holds ``place``, which need not exist yet."""
    use = "the store: events, logs and ledger"
    here = place.absolute()
    while not here.exists() and here != here.parent:
        here = here.parent
    status = os.statvfs(here)
    free = status.f_bavail * status.f_frsize
    kind = file_system(root, here.resolve())
    detail = f"{kind}, {free / 1e9:,.1f} GB free"
    if kind in _REMOTE or kind.startswith("fuse"):
        remedy = "put the store on a local disk (--store), or use PostgreSQL"
        return DoctorCheck("disk", "limited", f"{detail}: not safe for SQLite", use, remedy)
    if kind in _FLEETING:
        remedy = "put the store on a disk (--store)"
        return DoctorCheck("disk", "limited", f"{detail}: gone after a reboot", use, remedy)
    if not os.access(here, os.W_OK):
        return DoctorCheck(
            "disk", "limited", f"{detail}, read-only for this user", use, "use another path with --store"
        )
    if free < _ROOMY_BYTES:
        remedy = "free some space, or put the store elsewhere (--store)"
        return DoctorCheck("disk", "limited", detail, use, remedy)
    return DoctorCheck("disk", "ok", detail, use)


def file_system(root: Path, path: Path) -> str:
    """The kind of the file system that holds ``path`` (resolved), by the longest mount above it."""
    kind, longest = "unknown", -1
    for mount in mounts(root):
        if path.is_relative_to(mount.path) and len(mount.path) >= longest:
            kind, longest = mount.kind, len(mount.path)
    return kind


def clock(root: Path) -> DoctorCheck:
    """The kernel's clock source: a slow one costs a system call each time that a rank looks."""
    use = "precise times at low cost"
    source = read(root / "sys/devices/system/clocksource/clocksource0/current_clocksource") or "unknown"
    resolution_ns = round(time.clock_getres(time.CLOCK_BOOTTIME) * 1e9)
    detail = f"{source}, resolution {resolution_ns:,} ns"
    if resolution_ns > 1_000_000:
        return DoctorCheck("clock", "limited", detail, use, "boot with highres=on")
    if source in ("hpet", "acpi_pm", "jiffies", "refined-jiffies"):
        return DoctorCheck(
            "clock",
            "limited",
            f"{detail}: slow to read",
            use,
            "`dmesg` shows why the kernel stopped using tsc",
        )
    return DoctorCheck("clock", "ok", detail, use)


def kernel_time_state() -> int | None:
    """What adjtimex(2) returns, or None where it cannot be asked; asking changes nothing."""
    from unidle.probe.check.host import kernel_clock

    state = kernel_clock().state
    return state if state >= 0 else None


def time_sync(state: int | None) -> DoctorCheck:
    """Whether the kernel reports that the wall clock follows a time server (TIME_ERROR is 5)."""
    use = "times that can be compared between nodes"
    if state is None:
        return DoctorCheck(
            "time sync", "limited", "the kernel could not be asked", use, "check it with chronyc tracking"
        )
    if state == 5:
        remedy = "run chrony or systemd-timesyncd; one machine alone does not need it"
        return DoctorCheck("time sync", "limited", "the wall clock is not synchronised", use, remedy)
    return DoctorCheck("time sync", "ok", "the wall clock is synchronised", use)


def limit(name: Literal["NOFILE", "NPROC", "MEMLOCK"]) -> Limit:
    """Soft and hard limit of this process."""
    return resource.getrlimit(getattr(resource, f"RLIMIT_{name}"))


def open_files(bounds: Limit) -> DoctorCheck:
    """Each local rank takes a few descriptors of the controller."""
    return _limit_check("open files", bounds, 4096, "many ranks on one machine", "ulimit -n 65536")


def processes(bounds: Limit) -> DoctorCheck:
    """Each rank has a supervisor, and PyTorch starts many threads."""
    return _limit_check("processes", bounds, 4096, "many ranks on one machine", "ulimit -u 65536")


def locked_memory(bounds: Limit) -> DoctorCheck:
    """RDMA and pinned buffers lock memory."""
    return _limit_check(
        "locked memory", bounds, 1 << 30, "NCCL over InfiniBand, large pinned buffers", "ulimit -l unlimited"
    )


def _limit_check(name: str, bounds: Limit, enough: int, use: str, command: str) -> DoctorCheck:
    soft, hard = bounds
    detail = f"{_count(soft)} (at most {_count(hard)})"
    if soft == UNLIMITED or soft >= enough:
        return DoctorCheck(name, "ok", detail, use)
    raisable = hard == UNLIMITED or hard >= enough
    remedy = command if raisable else f"{command}, after raising the hard limit in /etc/security/limits.conf"
    return DoctorCheck(name, "limited", detail, use, remedy)


def _count(number: int) -> str:
    return "unlimited" if number == UNLIMITED else f"{number:,}"


def ports(root: Path) -> DoctorCheck:
    """The range that the kernel takes free ports from."""
    use = "a separate port for each attempt"
    text = read(root / "proc/sys/net/ipv4/ip_local_port_range")
    if text is None:
        return DoctorCheck("ports", "missing", "the range of free ports cannot be read", use, "mount /proc")
    low, high = map(int, text.split())
    detail = f"{low} to {high}"
    if high - low < 1000:
        remedy = "sysctl net.ipv4.ip_local_port_range='32768 60999'"
        return DoctorCheck("ports", "limited", detail, use, remedy)
    return DoctorCheck("ports", "ok", detail, use)


def huge_pages(root: Path) -> DoctorCheck:
    """Transparent huge pages."""
    use = "fewer TLB misses in data loading and CPU training"
    text = read(root / "sys/kernel/mm/transparent_hugepage/enabled") or ""
    chosen = text.partition("[")[2].partition("]")[0]
    if chosen in ("always", "madvise"):
        return DoctorCheck("huge pages", "ok", chosen, use)
    remedy = "echo madvise > /sys/kernel/mm/transparent_hugepage/enabled"
    return DoctorCheck(
        "huge pages", "limited" if chosen else "missing", chosen or "the kernel has none", use, remedy
    )
