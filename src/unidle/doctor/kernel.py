"""What the kernel lets this user do: cgroups, namespaces, eBPF, performance events."""

from __future__ import annotations

import contextlib
import os
import subprocess
from dataclasses import dataclass, field
from pathlib import Path
from typing import Final

from unidle.doctor.check import DoctorCheck, MountedFileSystem, mounts, read

# Bits of the capability sets (linux/capability.h).
CAP_SYS_ADMIN: Final = 21
CAP_PERFMON: Final = 38
CAP_BPF: Final = 39

_CGROUP_USE: Final = "memory, CPU and process limits of ranks; killing and freezing a whole tree"
_CONTROLLERS: Final = ("memory", "cpu", "pids")
_V2_FEATURES: Final = {"kill": "cgroup.kill", "freeze": "cgroup.freeze"}


def capabilities(root: Path) -> frozenset[int]:
    """The effective capabilities of this process, as bit numbers."""
    for line in (read(root / "proc/self/status") or "").splitlines():
        if line.startswith("CapEff:"):
            bits = int(line.split()[1], 16)
            return frozenset(n for n in range(64) if bits >> n & 1)
    return frozenset()


@dataclass(slots=True)
class _Cgroups:
    """What one kind of hierarchy after the other offers."""

    able: set[str] = field(default_factory=set)
    closed: set[str] = field(default_factory=set)  # present, but this user may not use it


def cgroups(root: Path) -> DoctorCheck:
    """Which limits and actions cgroups allow here, found by making an empty cgroup and removing it."""
    found = _Cgroups()
    table = mounts(root)
    unified = next((m for m in table if m.kind == "cgroup2"), None)
    legacy = [m for m in table if m.kind == "cgroup"]
    if unified is None and not legacy:
        return DoctorCheck(
            "cgroups",
            "missing",
            "no cgroup file system is mounted",
            _CGROUP_USE,
            "mount one: mount -t cgroup2 none /sys/fs/cgroup; without it, process groups are used",
        )
    own = _own_cgroups(root)
    if unified is not None:
        _try_v2(root, unified, own, found)
    for mount in legacy:
        _try_v1(root, mount, own, found)
    form = "hybrid (v1 and v2)" if unified and _controllers(legacy) else "v2" if unified else "v1"
    wanted = [*_CONTROLLERS, "kill", "freeze"]
    lacking = [name for name in wanted if name not in found.able]
    detail = f"{form}: " + (", ".join(n for n in wanted if n in found.able) or "nothing usable")
    if not lacking:
        return DoctorCheck("cgroups", "ok", detail, _CGROUP_USE)
    if set(lacking) & found.closed:
        remedy = "run as root, or have the subtree delegated (systemd-run --user --scope -p Delegate=yes)"
    elif "kill" in lacking:
        remedy = "a kernel of 5.14 or later has cgroup.kill; until then, trees are killed process by process"
    else:
        remedy = "enable the controllers in cgroup.subtree_control of the parents"
    return DoctorCheck("cgroups", "limited", f"{detail}; not {', '.join(lacking)}", _CGROUP_USE, remedy)


def pressure(root: Path) -> DoctorCheck:
    """Pressure stall information (PSI)."""
    use = "detection of ranks that wait for CPU, memory or disk"
    if read(root / "proc/pressure/cpu") is not None:
        return DoctorCheck("pressure", "ok", "/proc/pressure", use)
    return DoctorCheck(
        "pressure", "missing", "/proc/pressure cannot be read", use, "boot with psi=1 (kernel 4.20 or later)"
    )


def network_namespaces() -> DoctorCheck:
    """Network namespaces, by making one in a child process."""
    use = "tests of slow and broken networks on one machine"
    problem = _try_unshare("--net")
    if problem is None:
        return DoctorCheck("network namespaces", "ok", "made one", use)
    return DoctorCheck("network namespaces", "missing", problem, use, "run as root (CAP_SYS_ADMIN)")


def user_namespaces(root: Path) -> DoctorCheck:
    """User namespaces, by making one in a child process."""
    use = "network namespaces without root"
    problem = _try_unshare("--user", "--map-root-user")
    if problem is None:
        return DoctorCheck("user namespaces", "ok", "made one", use)
    remedy = "allow them: sysctl user.max_user_namespaces=10000"
    if read(root / "proc/sys/kernel/apparmor_restrict_unprivileged_userns") == "1":
        remedy = "allow them: sysctl kernel.apparmor_restrict_unprivileged_userns=0"
    elif read(root / "proc/sys/kernel/unprivileged_userns_clone") == "0":
        remedy = "allow them: sysctl kernel.unprivileged_userns_clone=1"
    return DoctorCheck("user namespaces", "missing", problem, use, remedy)


