"""From two readings of a device's or machine's counters to what went wrong in between. Pure."""

from __future__ import annotations

from collections.abc import Collection, Iterator, Mapping
from dataclasses import dataclass, field
from typing import Final, NamedTuple

from unidle.guard.log.model import Action, Finding, Role, Severity
from unidle.words import counted

LASTS: Final = 3
"""Readings in a row that have to say so before what comes and goes (a slow clock, a carrier) is a fault."""


class Missed(NamedTuple):
    """How many looks in a row did not find a service, and whether an earlier one did."""

    times: int = 0
    known: bool = False

    def after(self, found: bool) -> Missed:
        """The same after one look more."""
        return Missed(0, True) if found else Missed(min(self.times, LASTS) + 1, self.known)

    @property
    def is_news(self) -> bool:
        """Whether it has just been missed often enough."""
        return self.times == LASTS


HOUR_NS: Final = 3_600_000_000_000
LOSSES_NS: Final = 24 * HOUR_NS
"""The window of the threshold ``carrier_losses_24h``."""
FLAPS_NS: Final = 6 * HOUR_NS
"""The window of the threshold ``ib_flaps_6h``."""


@dataclass(frozen=True, slots=True)
class LinkCounter:
    """A counter of a link: the threshold that bounds it, within which window, and what it counts."""

    threshold: str
    window_ns: int
    counts: str


_LINK: Final = "ib_link_errors_1h"
_PACKET: Final = "ib_packet_errors_1h"
_RDMA: Final = "rdma_errors_1h"
# the kernel's sysfs-class-net, and sysfs-class-infiniband with hw_counters of mlx5
COUNTERS: Final[Mapping[str, LinkCounter]] = {
    "carrier": LinkCounter("carrier_losses_24h", LOSSES_NS, "lost carriers"),
    "link_downed": LinkCounter("ib_flaps_6h", FLAPS_NS, "links that went down"),
    "symbol_error": LinkCounter(_LINK, HOUR_NS, "symbol errors"),
    "link_error_recovery": LinkCounter(_LINK, HOUR_NS, "recoveries of the link"),
    "local_link_integrity_errors": LinkCounter(_LINK, HOUR_NS, "times too many errors on the wire"),
    "port_rcv_errors": LinkCounter(_LINK, HOUR_NS, "packets received with an error"),
    "excessive_buffer_overrun_errors": LinkCounter(_LINK, HOUR_NS, "overruns of a buffer"),
    "port_rcv_remote_physical_errors": LinkCounter(_PACKET, HOUR_NS, "packets that another link had damaged"),
    "port_rcv_constraint_errors": LinkCounter(_PACKET, HOUR_NS, "packets refused on arrival"),
    "port_xmit_constraint_errors": LinkCounter(_PACKET, HOUR_NS, "packets refused before sending"),
    "port_xmit_discards": LinkCounter(_PACKET, HOUR_NS, "packets thrown away before sending"),
    "out_of_sequence": LinkCounter(_RDMA, HOUR_NS, "packets out of sequence"),
    "packet_seq_err": LinkCounter(_RDMA, HOUR_NS, "reports of a lost packet"),
    "implied_nak_seq_err": LinkCounter(_RDMA, HOUR_NS, "answers that did not come"),
    "local_ack_timeout_err": LinkCounter(_RDMA, HOUR_NS, "packets without an acknowledgement"),
    "rnr_nak_retry_err": LinkCounter(_RDMA, HOUR_NS, "receivers that were never ready"),
    "rx_icrc_encapsulated": LinkCounter(_RDMA, HOUR_NS, "packets with a wrong checksum"),
}
_FLAPS: Final = frozenset({"carrier", "link_downed"})
ERRORS: Final = tuple(name for name in COUNTERS if name not in _FLAPS)
# bits of nvmlClocksEventReasons (NVML API reference): those that take speed away for a fault of power, cooling or board
SLOWED: Final[Mapping[int, tuple[str, str]]] = {
    0x08: ("power", "the board slows the GPU down"),
    0x40: ("thermal", "the board slows the GPU down, because it is too hot"),
    0x80: ("power", "the power supply slows the GPU down"),
}


