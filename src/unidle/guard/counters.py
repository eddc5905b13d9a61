"""From two readings of a device's or machine's counters to what went wrong in between. Pure."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from typing import Final

from unidle.guard.log.model import Action, Finding, Severity
from unidle.words import counted

LASTS: Final = 3
"""Readings in a row that have to say so before what comes and goes (a slow clock, a carrier) is a fault."""
# bits of nvmlClocksEventReasons (NVML API reference): those that take speed away for a fault of power, cooling or board
SLOWED: Final[Mapping[int, tuple[str, str]]] = {
    0x08: ("power", "the board slows the GPU down"),
    0x40: ("thermal", "the board slows the GPU down, because it is too hot"),
    0x80: ("power", "the power supply has told the GPU to slow down"),
}


@dataclass(frozen=True, slots=True)
class GpuReading:
    """What the driver tells of one GPU; None where it does not say.

    Errors are those that ECC could not correct, since the driver came up. ``slowed`` are bits of :data:`SLOWED`, and
    ``slowed_times`` how many readings in a row had each.
    """

    lost: bool = False
    sram_errors: int | None = None
    dram_errors: int | None = None
    remap_pending: bool | None = None
    remap_failed: bool | None = None
    slowed: int = 0
    slowed_times: Mapping[int, int] = field(default_factory=dict)


@dataclass(frozen=True, slots=True)
class MachineReading:
    """What the kernel tells of the machine's parts, by name. ``down_times``: readings in a row that found a link down.

    ``links`` are network interfaces and InfiniBand ports: whether each has a carrier. ``errors`` counts what memory
    controllers and GPUs of AMD could not correct.
    """

    links: Mapping[str, bool] = field(default_factory=dict)
    down_times: Mapping[str, int] = field(default_factory=dict)
    errors: Mapping[str, int] = field(default_factory=dict)


def gpu_faults(before: GpuReading | None, now: GpuReading, hardware: str) -> Iterator[Finding]:
    """What is newly wrong with a GPU (``hardware``: its PCI address). ``before``: the last reading, None for the first.

    Counts that were there before the first reading are no news; states that stand then (lost, failed) are.
    """
    old = before or GpuReading(sram_errors=now.sram_errors, dram_errors=now.dram_errors)
    if now.lost:
        if not old.lost:
            yield _found("gpu_lost", hardware, "reboot_node", "the driver has lost the GPU", "fatal", 90)
        return  # what else it says means nothing
    if _grew(old.sram_errors, now.sram_errors):
        text = f"ECC could not correct {_more(old.sram_errors, now.sram_errors)} in the GPU's SRAM"
        yield _found("ecc", hardware, "drain", text, "fatal", 60)
    if _grew(old.dram_errors, now.dram_errors):
        text = f"ECC could not correct {_more(old.dram_errors, now.dram_errors)} in the GPU's memory"
        yield _found("ecc", hardware, "reset_gpu", text, "error", 60)
    if now.remap_failed and not old.remap_failed:
        text = "no spare row of the GPU's memory was left for a bad one"
        yield _found("remap", hardware, "replace", text, "fatal", 65)
    if now.remap_pending and not old.remap_pending:
        text = "a bad row of the GPU's memory is replaced at the next reset of the GPU"
        yield _found("remap", hardware, "watch", text, "warning", 20)
    for bit, (kind, text) in SLOWED.items():
        if now.slowed_times.get(bit, 0) == LASTS:
            yield _found(kind, hardware, "check_hardware", text, "error", 30)


def machine_faults(before: MachineReading | None, now: MachineReading) -> Iterator[Finding]:
    """What is newly wrong with the machine's parts; a link that was down at first, or is new, is no news."""
    if before is None:
        return
    for name, times in now.down_times.items():
        if times == LASTS:
            yield _found("nic", name, "check_link", f"{name}: the link is down", "error", 40)
    for name, count in now.errors.items():
        if _grew(before.errors.get(name), count):
            text = f"{name}: {_more(before.errors.get(name), count)} could not be corrected"
            kind = "mce" if name.startswith("mc") else "amdgpu"
            yield _found(kind, name, "drain" if kind == "mce" else "reset_gpu", text, "fatal", 60)


def counted_down(before: MachineReading | None, links: Mapping[str, bool]) -> dict[str, int]:
    """How many readings in a row found each link down that was up before."""
    if before is None:
        return {}
    times: dict[str, int] = {}
    for name, up in links.items():
        known = before.down_times.get(name, 0)
        if not up and (known or before.links.get(name)):
            times[name] = known + 1
    return times


def counted_slow(before: GpuReading | None, slowed: int) -> dict[int, int]:
    """How many readings in a row had each bit of :data:`SLOWED`."""
    known = before.slowed_times if before is not None else {}
    return {bit: known.get(bit, 0) + 1 for bit in SLOWED if slowed & bit}


def _grew(before: int | None, now: int | None) -> bool:
    return before is not None and now is not None and now > before


def _more(before: int | None, now: int | None) -> str:
    return counted((now or 0) - (before or 0), "error")


def _found(kind: str, device: str, action: Action, because: str, severity: Severity, rank: int) -> Finding:
    return Finding(0, kind, None, device, "culprit", action, because, severity, rank)
