"""Checks of the machine itself, from the kernel: memory, CPUs, wall clock and leftovers of dead jobs."""

from __future__ import annotations

import ctypes
import os
import re
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Final, NamedTuple

from unidle.fleet.pci import read_text
from unidle.probe.check.model import Absent, Check, Context, Outcome, ProbeResult, least, most

_TIME_ERROR: Final = 5
_STA_UNSYNC: Final = 0x40
_STA_NANO: Final = 0x2000


# -- memory ------------------------------------------------------------------------------------------


def memory(context: Context) -> Outcome:
    """Total against declared, free memory, swap in use, errors that the memory controllers counted (EDAC)."""
    return ProbeResult(tuple(_memory(context)))


def _memory(context: Context) -> Iterator[Check]:
    limits, kb = context.limits(), meminfo(context.proc)
    total = kb.get("MemTotal", 0) * 1024
    declared = context.declared.memory_bytes if context.declared else 0
    wanted = int(declared * (limits.memory_ratio or 0)) if declared else None
    yield least(
        "memory.total",
        total or None,
        "bytes",
        wanted,
        f"declared {declared:,}" if declared else "not declared",
    )
    free = available_bytes(context) if context.whole_node else memory_free_bytes(context)
    if total:
        share = free / total
        yield least(
            "memory.free", share, "of total", limits.memory_free_ratio, f"{free / 1e9:,.1f} GB can be had"
        )
    swap = kb.get("SwapTotal", 0)
    if swap:
        used = 1 - kb.get("SwapFree", 0) / swap
        yield most(
            "memory.swap", used, "of swap in use", limits.swap_used_ratio, f"of {swap * 1024 / 1e9:,.1f} GB"
        )
    yield from _edac(context)


def meminfo(proc: Path) -> dict[str, int]:
    """Of ``/proc/meminfo``, in KiB."""
    pairs = (line.split() for line in read_text(proc / "meminfo").splitlines())
    return {pair[0].rstrip(":"): int(pair[1]) for pair in pairs if len(pair) >= 2 and pair[1].isdecimal()}


def available_bytes(context: Context) -> int:
    """What the machine has without swapping."""
    return meminfo(context.proc).get("MemAvailable", 0) * 1024


def memory_free_bytes(context: Context) -> int:
    """What this process can have without swapping, within the control group's limit."""
    free = available_bytes(context)
    for group in _groups(context, "memory"):
        for limit, usage in (
            ("memory.max", "memory.current"),
            ("memory.limit_in_bytes", "memory.usage_in_bytes"),
        ):
            most_bytes, used = read_text(group / limit), read_text(group / usage)
            if most_bytes.isdecimal() and used.isdecimal():
                free = min(free, max(int(most_bytes) - int(used), 0))
    return free


def _edac(context: Context) -> Iterator[Check]:
    controllers = sorted((context.sys / "devices/system/edac/mc").glob("mc[0-9]*"))
    limits = context.limits()
    for kind, name, limit in (
        ("ue", "memory.uncorrectable", limits.memory_uncorrectable),
        ("ce", "memory.corrected", limits.memory_corrected),
    ):
        counts = {
            mc.name: int(text) for mc in controllers if (text := read_text(mc / f"{kind}_count")).isdecimal()
        }
        if counts:
            some = [f"{mc}: {count}{_dimms(controllers, mc, kind)}" for mc, count in counts.items() if count]
            yield most(name, sum(counts.values()), "errors since boot", limit, ", ".join(some) or "none")


def _dimms(controllers: list[Path], name: str, kind: str) -> str:
    """The modules that count errors, by their label on the board."""
    here = next(mc for mc in controllers if mc.name == name)
    bad = [
        read_text(dimm / "dimm_label") or dimm.name
        for dimm in sorted(here.glob("dimm[0-9]*"))
        if read_text(dimm / f"dimm_{kind}_count") not in ("", "0")
    ]
    return f" ({', '.join(bad)})" if bad else ""


# -- CPUs --------------------------------------------------------------------------------------------


def cpu(context: Context) -> Outcome:
    """CPUs that this process gets against those declared, and the clock that they are allowed."""
    limits = context.limits()
    online = len(cpu_list(read_text(context.sys / "devices/system/cpu/online")))
    allowed = float(online) if context.whole_node else cpus_allowed(context)
    declared = context.declared.cpus if context.declared else 0.0
    wanted = declared * (limits.cpu_ratio or 0) if declared else None
    says = f"{online} online" + (f", {allowed:g} within the control group" if allowed < online else "")
    checks = [least("cpu", min(float(online), allowed), "CPUs", wanted, says)]
    checks += _cpu_clock(context)
    return ProbeResult(tuple(checks))


def cpu_list(text: str) -> list[int]:
    """``0-3,8`` as numbers."""
    found: list[int] = []
    for part in text.split(","):
        first, _, last = part.strip().partition("-")
        if first.isdecimal():
            found.extend(range(int(first), int(last or first) + 1))
    return found


def cpus_allowed(context: Context) -> float:
    """Affinity and quotas of the control groups above this process."""
    allowed = float(len(os.sched_getaffinity(0)))
    for group in _groups(context, "cpu"):
        quota, _, period = read_text(group / "cpu.max").partition(" ")
        if not quota:
            quota, period = (read_text(group / f"cpu.cfs_{name}_us") for name in ("quota", "period"))
        if quota.isdecimal() and period.isdecimal() and int(period):
            allowed = min(allowed, int(quota) / int(period))
    return allowed