@dataclass(frozen=True, slots=True)
class GpuReading:
    """What the driver reports of one GPU; None for a value that it does not report.

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
    """What the kernel reports of the machine's parts, by name. ``down_times``: readings in a row that found a link down.

    ``links`` are network interfaces and InfiniBand ports: whether each has a carrier. ``errors`` counts what memory
    controllers and GPUs of AMD could not correct. ``growths`` are the counters of links, by ``LINK COUNTER``
    (:data:`COUNTERS`). ``alarm_times``: readings in a row that found an alarm of a sensor raised (``CHIP ALARM``).
    """

    links: Mapping[str, bool] = field(default_factory=dict)
    down_times: Mapping[str, int] = field(default_factory=dict)
    errors: Mapping[str, int] = field(default_factory=dict)
    growths: Mapping[str, CounterGrowth] = field(default_factory=dict)
    alarm_times: Mapping[str, int] = field(default_factory=dict)


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


def machine_faults(
    before: MachineReading | None, now: MachineReading, limits: Mapping[str, float | None]
) -> Iterator[Finding]:
    """What is newly wrong with the machine's parts; a link that was down at first, or is new, is no news.

    ``limits``: by name of threshold, the most that is no fault.
    """
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
    for name, growth in now.growths.items():
        old = before.growths.get(name)
        if growth != old and growth.steps and growth.steps[-1][0] == growth.at_ns:
            yield from _link_faults(name, old, growth, limits)
    for name, times in now.alarm_times.items():
        if times == LASTS and before.alarm_times.get(name) != LASTS:
            yield _alarm(name)


def _link_faults(
    name: str, before: CounterGrowth | None, now: CounterGrowth, limits: Mapping[str, float | None]
) -> Iterator[Finding]:
    """Of a counter that has just gone up: a fault when it passes its limit, and for a lost link before that a word."""
    link, _, counter = name.rpartition(" ")
    known = COUNTERS[counter]
    from_ns = now.at_ns - known.window_ns
    many, few = now.since(from_ns), before.since(from_ns) if before is not None else 0
    most = limits.get(known.threshold)
    hours = known.window_ns // HOUR_NS
    if most is not None and few <= most < many:
        if counter in _FLAPS:
            text = f"{link}: the link went down {counted(many, 'time')} in {hours} h"
            yield _found("nic", link, "check_link", text, "error", 45)
        else:
            text = f"{link}: {many} {known.counts} in {hours} h ({counter})"
            yield _found("nic", link, "watch", text, "warning", 20)
    elif counter in _FLAPS:
        text = f"{link}: the link went down and came back, {counted(many, 'time')} in {hours} h"
        yield _found("nic", link, "ignore", text, "info", 0, "info")


def _alarm(name: str) -> Finding:
    """``CHIP ALARM``, such as ``temp1_crit_alarm``: heat and fans are of the cooling, the rest is of the power supply."""
    chip, _, alarm = name.rpartition(" ")
    cooling = alarm.startswith(("temp", "fan"))
    text = f"{chip}: the sensor {alarm} reports a problem with {'cooling' if cooling else 'power'}"
    kind = "thermal" if cooling else "power"
    if "crit" in alarm or "emergency" in alarm or alarm.startswith("fan"):
        return _found(kind, chip, "check_hardware", text, "error", 40)
    return _found(kind, chip, "watch", text, "warning", 20)


def counted_up(
    before: MachineReading | None, counts: Mapping[str, int], at_ns: int
) -> dict[str, CounterGrowth]:
    """The growths after a reading of ``counts`` (by ``LINK COUNTER``); a link that is away keeps its own for a while."""
    known = before.growths if before is not None else {}
    found: dict[str, CounterGrowth] = {}
    for name in (*known, *(name for name in counts if name not in known)):
        counter = COUNTERS.get(name.rpartition(" ")[2])
        if counter is None:
            continue
        if name in counts:
            found[name] = grown(known.get(name), counts[name], at_ns, counter.window_ns)
        elif at_ns - known[name].at_ns < counter.window_ns:
            found[name] = known[name]
    return found


def counted_alarms(before: MachineReading | None, raised: Collection[str] | None) -> Mapping[str, int]:
    """How many readings in a row found each alarm raised; one that stands at the first reading is no news.

    ``raised`` None: they were not read.
    """
    if raised is None:
        return before.alarm_times if before is not None else {}
    if before is None:
        return dict.fromkeys(raised, LASTS + 1)
    return {name: min(before.alarm_times.get(name, 0), LASTS) + 1 for name in raised}


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


def _found(
    kind: str,
    device: str,
    action: Action,
    because: str,
    severity: Severity,
    rank: int,
    role: Role = "culprit",
) -> Finding:
    return Finding(0, kind, None, device, role, action, because, severity, rank)


_MOST_STEPS: Final = 64


@dataclass(frozen=True, slots=True)
class CounterGrowth:
    """One counter: ``count`` was read at ``at_ns``; ``steps`` are when it was found higher, and by how much, oldest first."""

    count: int
    at_ns: int
    steps: tuple[tuple[int, int], ...] = ()

    def since(self, from_ns: int) -> int:
        """By how much it was found higher after ``from_ns``."""
        return sum(more for at_ns, more in self.steps if at_ns > from_ns)


def grown(before: CounterGrowth | None, count: int, at_ns: int, window_ns: int) -> CounterGrowth:
    """What is known of a counter after one more reading; steps older than ``window_ns`` are dropped.

    The first reading, and one that is lower than the last (the driver was loaded again), is a new start. After a gap
    between readings that is longer than the window, only the window's part of what was added counts.
    """
    if before is None:
        return CounterGrowth(count, at_ns)
    steps = [step for step in before.steps if step[0] > at_ns - window_ns]
    more, gap_ns = max(count - before.count, 0), at_ns - before.at_ns
    if gap_ns > window_ns:
        more = more * window_ns // gap_ns
    if more:
        steps.append((at_ns, more))
    if len(steps) > _MOST_STEPS:  # of the oldest two the later time stands: too many is never taken for few
        steps[:2] = [(steps[1][0], steps[0][1] + steps[1][1])]
    return CounterGrowth(count, at_ns, tuple(steps))
