"""All probes, and which of them a check runs."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from difflib import get_close_matches
from importlib import import_module
from typing import Final

from unidle.errors import BadInput
from unidle.probe.check.model import TIERS, Context, FunctionProbe, Outcome, Probe, Tier

_QUICK_S: Final = 5.0


def _late(module: str, function: str) -> Callable[[Context], Outcome]:
    """The function, imported when it runs: in the probe's own process."""

    def look(context: Context) -> Outcome:
        found: Callable[[Context], Outcome] = getattr(import_module(f"{__package__}.{module}"), function)
        return found(context)

    return look


def _quick(name: str, module: str, function: str, needs: str = "") -> FunctionProbe:
    return FunctionProbe(name, "quick", _late(module, function), needs, frozenset(), _QUICK_S)


def _loaded(
    name: str, tier: Tier, module: str, function: str, needs: str, uses: str, seconds: float
) -> FunctionProbe:
    return FunctionProbe(name, tier, _late(module, function), needs, frozenset(uses.split()), seconds)


PROBES: Final[tuple[Probe, ...]] = (
    _quick("devices", "gpu", "devices", "nvml"),
    _quick("driver", "gpu", "driver", "nvml"),
    _quick("clocks", "gpu", "clocks", "nvml"),
    _quick("heat", "gpu", "heat", "nvml"),
    _quick("ecc", "gpu_memory", "ecc", "nvml"),
    _quick("remap", "gpu_memory", "remap", "nvml"),
    _quick("pcie", "gpu_links", "pcie", "nvml"),
    _quick("nvlink", "gpu_links", "nvlink", "nvml"),
    _quick("leftovers", "gpu", "leftovers", "nvml"),
    _quick("nic", "network", "nic"),
    _quick("infiniband", "network", "infiniband"),
    _quick("storage", "storage", "quick"),
    _quick("memory", "host", "memory"),
    _quick("cpu", "host", "cpu"),
    _quick("clock", "host", "clock"),
    _quick("shared_memory", "host", "shared_memory"),
    _quick("kernel_log", "kernel_log", "kernel_log"),
    _loaded("storage_rate", "standard", "storage", "full", "", "disk", 60.0),
    _loaded("memory_pattern", "standard", "memory_pattern", "pattern", "", "cpu", 60.0),
    _loaded("gemm", "standard", "gemm", "gemm", "torch", "cpu gpu", 120.0),
    _loaded("host_to_device", "standard", "gemm", "host_to_device", "torch", "cpu gpu", 60.0),
    _loaded("allreduce", "standard", "allreduce", "node_allreduce", "torch", "cpu gpu", 90.0),
    _loaded("burn_in", "burn-in", "burn_in", "burn_in", "torch", "cpu gpu", 120.0),
)


def chosen(tier: Tier, only: Iterable[str] = (), probes: Iterable[Probe] = PROBES) -> tuple[Probe, ...]:
    """The probes of a tier and of those below it; with ``only`` just the named ones, of whatever tier.

    Errors: :class:`BadInput` for a name that no probe has.
    """
    known = {probe.name: probe for probe in probes}
    names = list(only)
    for name in names:
        if name not in known:
            near = get_close_matches(name, known, 1)
            remedy = f"did you mean {near[0]}?" if near else f"one of {', '.join(known)}"
            raise BadInput("there is no such check", field="--only", value=name, remedy=remedy)
    if names:
        return tuple(probe for name, probe in known.items() if name in names)
    reach = TIERS.index(tier)
    return tuple(probe for probe in known.values() if TIERS.index(probe.tier) <= reach)
