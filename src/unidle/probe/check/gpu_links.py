"""PCIe and NVLink: width, generation, errors, how many links are up."""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Iterator
from typing import Final

from unidle.fleet.nvml import Nvml
from unidle.fleet.pci import read_text
from unidle.probe.check.gpu import each_gpu, nvidia_on_pci
from unidle.probe.check.model import Check, Context, Outcome, ProbeResult, least, most, unknown
from unidle.probe.check.nvml import NvmlGpu, ask, constant, field_value

# GT/s of a lane by generation (PCI-SIG), as sysfs writes them: "16.0 GT/s PCIe".
_GENERATION: Final = {2.5: 1, 5.0: 2, 8.0: 3, 16.0: 4, 32.0: 5, 64.0: 6}
_ERRORS: Final = {  # nvmlNvLinkErrorCounter_t
    "NVML_NVLINK_ERROR_DL_REPLAY": "replay",
    "NVML_NVLINK_ERROR_DL_RECOVERY": "recovery",
    "NVML_NVLINK_ERROR_DL_CRC_FLIT": "CRC",
}


def pcie(context: Context) -> Outcome:
    """PCIe width and generation, from NVML; without it, from sysfs for the PCI device of every GPU."""
    outcome = each_gpu(context, "pcie", _pcie)
    if isinstance(outcome, ProbeResult) and any(check.ok is not None for check in outcome.checks):
        return outcome
    buses = _gpu_buses(context)
    return ProbeResult(tuple(_by_sysfs(context, buses))) if buses else outcome


def _gpu_buses(context: Context) -> list[str]:
    """PCI addresses of NVIDIA's GPUs and of AMD's (KFD)."""
    from unidle.fleet.amd import gpus_by_kfd

    return [*nvidia_on_pci(context.sys), *(gpu.bus_id for gpu in gpus_by_kfd(context.sys, ())[0])]


def _pcie(context: Context, nvml: Nvml, found: list[NvmlGpu]) -> Iterator[Check]:
    widths = {gpu: ask(nvml, "nvmlDeviceGetCurrPcieLinkWidth", gpu.handle) for gpu in found}
    known = {gpu: int(width) for gpu, width in widths.items() if width}
    if known:
        worst = min(known, key=lambda gpu: known[gpu])
        yield _narrow(context, nvml, worst, known[worst])
    else:
        yield unknown("pcie.width", "the driver does not report it")
    generations = {gpu: _generation(nvml, gpu) for gpu in found}
    told = {gpu: value for gpu, value in generations.items() if value}
    if told:
        slow = min(told, key=lambda gpu: told[gpu])
        limit = context.limits(slow.model).pcie_generation
        yield least(
            "pcie.generation", told[slow], "generation", limit, f"least on {slow.name} ({slow.bus_id})"
        )
    replays = {gpu: ask(nvml, "nvmlDeviceGetPcieReplayCounter", gpu.handle) for gpu in found}
    counted = {gpu: int(count) for gpu, count in replays.items() if count is not None}
    if counted:
        most_of = max(counted, key=lambda gpu: counted[gpu])
        limit = context.limits(most_of.model).pcie_replays
        yield most(
            "pcie.replays", counted[most_of], "replays", limit, f"most on {most_of.name} ({most_of.bus_id})"
        )


def _narrow(context: Context, nvml: Nvml, gpu: NvmlGpu, width: int) -> Check:
    limit = context.limits(gpu.model).pcie_width or ask(nvml, "nvmlDeviceGetMaxPcieLinkWidth", gpu.handle)
    return least("pcie.width", width, "lanes", limit, f"narrowest is {gpu.name} ({gpu.bus_id})")


def _generation(nvml: Nvml, gpu: NvmlGpu) -> int | None:
    """Of the link now where the GPU is at full power (P0), else the most that this slot and GPU can do: idle GPUs slow their link down."""
    busy = ask(nvml, "nvmlDeviceGetPowerState", gpu.handle) == 0
    function = "nvmlDeviceGetCurrPcieLinkGeneration" if busy else "nvmlDeviceGetMaxPcieLinkGeneration"
    found = ask(nvml, function, gpu.handle)
    return int(found) if found else None


