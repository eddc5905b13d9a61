"""Which tier of the profiler works for this user, found by trying, and what the next higher one would need."""

from __future__ import annotations

import ctypes
import errno
import importlib.util
import os
import platform
import struct
from dataclasses import dataclass
from pathlib import Path
from typing import Final

from unidle.doctor.check import DoctorCheck, State, read
from unidle.doctor.kernel import CAP_PERFMON, CAP_SYS_ADMIN

CAP_SYS_PTRACE: Final = 19

# Numbers of the system calls bpf and perf_event_open.
_CALLS: Final = {"x86_64": (321, 298), "aarch64": (280, 241)}
_USE: Final = "unidle profile: budgets and stacks of running processes"
_READ_USE: Final = "unidle profile: Python frames of running processes, all of tier T2"
_NAMES: Final = {
    "T0": "eBPF",
    "T1": "perf events",
    "T2": "reading /proc and memory",
    "T3": "files of other profilers",
}


@dataclass(frozen=True, slots=True)
class ProfilerSupport:
    """What was tried and read. A refusal is a reason, empty where it worked."""

    module: bool  # the native module is installed
    bpf: str
    btf: bool
    perf: str
    capabilities: frozenset[int]
    ptrace_scope: int  # of Yama; 0 where there is none
    inner_pids: bool  # a pid namespace of its own
    container: bool


def facts(root: Path, held: frozenset[int]) -> ProfilerSupport:
    """Tries the two system calls, and reads the rest below ``root``."""
    scope = read(root / "proc/sys/kernel/yama/ptrace_scope")
    container = (root / ".dockerenv").exists() or (root / "run/.containerenv").exists()
    return ProfilerSupport(
        module=importlib.util.find_spec("unidle_scope") is not None,
        bpf=try_bpf(),
        btf=(root / "sys/kernel/btf/vmlinux").is_file(),
        perf=try_perf(),
        capabilities=held,
        ptrace_scope=int(scope) if scope and scope.isdigit() else 0,
        inner_pids=_inner_pids(root),
        container=container or "KUBERNETES_SERVICE_HOST" in os.environ,
    )


def profiler(known: ProfilerSupport) -> list[DoctorCheck]:
    """The tier that works here with what the next would need, and whether memory of processes may be read."""
    refused = _refusals(known)
    works = next(tier for tier in ("T0", "T1", "T2", "T3") if not refused.get(tier))
    detail = f"{works} ({_NAMES[works]})"
    if works == "T0":
        return [DoctorCheck("profiler", "ok", detail, _USE), _memory(known)]
    reasons = "; ".join(f"not {tier}: {refused[tier]}" for tier in sorted(refused) if tier < works)
    remedy = _remedy(known, works)
    state: State = "missing" if works == "T3" else "limited"
    return [DoctorCheck("profiler", state, f"{detail}; {reasons}", _USE, remedy), _memory(known)]


def _refusals(known: ProfilerSupport) -> dict[str, str]:
    """Why each tier does not work, for those that do not."""
    if not known.module:
        return dict.fromkeys(("T0", "T1", "T2"), "the module unidle_scope is not installed")
    refused = {}
    if known.bpf:
        refused["T0"] = known.bpf
    elif not known.btf:
        refused["T0"] = "the kernel has no BTF (/sys/kernel/btf/vmlinux)"
    elif known.inner_pids:
        refused["T0"] = "the process is in its own pid namespace, and BPF needs the host's pids"
    if known.perf:
        refused["T1"] = known.perf
    if not _may_read(known):
        refused["T2"] = f"kernel.yama.ptrace_scope is {known.ptrace_scope}"
    return refused


def _remedy(known: ProfilerSupport, works: str) -> str:
    if not known.module:
        return "install the wheel unidle_scope of this version (docs: Install), or `make setup` in a checkout"
    if works != "T1" and known.perf and not known.capabilities & {CAP_SYS_ADMIN, CAP_PERFMON}:
        lower = "sysctl kernel.perf_event_paranoid=2 for T1; "
    else:
        lower = ""
    if not known.btf:
        return f"{lower}a kernel with CONFIG_DEBUG_INFO_BTF for T0"
    wanted = "CAP_BPF, CAP_PERFMON and CAP_SYS_PTRACE"
    if known.container:
        flags = "--cap-add=BPF --cap-add=PERFMON --cap-add=SYS_PTRACE --pid=host"
        return (
            f"{lower}start the container with {flags} (in Kubernetes: capabilities and hostPID: true) for T0"
        )
    if known.inner_pids and not known.bpf:
        return f"{lower}run it in the host's pid namespace for T0"
    return f"{lower}run as root, or give it {wanted} (setcap, or systemd's AmbientCapabilities) for T0"


