"""How busy the devices of a trace were, what they waited for, and which lines their kernels belong to. Pure.

A reader of traces gives calls of kind ``device_busy`` and ``device_idle``: see :mod:`unidle.scope.tiers.foreign.timeline`.
"""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass
from typing import Any, Final

from unidle.scope.model import Profile

BUSY: Final = "device_busy"
IDLE: Final = "device_idle"
"""Kinds of calls that sum up a device: how long it was at work, and how long it was not, by what its host did."""
_MOST: Final = 4
_LEAST: Final = 0.01


@dataclass(frozen=True, slots=True)
class DeviceUse:
    """One device, in ns. ``waits``: its idle time by what its host did meanwhile, the longest first."""

    name: str
    pid: int
    busy_ns: int
    idle_ns: int
    waits: tuple[tuple[str, int], ...]

    @property
    def share(self) -> float:
        whole = self.busy_ns + self.idle_ns
        return self.busy_ns / whole if whole else 0.0


def devices_of(profile: Profile) -> list[DeviceUse]:
    """The devices whose whole time is known, by process and name."""
    found = []
    for call in profile.calls:
        if call.kind == BUSY:
            mine = [c for c in profile.calls if c.kind == IDLE and (c.pid, c.tid) == (call.pid, call.tid)]
            waits = sorted(((c.name, c.ns or 0) for c in mine), key=lambda one: (-one[1], one[0]))
            idle_ns = sum(ns for _, ns in waits)
            found.append(DeviceUse(call.name, call.pid, call.ns or 0, idle_ns, tuple(waits)))
    return sorted(found, key=lambda one: (one.pid, one.name))


def lines_on_device(profile: Profile) -> list[tuple[str, int]]:
    """Nanoseconds of devices by the line of Python that launched the work, the longest first; by operator without one."""
    lines: Counter[str] = Counter()
    for sample in profile.samples:
        if sample.tid < 0:
            lines[_line(profile, sample.stack)] += sample.ns
    return sorted(lines.items(), key=lambda one: (-one[1], one[0]))


def _line(profile: Profile, stack: int) -> str:
    frames = profile.stack(stack)
    for frame in reversed(frames):
        if frame.kind == "python" and frame.file:
            return f"{frame.function} ({frame.file.rpartition('/')[2]}:{frame.line})"
    operators = [f.function for f in frames if f.kind == "native" and f.module == "torch"]
    return operators[0] if operators else frames[-1].function


def device_json(profile: Profile) -> list[dict[str, Any]]:
    """What ``--json`` prints as ``devices``."""
    return [
        {
            "device": one.name, "pid": one.pid, "busy_pct": round(100 * one.share, 2), "busy_ns": one.busy_ns, "idle_ns": one.idle_ns,
            "waits": [{"for": name, "ns": ns} for name, ns in one.waits[:50]],
        }
        for one in devices_of(profile)
    ]  # fmt: skip


def device_lines(profile: Profile, width: int) -> list[str]:
    """The section of the first screen; nothing where no device was traced."""
    found = devices_of(profile)
    if not found:
        return []
    lines = []
    for one in found:
        whole = one.busy_ns + one.idle_ns or 1
        lines.append(f"{one.name} was busy {100 * one.share:.0f} % of {whole / 1e6:,.1f} ms; it waited")
        lines += [
            f"  {100 * ns / whole:5.1f} %  while the host was in {name}"
            for name, ns in one.waits[:_MOST]
            if ns >= _LEAST * whole
        ]
    work = lines_on_device(profile)
    total = sum(ns for _, ns in work) or 1
    lines.append("Its work, by the line that launched it")
    lines += [f"  {100 * ns / total:5.1f} %  {name}" for name, ns in work[:_MOST] if ns >= _LEAST * total]
    return [*(line[:width] for line in lines), ""]