def _by_sysfs(context: Context, buses: list[str]) -> Iterator[Check]:
    limits = context.limits()
    narrow: list[str] = []
    worst, slowest = None, None
    wanted: int | None = None
    for bus in buses:
        device = context.sys / "bus/pci/devices" / bus
        width, full = (_number(read_text(device / f"{which}_link_width")) for which in ("current", "max"))
        goal = int(limits.pcie_width) if limits.pcie_width else full
        if width and (worst is None or width < worst):
            worst, wanted = width, goal
        if width and goal and width < goal:
            narrow.append(f"{bus}: {width} of {goal} lanes")
        speed = _speed(read_text(device / "max_link_speed"))
        slowest = speed if speed and (slowest is None or speed < slowest) else slowest
    if worst is None:
        yield unknown("pcie.width", "the kernel does not report it")
    else:
        yield Check(
            "pcie.width", not narrow, worst, "lanes", wanted, ", ".join(narrow) or "all at full width"
        )
    if slowest is not None:
        yield least(
            "pcie.generation", slowest, "generation", limits.pcie_generation, "by sysfs, the most they can do"
        )


def _number(text: str) -> int | None:
    return int(text) if text.isdecimal() else None


def _speed(text: str) -> int | None:
    found = re.match(r"([0-9.]+) GT/s", text)
    return _GENERATION.get(float(found[1])) if found else None


def nvlink(context: Context) -> Outcome:
    """Links that are up against the model's number, or against the GPU that has most; error counters."""
    return each_gpu(context, "nvlink", _nvlink)


def _nvlink(context: Context, nvml: Nvml, found: list[NvmlGpu]) -> Iterator[Check]:
    states = {gpu: _states(nvml, gpu) for gpu in found}
    up = {gpu: sum(links.values()) for gpu, links in states.items()}
    of_model = Counter({gpu.model: 0 for gpu in found})
    for gpu, count in up.items():
        of_model[gpu.model] = max(of_model[gpu.model], count)
    wanted = {gpu: int(context.limits(gpu.model).nvlinks or 0) or of_model[gpu.model] for gpu in found}
    if len(found) == 1 and not up[found[0]]:
        yield Check("nvlink", True, 0, "links", None, "one GPU alone needs no links")
        return
    short = [
        f"{gpu.name}: {up[gpu]} of {wanted[gpu]}{_down(states[gpu])}"
        for gpu in found
        if up[gpu] < wanted[gpu]
    ]
    worst = min(found, key=lambda gpu: up[gpu] - wanted[gpu])
    yield Check("nvlink", not short, up[worst], "links", wanted[worst], "; ".join(short) or "up on all GPUs")
    errors = {gpu: _errors(nvml, gpu, states[gpu]) for gpu in found}
    known = {gpu: count for gpu, count in errors.items() if count is not None}
    if any(up.values()) and not known:
        yield unknown("nvlink.errors", "the driver does not report them")
    elif any(up.values()):
        total = {gpu: sum(count.values()) for gpu, count in known.items()}
        most_of = max(total, key=lambda gpu: total[gpu])
        says = (
            "; ".join(f"{gpu.name}: {_list(count)}" for gpu, count in known.items() if total[gpu]) or "none"
        )
        limit = context.limits(most_of.model).nvlink_errors
        yield most("nvlink.errors", total[most_of], "errors", limit, says)


def _list(counts: Counter[str]) -> str:
    return ", ".join(f"{count} {name}" for name, count in counts.items() if count)


def _down(states: dict[int, bool]) -> str:
    down = [str(link) for link, is_up in states.items() if not is_up]
    return f" (down: {', '.join(down)})" if down else ""


def _states(nvml: Nvml, gpu: NvmlGpu) -> dict[int, bool]:
    """Of each link that the GPU has, whether it is up."""
    found: dict[int, bool] = {}
    for link in range(constant(nvml, "NVML_NVLINK_MAX_LINKS") or 18):
        state = ask(nvml, "nvmlDeviceGetNvLinkState", gpu.handle, link)
        if state is not None:
            found[link] = bool(state)
    return found


def _errors(nvml: Nvml, gpu: NvmlGpu, links: dict[int, bool]) -> Counter[str] | None:
    """Errors by kind, over the links that are up; None where no counter answers."""
    counts: Counter[str] = Counter()
    told = False
    for link in (link for link, is_up in links.items() if is_up):
        for name, says in _ERRORS.items():
            number = constant(nvml, name)
            count = ask(nvml, "nvmlDeviceGetNvLinkErrorCounter", gpu.handle, link, number)
            if count is not None:
                told = True
                counts[says] += int(count)
    if told:
        return counts
    for field, says in (  # from NVLink 5 on
        ("NVML_FI_DEV_NVLINK_COUNT_LINK_RECOVERY_FAILED_EVENTS", "recovery"),
        ("NVML_FI_DEV_NVLINK_COUNT_EFFECTIVE_ERRORS", "effective"),
    ):
        values = [field_value(nvml, gpu.handle, field, link) for link, is_up in links.items() if is_up]
        if any(value is not None for value in values):
            told = True
            counts[says] += sum(value or 0 for value in values)
    return counts if told else None