def _groups(context: Context, controller: str) -> Iterator[Path]:
    """The process's control groups for a controller, up to the root, in either version."""
    top = context.sys / "fs/cgroup"
    for line in read_text(context.proc / "self/cgroup").splitlines():
        _, names, path = line.split(":", 2)
        if names and controller not in names.split(","):
            continue
        bases = [top / names, top / controller] if names else [top, top / "unified"]
        for base in bases:
            here = base / path.lstrip("/")
            while here.is_relative_to(base):
                if here.is_dir():
                    yield here
                here = here.parent


def _cpu_clock(context: Context) -> Iterator[Check]:
    """The highest clock that is allowed over the highest that the hardware has, on the worst CPU."""
    ratios: dict[str, float] = {}
    governors: dict[str, None] = {}
    for policy in sorted((context.sys / "devices/system/cpu/cpufreq").glob("policy[0-9]*")):
        allowed, highest = (read_text(policy / name) for name in ("scaling_max_freq", "cpuinfo_max_freq"))
        governor, by = (read_text(policy / name) for name in ("scaling_governor", "scaling_driver"))
        if not (allowed.isdecimal() and highest.isdecimal() and int(highest)):
            continue
        lowest = read_text(policy / "cpuinfo_min_freq")
        # "powersave" holds the lowest clock, but with drivers of the hardware's own governor it is only a hint
        held = governor == "powersave" and by not in ("intel_pstate", "amd-pstate-epp") and lowest.isdecimal()
        ratios[policy.name] = (int(lowest) if held else int(allowed)) / int(highest)
        governors[governor] = None
    if ratios:
        worst = min(ratios, key=lambda name: ratios[name])
        says = f"least in {worst}, governor {', '.join(governors)}"
        yield least("cpu.clock", ratios[worst], "of the highest", context.limits().cpu_clock_ratio, says)


# -- wall clock --------------------------------------------------------------------------------------


class _Timex(ctypes.Structure):
    """``struct timex`` of adjtimex(2); ``modes`` 0 only reads."""

    _fields_ = (
        ("modes", ctypes.c_uint), ("offset", ctypes.c_long), ("freq", ctypes.c_long), ("maxerror", ctypes.c_long),
        ("esterror", ctypes.c_long), ("status", ctypes.c_int), ("rest", ctypes.c_char * 256),
    )  # fmt: skip


class KernelClock(NamedTuple):
    """The result of adjtimex(2). ``state`` below 0: the call failed; 5: the clock follows no time server."""

    state: int
    synchronised: bool
    offset_ms: float


def kernel_clock() -> KernelClock:
    """Ask the kernel; asking changes nothing."""
    timex = _Timex()
    try:
        state = int(ctypes.CDLL(None).adjtimex(ctypes.byref(timex)))
    except (OSError, AttributeError):
        state = -1
    offset_ms = abs(timex.offset) / (1e6 if timex.status & _STA_NANO else 1e3)
    return KernelClock(state, 0 <= state != _TIME_ERROR and not timex.status & _STA_UNSYNC, offset_ms)


def clock(context: Context) -> Outcome:
    """Whether the kernel's clock follows a time server, and how far it is off."""
    return ProbeResult((clock_check(context, *kernel_clock()),))


def clock_check(context: Context, state: int, synchronised: bool, offset_ms: float) -> Check:
    """The judgement alone."""
    limits = context.limits()
    if state < 0:
        return Check("clock", None, None, "ms", limits.clock_offset_ms, "the kernel could not be asked")
    if synchronised:
        return most("clock", offset_ms, "ms", limits.clock_offset_ms, "follows a time server")
    if context.nodes > 1 or limits.clock_required:
        return Check("clock", False, None, "ms", limits.clock_offset_ms, "follows no time server: run chrony or systemd-timesyncd")  # fmt: skip
    return Check("clock", True, None, "ms", None, "follows no time server; one node alone does not need it")


# -- leavings ----------------------------------------------------------------------------------------

_NAMED_BY_PID: Final = re.compile(
    r"(?:torch_|sem\.loky-|loky-|__KMP_REGISTERED_LIB_|nccl-shm-)([0-9]+)(?:_.*)?"
)


def shared_memory(context: Context) -> Outcome:
    """Segments in ``/dev/shm`` that dead processes left: names that carry the process that made them."""
    limit = context.limits().shm_stale_bytes
    here = context.root / "dev/shm"
    stale: dict[str, int] = {}
    try:
        for entry in os.scandir(here):
            named = _NAMED_BY_PID.fullmatch(entry.name)
            if named and not (context.proc / named[1]).exists() and entry.is_file(follow_symlinks=False):
                status = entry.stat(follow_symlinks=False)
                if time.time() - status.st_mtime > 60:
                    stale[entry.name] = status.st_blocks * 512
    except OSError as error:
        return Absent(f"shared memory cannot be read: {error.strerror}")
    says = f"of ended processes: {', '.join(sorted(stale)[:5])}" if stale else "none of ended processes"
    return ProbeResult((most("shared_memory", sum(stale.values()), "bytes", limit, says),))
