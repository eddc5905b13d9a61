"""Checks of network interfaces and InfiniBand ports, from sysfs.

The files are described in the kernel's ``sysfs-class-net`` and ``sysfs-class-infiniband``.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Final

from unidle.fleet.pci import read_text
from unidle.guard.counters import FLAPS_NS, LOSSES_NS
from unidle.probe.check.counter_history import kept, uptime_s
from unidle.probe.check.model import Absent, Check, Context, Outcome, ProbeResult, least, most, unknown
from unidle.probe.link_counters import carrier_losses

_IFF_UP: Final = 0x1
_ETHERNET: Final = "1"  # ARPHRD_ETHER
_DAY_S: Final = LOSSES_NS / 1e9
_IB_WINDOW_S: Final = FLAPS_NS / 1e9
_NEVER_ALONE: Final = ("ifb", "dummy", "docker", "virbr", "cni", "tun", "tap", "bonding_masters")


@dataclass(frozen=True, slots=True)
class _Nic:
    """One interface; ``losses`` is how often its carrier went down since boot."""

    name: str
    physical: bool
    is_up: bool
    carrier: bool
    losses: int
    gains: int
    mbit: int | None
    packets: int
    errors: int


def nic(context: Context) -> Outcome:
    """Carrier, speed, lost carriers of the last day and errors of the interfaces that jobs talk over."""
    wanted, named = _interfaces(context)
    if not wanted:
        return ProbeResult(
            (Check("nic", False, 0, "interfaces up", 1, "there is no network interface but the loopback"),)
        )
    return ProbeResult(tuple(_nics(context, wanted, named)))


def _interfaces(context: Context) -> tuple[list[_Nic], bool]:
    """Those that NCCL or gloo are configured to use, else the hardware's, else all but the loopback."""
    listed = [_nic(path) for path in sorted((context.sys / "class/net").glob("*")) if path.is_dir()]
    for variable in ("NCCL_SOCKET_IFNAME", "GLOO_SOCKET_IFNAME"):
        names = [name.strip("= ") for name in context.environ.get(variable, "").split(",")]
        if names != [""] and not names[0].startswith("^"):
            picked = [one for one in listed if any(name and one.name.startswith(name) for name in names)]
            if picked:
                return picked, True
    others = [one for one in listed if one.name != "lo" and not one.name.startswith(_NEVER_ALONE)]
    return [one for one in others if one.physical] or others, False


def _nic(path: Path) -> _Nic:
    def number(name: str) -> int:
        text = read_text(path / name)
        return int(text) if text.lstrip("-").isdecimal() else 0

    flags = read_text(path / "flags")
    speed = number("speed")
    changes = number("carrier_changes")
    up = read_text(path / "carrier_up_count")
    return _Nic(
        path.name,
        (path / "device").exists() and read_text(path / "type") in ("", _ETHERNET, "32"),
        bool(int(flags, 16) & _IFF_UP) if flags.startswith("0x") else False,
        read_text(path / "carrier") == "1",
        carrier_losses(path) or 0,
        int(up) if up.isdecimal() else changes - changes // 2,
        speed if speed > 0 else None,
        sum(number(f"statistics/{way}_packets") for way in ("rx", "tx")),
        sum(number(f"statistics/{kind}") for kind in ("rx_errors", "tx_errors", "rx_crc_errors", "tx_carrier_errors")),
    )  # fmt: skip


def _nics(context: Context, found: list[_Nic], named: bool) -> Iterator[Check]:
    lost = [one.name for one in found if one.is_up and not one.carrier and (one.gains or named)]
    lost += [one.name for one in found if named and not one.is_up]
    good = [one for one in found if one.is_up and one.carrier]
    idle = [one.name for one in found if one not in good and one.name not in lost]
    says = f"{', '.join(lost)}: no carrier" if lost else ", ".join(one.name for one in good) or "none is up"
    if idle:
        says += f" (not in use: {', '.join(idle)})"
    yield Check("nic", bool(good) and not lost, len(good), "interfaces up", len(good) + len(lost) or 1, says)
    yield from _losses(context, found)
    yield from _speeds(context, good)
    limit = context.limits().nic_error_ppm
    rates = {one.name: one.errors * 1e6 / one.packets for one in good if one.packets >= 1000}
    if rates:
        worst = max(rates, key=lambda name: rates[name])
        yield most("nic.errors", rates[worst], "ppm of packets", limit, f"most on {worst}, since boot")