def _memory(known: ProfilerSupport) -> DoctorCheck:
    """Whether memory of other processes may be read: all of root's, or this user's."""
    name = "reading processes"
    if known.capabilities & {CAP_SYS_PTRACE, CAP_SYS_ADMIN} and known.ptrace_scope < 3:
        return DoctorCheck(name, "ok", "of every user (CAP_SYS_PTRACE)", _READ_USE)
    if known.ptrace_scope == 0:
        return DoctorCheck(
            name,
            "limited",
            "of this user only",
            _READ_USE,
            "run as root or with CAP_SYS_PTRACE for those of others",
        )
    if known.ptrace_scope == 1:
        detail, remedy = (
            "kernel.yama.ptrace_scope is 1: only of children",
            "sysctl kernel.yama.ptrace_scope=0",
        )
    elif known.ptrace_scope == 2:
        detail, remedy = "kernel.yama.ptrace_scope is 2: only with CAP_SYS_PTRACE", "run as root"
    else:
        detail, remedy = (
            "kernel.yama.ptrace_scope is 3: of none, until the next boot",
            "boot with a lower one",
        )
    return DoctorCheck(name, "limited", detail, _READ_USE, remedy)


def _may_read(known: ProfilerSupport) -> bool:
    able = bool(known.capabilities & {CAP_SYS_PTRACE, CAP_SYS_ADMIN})
    return known.ptrace_scope == 0 or (able and known.ptrace_scope < 3)


def _inner_pids(root: Path) -> bool:
    """The first pid namespace has a fixed inode (PROC_PID_INIT_INO)."""
    try:
        return (root / "proc/self/ns/pid").stat().st_ino != 0xEFFFFFFC
    except OSError:
        return False


def try_bpf() -> str:
    """Loads the smallest program of the kind that samples (two instructions) and drops it."""
    code = struct.pack("<BBhi", 0xB7, 0, 0, 0) + struct.pack("<BBhi", 0x95, 0, 0, 0)  # r0 = 0; exit
    instructions, licence = ctypes.create_string_buffer(code), ctypes.create_string_buffer(b"GPL")
    perf_event = 7  # BPF_PROG_TYPE_PERF_EVENT
    attributes = struct.pack(
        "<IIQQIIQ", perf_event, 2, ctypes.addressof(instructions), ctypes.addressof(licence), 0, 0, 0
    )
    load = 5  # BPF_PROG_LOAD
    return _try(0, load, ctypes.create_string_buffer(attributes.ljust(128, b"\0")), 128)


def try_perf() -> str:
    """Opens a sampling event of this process with registers and stack, as tier T1 does, and closes it."""
    software, cpu_clock = 1, 0
    sample = 1 << 1 | 1 << 2 | 1 << 12 | 1 << 13  # TID, TIME, REGS_USER, STACK_USER
    disabled, exclude_kernel, exclude_hypervisor = 1 << 0, 1 << 5, 1 << 6
    attributes = struct.pack("<IIQQQQQ", software, 112, cpu_clock, 10_000_000, sample, 0,
                             disabled | exclude_kernel | exclude_hypervisor)  # fmt: skip
    attributes = attributes.ljust(80, b"\0") + struct.pack(
        "<QI", 1 << 7 if _machine() == "x86_64" else 1 << 31, 1024
    )
    buffer = ctypes.create_string_buffer(attributes.ljust(112, b"\0"))
    return _try(1, buffer, 0, -1, -1, 8)  # of this process, every CPU, no group, close-on-exec


def _machine() -> str:
    return platform.machine()


def _try(which: int, *arguments: object) -> str:
    numbers = _CALLS.get(_machine())
    name = ("bpf()", "perf_event_open()")[which]
    if numbers is None:
        return f"{name} is not tested on {_machine()}"
    # One call with its errno: no library of this process is asked.
    call = ctypes.CDLL(None, use_errno=True).syscall
    call.restype = ctypes.c_long
    result = call(ctypes.c_long(numbers[which]), *_as_c(arguments))
    if result >= 0:
        os.close(result)
        return ""
    code = ctypes.get_errno()
    return f"{name} is refused ({errno.errorcode.get(code, code)})"


def _as_c(arguments: tuple[object, ...]) -> list[object]:
    return [ctypes.c_long(a) if isinstance(a, int) else a for a in arguments]
