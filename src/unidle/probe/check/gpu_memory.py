"""ECC, row remapping and page retirement of GPUs; RAS counters of AMD's."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Final

from unidle.fleet.amd import ras_errors
from unidle.fleet.nvml import Nvml
from unidle.probe.check.gpu import each_gpu
from unidle.probe.check.model import Check, Context, Outcome, ProbeResult, most, unknown
from unidle.probe.check.nvml import NvmlGpu, ask, constant, filled

Count = Callable[[Nvml, NvmlGpu], int | None]
_SRAM_PARTS: Final = ("L1_CACHE", "L2_CACHE", "REGISTER_FILE")  # GPUs before Turing count each by itself


def ecc(context: Context) -> Outcome:
    """Errors that ECC could not correct, in SRAM over the device's life, in DRAM since the driver came up."""
    nvidia = each_gpu(context, "ecc", _ecc)
    amd = list(_ras(context))
    if not amd:
        return nvidia
    return ProbeResult((*(nvidia.checks if isinstance(nvidia, ProbeResult) else ()), *amd))


def _ecc(context: Context, nvml: Nvml, found: list[NvmlGpu]) -> Iterator[Check]:
    modes = {gpu: ask(nvml, "nvmlDeviceGetEccMode", gpu.handle) for gpu in found}
    off = [gpu for gpu, mode in modes.items() if mode is not None and not mode[0]]
    needed = [gpu.name for gpu in off if context.limits(gpu.model).ecc_required]
    if needed:
        yield Check("ecc", False, len(found) - len(off), "GPUs", len(found), f"off on {', '.join(needed)}")
    asked = [gpu for gpu, mode in modes.items() if mode is not None and mode[0]]
    if not asked:
        required = any(context.limits(gpu.model).ecc_required for gpu in found)
        if required and not needed:
            yield unknown("ecc", "the driver does not report whether ECC is on")
        elif not needed:
            yield Check("ecc", True, 0, "GPUs", None, "these GPUs have no ECC, or it is off")
        return
    if not needed:
        yield Check("ecc", True, len(asked), "GPUs", None, "on")
    yield from _worst(context, nvml, asked, "ecc.sram", "sram_uncorrectable", sram_errors)
    yield from _worst(context, nvml, asked, "ecc.dram", "dram_uncorrectable", dram_errors)


def _worst(
    context: Context, nvml: Nvml, found: list[NvmlGpu], name: str, limit: str, read: Count
) -> Iterator[Check]:
    counts = {gpu: read(nvml, gpu) for gpu in found}
    silent = [gpu.name for gpu, count in counts.items() if count is None]
    known = {gpu: int(count) for gpu, count in counts.items() if count is not None}
    if known:
        worst = max(known, key=lambda gpu: known[gpu])
        some = [f"{gpu.name} ({gpu.bus_id}): {count}" for gpu, count in known.items() if count]
        yield most(
            name,
            known[worst],
            "errors",
            getattr(context.limits(worst.model), limit),
            ", ".join(some) or "none",
        )
    if silent:
        yield unknown(name, f"the driver does not report it for {', '.join(silent)}")


def sram_errors(nvml: Nvml, gpu: NvmlGpu) -> int | None:
    """Uncorrectable errors in SRAM; None if the driver reports no count.

    Parity and double-bit errors: over the GPU's life or since the driver started, whichever is more. Older drivers
    report only a total over the GPU's life.
    """
    status = filled(nvml, "nvmlDeviceGetSramEccErrorStatus", gpu.handle, "c_nvmlEccSramErrorStatus_v1_t")
    if status is not None:
        life, lately = (
            sum(int(getattr(status, since + kind)) for kind in ("UncParity", "UncSecDed"))
            for since in ("aggregate", "volatile")
        )
        return max(life, lately)
    found = _total(nvml, gpu, "NVML_AGGREGATE_ECC", "NVML_MEMORY_LOCATION_SRAM")
    if found is not None:
        return found
    parts = [_total(nvml, gpu, "NVML_AGGREGATE_ECC", f"NVML_MEMORY_LOCATION_{part}") for part in _SRAM_PARTS]
    told = [count for count in parts if count is not None]
    return sum(told) if told else None


def dram_errors(nvml: Nvml, gpu: NvmlGpu) -> int | None:
    """Errors in DRAM since the driver came up that ECC could not correct; None if the driver does not report it."""
    found = _total(nvml, gpu, "NVML_VOLATILE_ECC", "NVML_MEMORY_LOCATION_DRAM")
    if found is not None:
        return found
    kinds = ("NVML_MEMORY_ERROR_TYPE_UNCORRECTED", "NVML_VOLATILE_ECC")
    numbers = [constant(nvml, kind) for kind in kinds]
    return ask(nvml, "nvmlDeviceGetTotalEccErrors", gpu.handle, *numbers, read=int)  # type: ignore[no-any-return]


def _total(nvml: Nvml, gpu: NvmlGpu, since: str, where: str) -> int | None:
    kind = constant(nvml, "NVML_MEMORY_ERROR_TYPE_UNCORRECTED")
    numbers = (kind, constant(nvml, since), constant(nvml, where))
    return ask(nvml, "nvmlDeviceGetMemoryErrorCounter", gpu.handle, *numbers, read=int)  # type: ignore[no-any-return]


def remap(context: Context) -> Outcome:
    """Rows that wait for a reset to be remapped, and remaps that failed; retired pages on older GPUs."""
    return each_gpu(context, "remap", _remap)


def _remap(context: Context, nvml: Nvml, found: list[NvmlGpu]) -> Iterator[Check]:
    rows = {gpu: ask(nvml, "nvmlDeviceGetRemappedRows", gpu.handle) for gpu in found}
    known = {gpu: row for gpu, row in rows.items() if row is not None}
    pending = [gpu.name for gpu, row in known.items() if row[2]]
    failed = [gpu.name for gpu, row in known.items() if row[3]]
    for gpu in rows.keys() - known.keys():
        waits = ask(nvml, "nvmlDeviceGetRetiredPagesPendingStatus", gpu.handle)
        if waits is not None:
            known[gpu] = None
            pending += [gpu.name] if waits else []
    if not known:
        yield unknown("remap", "the driver reports neither remapped rows nor retired pages")
        return
    limits = context.limits(next(iter(known)).model)
    says = f"{', '.join(pending)}: needs a reset" if pending else "none"
    yield most("remap.pending", len(pending), "GPUs", limits.remap_pending, says)
    says = f"{', '.join(failed)}: no spare row was left, replace it" if failed else "none"
    yield most("remap.failed", len(failed), "GPUs", limits.remap_failed, says)


def _ras(context: Context) -> Iterator[Check]:
    counts = ras_errors(context.sys)
    if counts:
        some = [f"{card}: {count}" for card, count in counts.items() if count]
        limit = context.limits().dram_uncorrectable
        yield most("ecc.amd", max(counts.values()), "errors", limit, ", ".join(some) or "none")