def ebpf(root: Path, held: frozenset[int]) -> DoctorCheck:
    """What the profiler needs: the kernel's types, and the right to load programs."""
    use = "the profiler (unidle profile)"
    if not (root / "sys/kernel/btf/vmlinux").is_file():
        remedy = "use a kernel with CONFIG_DEBUG_INFO_BTF"
        return DoctorCheck("eBPF", "missing", "the kernel has no BTF (/sys/kernel/btf/vmlinux)", use, remedy)
    if "[confidentiality]" in (read(root / "sys/kernel/security/lockdown") or ""):
        remedy = "boot with lockdown=none or lockdown=integrity"
        return DoctorCheck("eBPF", "missing", "kernel lockdown forbids reading memory", use, remedy)
    if CAP_SYS_ADMIN in held or {CAP_BPF, CAP_PERFMON} <= held:
        return DoctorCheck("eBPF", "ok", "BTF, and the right to load programs", use)
    remedy = "run as root, or give the profiler CAP_BPF and CAP_PERFMON (setcap)"
    return DoctorCheck("eBPF", "limited", "BTF, but no right to load programs", use, remedy)


def perf_events(root: Path, held: frozenset[int]) -> DoctorCheck:
    """Whether perf_event_open may sample other processes."""
    use = "sampling of running ranks by the profiler"
    text = read(root / "proc/sys/kernel/perf_event_paranoid")
    if text is None:
        return DoctorCheck(
            "perf events", "missing", "not in this kernel", use, "use a kernel with CONFIG_PERF_EVENTS"
        )
    detail = f"perf_event_paranoid is {text}"
    if {CAP_SYS_ADMIN, CAP_PERFMON} & held:
        return DoctorCheck("perf events", "ok", f"{detail}, which does not restrict this user", use)
    if int(text) <= 1:
        return DoctorCheck("perf events", "ok", detail, use)
    remedy = "run as root, or sysctl kernel.perf_event_paranoid=1"
    return DoctorCheck("perf events", "limited", detail, use, remedy)


def _own_cgroups(root: Path) -> dict[str, str]:
    """The path of this process in each hierarchy, by controller ("" is the v2 one)."""
    own: dict[str, str] = {}
    for line in (read(root / "proc/self/cgroup") or "").splitlines():
        _, names, path = line.split(":", 2)
        for name in names.split(","):
            own[name] = path
    return own


def _controllers(legacy: list[MountedFileSystem]) -> set[str]:
    return {name for mount in legacy for name in mount.options if name in _CONTROLLERS}


def _try_v2(root: Path, mount: MountedFileSystem, own: dict[str, str], found: _Cgroups) -> None:
    parent = _below(root, mount, own.get("", "/"))
    offered = {*(read(parent / "cgroup.controllers") or "").split()} & {*_CONTROLLERS}
    made, files = _try_child(parent)
    features = {name for name, file in _V2_FEATURES.items() if file in files}
    if made:
        # In the root of the hierarchy, controllers can be handed on by a process that can write there.
        found.able |= offered | features
    else:
        found.closed |= offered | set(_V2_FEATURES)


def _try_v1(root: Path, mount: MountedFileSystem, own: dict[str, str], found: _Cgroups) -> None:
    names = {"freeze" if n == "freezer" else n for n in mount.options if n in (*_CONTROLLERS, "freezer")}
    if not names:
        return
    controller = next(n for n in mount.options if n in (*_CONTROLLERS, "freezer"))
    made, _ = _try_child(_below(root, mount, own.get(controller, "/")))
    (found.able if made else found.closed).update(names)


def _below(root: Path, mount: MountedFileSystem, path: str) -> Path:
    """The directory of a cgroup; in a container its path may lie outside of what is mounted."""
    top = root / mount.path.lstrip("/")
    own = top / path.lstrip("/")
    return own if own.is_dir() else top


def _try_child(parent: Path) -> tuple[bool, set[str]]:
    """Make a child cgroup, list its files, remove it."""
    child = parent / f"unidle-doctor-{os.getpid()}"
    try:
        child.mkdir()
    except OSError:
        return False, set()
    try:
        return True, {entry.name for entry in child.iterdir()}
    finally:
        with contextlib.suppress(OSError):
            child.rmdir()


def _try_unshare(*options: str) -> str | None:
    """What is wrong with making a namespace; None when it could be made."""
    try:
        tried = subprocess.run(
            ["unshare", *options, "true"],
            capture_output=True,
            timeout=2,
            check=False,
            stdin=subprocess.DEVNULL,
        )
    except FileNotFoundError:
        return "not tested: the program unshare (util-linux) is not installed"
    except (OSError, subprocess.TimeoutExpired) as error:
        return f"not tried: {error}"
    if tried.returncode == 0:
        return None
    return tried.stderr.decode(errors="replace").strip() or f"unshare ended with {tried.returncode}"
