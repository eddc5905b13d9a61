"""Repeats exact products on every device for as long as asked, and watches clocks, heat and errors meanwhile."""

from __future__ import annotations

import contextlib
import statistics
import time
from collections.abc import Iterator
from dataclasses import dataclass, field

from unidle.fleet.nvml import Nvml
from unidle.probe.check.gemm import KINDS, Product, devices, exact_only, name_of, timed
from unidle.probe.check.gpu import BAD_REASONS, throttle_reasons
from unidle.probe.check.gpu_memory import dram_errors
from unidle.probe.check.model import Absent, Check, Context, Outcome, ProbeResult, least, most
from unidle.probe.check.nvml import Missing, NvmlGpu, ask, constant, gpus, opened


@dataclass(slots=True)
class _Watch:
    """What NVML reported while the devices were busy."""

    nvml: Nvml | None = None
    gpus: list[NvmlGpu] = field(default_factory=list)
    hottest: int = 0
    held: dict[str, None] = field(default_factory=dict)
    errors_before: dict[int, int | None] = field(default_factory=dict)

    def look(self) -> None:
        for gpu in self.gpus:
            assert self.nvml is not None
            sensor = constant(self.nvml, "NVML_TEMPERATURE_GPU")
            self.hottest = max(
                self.hottest, ask(self.nvml, "nvmlDeviceGetTemperature", gpu.handle, sensor) or 0
            )
            reasons = throttle_reasons(self.nvml, gpu) or 0
            self.held.update(
                {f"{gpu.name}: {says}": None for bit, says in BAD_REASONS.items() if reasons & bit}
            )

    def new_errors(self) -> int:
        total = 0
        for gpu in self.gpus:
            assert self.nvml is not None
            before, now = self.errors_before[gpu.index], dram_errors(self.nvml, gpu)
            total += max((now or 0) - (before or 0), 0)
        return total


def burn_in(context: Context) -> Outcome:
    """Every product is checked; a device whose rate falls while it is busy is found by its slowest second."""
    try:
        import torch  # noqa: F401
    except ImportError:
        return Absent("PyTorch is not installed in unidle's environment")
    exact_only()
    with contextlib.ExitStack() as stack:
        watch = _Watch()
        with contextlib.suppress(Missing):
            watch.nvml = stack.enter_context(opened(context.nvml))
            watch.gpus = list(gpus(watch.nvml))
            watch.errors_before = {gpu.index: dram_errors(watch.nvml, gpu) for gpu in watch.gpus}
        return ProbeResult(tuple(_burn(context, watch)))


def _burn(context: Context, watch: _Watch) -> Iterator[Check]:
    products = [
        (device, Product(kind, 4096 if device != "cpu" else 512, device, seed=11))
        for device in devices()
        for kind in KINDS
        if device != "cpu" or kind.name != "float16"
    ]
    until = time.monotonic() + context.duration_s
    wrong: dict[str, int] = {}
    rates: dict[str, list[float]] = {}
    done = 0
    while done == 0 or time.monotonic() < until:
        spent: dict[str, float] = {}
        for device, product in products:
            seconds, c = timed(product.multiply, device)
            spent[device] = spent.get(device, 0.0) + seconds
            if context.damage is not None:
                context.damage(c)
            if (problem := product.wrong(c)) is not None:
                text = f"{device}: {problem}"
                wrong[text] = wrong.get(text, 0) + 1
            done += 1
        for device, seconds in spent.items():
            rates.setdefault(device, []).append(seconds)
        watch.look()
    says = (
        "; ".join(f"{text} ({count} times)" for text, count in list(wrong.items())[:4])
        or f"{done} products exact"
    )
    yield most("burn_in.gemm", sum(wrong.values()), "wrong products", context.limits().gemm_wrong, says)
    yield from _steady(context, rates)
    if watch.gpus:
        limits = context.limits(watch.gpus[0].model)
        yield most("burn_in.heat", watch.hottest, "C", limits.gpu_temperature_c, "hottest GPU under load")
        held = "; ".join(watch.held) or "no clock was held down"
        yield most("burn_in.clocks", len(watch.held), "reasons", 0, held)
        yield most("burn_in.ecc", watch.new_errors(), "new errors", limits.dram_uncorrectable, "that ECC could not correct")  # fmt: skip


def _steady(context: Context, rates: dict[str, list[float]]) -> Iterator[Check]:
    """A twentieth of the rounds may be slow: other work on the machine is no fault of the device."""
    ratios = {}
    for device, seconds in rates.items():
        if len(seconds) >= 20:
            slow = sorted(seconds)[int(len(seconds) * 0.95)]
            ratios[device] = statistics.median(seconds) / slow
    if ratios:
        worst = min(ratios, key=lambda device: ratios[device])
        limit = context.limits(name_of(worst)).burn_in_slowest_ratio if worst != "cpu" else None
        yield least(
            "burn_in.steady", ratios[worst], "of the median rate", limit, f"95th percentile on {worst}"
        )
