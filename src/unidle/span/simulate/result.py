"""What is reported about a simulated iteration."""

from __future__ import annotations

from dataclasses import dataclass

from unidle.span.model.revocations import repeats, stretch
from unidle.span.model.setting import Setting


@dataclass(frozen=True, slots=True)
class Result:
    """One schedule in one setting.

    ``utilisation``: forward and both backward parts, without recompute, over devices times iteration.
    ``exposed_wan_ns``: what a device waits for a transfer between sites and for nothing else, mean over the devices.
    ``peak_memory_bytes``: of the fullest device. ``wan_bytes``: over all links between sites in one iteration.
    ``cost_per_iteration``: GPU-hours at the sites' prices, and egress. ``chosen``: what a schedule that searches took.
    """

    schedule: str
    iteration_ns: int
    utilisation: float
    exposed_wan_ns: int
    peak_memory_bytes: int
    wan_bytes: int
    lower_bound_ns: int
    cost_per_iteration: float
    chosen: str
    peak_memory_by_stage: tuple[int, ...]
    checked: bool
    reconstructed: bool


def cost_of(setting: Setting, iteration_ns: int, egress: float) -> float:
    """Money of an iteration: all devices for as long as it takes, and ``egress``."""
    hour_ns = 3_600_000_000_000
    devices = sum(site.stages * setting.pipelines * site.price_per_gpu_hour for site in setting.sites)
    return devices * iteration_ns / hour_ns + egress


@dataclass(frozen=True, slots=True)
class Expected:
    """An iteration with lost work, checkpoints and restarts in the mean; ``stretch``: over the undisturbed one."""

    revocations_per_hour: float
    iteration_ns: int
    cost_per_iteration: float
    stretch: float


def expected(setting: Setting, result: Result) -> Expected | None:
    """The expected iteration where devices are revoked; None if the setting has no ``saving``. Source: `revocations.py`."""
    saving, length = setting.saving, result.iteration_ns
    if saving is None:
        return None
    rate, seconds = setting.revocations_per_hour, length / 1e9
    more = stretch(saving, rate, seconds)
    hours = cost_of(setting, length, 0.0)
    egress = (result.cost_per_iteration - hours) * repeats(saving, rate, seconds)
    return Expected(rate, round(length * more), hours * more + egress, more)