def _losses(context: Context, found: list[_Nic]) -> Iterator[Check]:
    at_s = uptime_s()
    counts = {one.name: one.losses for one in found}
    with kept(context.history, "nic", context.proc) as held:
        rates = {name: held[0].within(name, count, at_s, _DAY_S) for name, count in counts.items()}
        held[0] = held[0].added(at_s, counts)
    worst = max(rates, key=lambda name: rates[name].count)
    rate = rates[worst]
    says = f"most on {worst}: {rate.says}" if rate.count else "none"
    yield most("nic.carrier_losses", rate.count, "in 24 h", context.limits().carrier_losses_24h, says)


def _speeds(context: Context, good: list[_Nic]) -> Iterator[Check]:
    limit = context.limits().nic_gbps
    known = {one.name: one.mbit / 1000 for one in good if one.mbit}
    declared = context.bandwidth_bps / 1e9 if context.bandwidth_bps else None
    if limit is not None:
        if not known:
            yield unknown("nic.speed", "the driver reports no speed (a virtual interface has none)")
            return
        slowest = min(known, key=lambda name: known[name])
        yield least("nic.speed", known[slowest], "Gbit/s", limit, f"slowest is {slowest}")
    elif known:
        says = ", ".join(f"{name} {rate:g}" for name, rate in known.items())
        # a node's declared way up may run over InfiniBand ports, which are not network interfaces
        over_ib = any((context.sys / "class/infiniband").glob("*/ports/*"))
        yield least("nic.speed", sum(known.values()), "Gbit/s", None if over_ib else declared, says)


def infiniband(context: Context) -> Outcome:
    """State of each port, and how often its link went down in the last six hours."""
    ports = sorted((context.sys / "class/infiniband").glob("*/ports/*"))
    wanted = context.limits().ib_ports
    fabric = context.declared.fabric if context.declared else None
    if not ports and not wanted and fabric != "infiniband":
        return Absent("no InfiniBand adapter here, and none is declared")
    return ProbeResult(tuple(_ports(context, ports, wanted or (1 if fabric == "infiniband" else None))))


def _ports(context: Context, ports: list[Path], wanted: float | None) -> Iterator[Check]:
    active, bad, unused = [], [], []
    for port in ports:
        name = f"{port.parts[-3]}/{port.name}"
        state, physical = (_word(read_text(port / file)) for file in ("state", "phys_state"))
        if state == "ACTIVE":
            active.append(name)
        elif physical == "Disabled" or read_text(port / "link_layer") == "Ethernet":
            unused.append(name)  # RoCE: its interface is judged as one
        else:
            bad.append(f"{name} is {state or 'silent'} ({physical or 'no physical state'})")
    ok = len(active) >= (wanted or 0) and not bad
    says = "; ".join(bad) or f"{len(active)} active" + (f", {len(unused)} not in use" if unused else "")
    yield Check(
        "infiniband", ok, len(active), "ports", int(wanted) if wanted else len(active) + len(bad), says
    )
    counts = {
        f"{port.parts[-3]}/{port.name}": int(text)
        for port in ports
        if (text := read_text(port / "counters/link_downed")).isdecimal()
    }
    if not counts:
        return
    at_s = uptime_s()
    with kept(context.history, "ib", context.proc) as held:
        rates = {name: held[0].within(name, count, at_s, _IB_WINDOW_S) for name, count in counts.items()}
        held[0] = held[0].added(at_s, counts)
    worst = max(rates, key=lambda name: rates[name].count)
    says = f"most on {worst}: {rates[worst].says}" if rates[worst].count else "none"
    yield most("infiniband.flaps", rates[worst].count, "in 6 h", context.limits().ib_flaps_6h, says)


def _word(text: str) -> str:
    """``4: ACTIVE`` as ``ACTIVE``."""
    return text.partition(":")[2].strip() or text
