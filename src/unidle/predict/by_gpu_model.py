"""What a job would take and cost on each model of GPU, from the steps that jobs like it showed.

Peak speeds as the vendors state them carry measured steps over to another model. They are of dense 16-bit matrix
arithmetic with 32-bit accumulation, without sparsity, in TFLOP/s. Sources: the vendors' data sheets of each product (NVIDIA: V100, T4, A10, A30, A40, A100, L4, L40, L40S, H100, H100 NVL, H200 Tensor Core GPU,
where figures with sparsity are halved; AMD: Instinct MI210, MI250, MI250X, MI300X, MI325X). A model that is not
here is known only by its own steps.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import lru_cache
from typing import Final, NamedTuple

from unidle.jobs import JobSpec
from unidle.jobs.speeds import SpeedRun
from unidle.predict import Estimate
from unidle.predict.speed import RunEstimate, StepSample, run_of_steps, step_time
from unidle.share.select import names_model


class Peak(NamedTuple):
    """``name`` as people write it (see ``share.select``); the first that fits a model counts."""

    name: str
    vendor: str
    tflops: float


PEAKS: Final = (
    Peak("H100 PCIe", "nvidia", 756.5),
    Peak("H100 NVL", "nvidia", 835.5),
    Peak("H100", "nvidia", 989.4),
    Peak("H200", "nvidia", 989.4),
    Peak("A100", "nvidia", 312.0),
    Peak("A40", "nvidia", 149.7),
    Peak("A30", "nvidia", 165.0),
    Peak("A10", "nvidia", 125.0),
    Peak("L40S", "nvidia", 362.0),
    Peak("L40", "nvidia", 181.0),
    Peak("L4", "nvidia", 121.0),
    Peak("V100 PCIe", "nvidia", 112.0),
    Peak("V100", "nvidia", 125.0),
    Peak("T4", "nvidia", 65.0),
    Peak("MI325X", "amd", 1307.4),
    Peak("MI300X", "amd", 1307.4),
    Peak("MI250X", "amd", 383.0),
    Peak("MI250", "amd", 362.1),
    Peak("MI210", "amd", 181.0),
)


@lru_cache(maxsize=1024)
def peak_of(model: str) -> Peak | None:
    """The stated peak of a model, as NVML or a fleet file names it; None where it is not known here."""
    return next((peak for peak in PEAKS if names_model(peak.name, model)), None)


def capabilities(model: str, measured: tuple[str, ...]) -> dict[str, float]:
    """Peaks of ``model`` and of those measured ones that are of its vendor: software differs between vendors."""
    own = peak_of(model)
    if own is None:
        return {}
    peaks = {name: peak_of(name) for name in (model, *measured)}
    return {name: p.tflops for name, p in peaks.items() if p is not None and p.vendor == own.vendor}


_SPARE: Final = 2  # degrees of freedom at least: with one alone, bounds say nothing
_HOUR_NS: Final = 3_600e9


@dataclass(frozen=True, slots=True)
class Forecast:
    """One model for one job: ``step`` on its number of devices, whether that was ``measured`` on this model.

    ``runs`` and ``steps`` are the attempts and steps behind it. ``split``: all were on one other number of devices,
    and the work of a step is taken to be split among these. ``price_per_hour`` is of one device, in the fleet's
    currency. ``by_cost``: the job chooses by money.
    """

    model: str
    devices: int
    step: Estimate
    measured: bool
    runs: int
    steps: int
    price_per_hour: float | None = None
    by_cost: bool = False
    split: bool = False

    @property
    def cost_per_step(self) -> float | None:
        """In the fleet's currency, for all devices of the job; None without a price."""
        if self.price_per_hour is None:
            return None
        return self.step.value_ns * self.devices * self.price_per_hour / _HOUR_NS

    def of_steps(self, steps: int) -> RunEstimate:
        """Time and cost of so many steps."""
        return run_of_steps(self.step, steps, self.devices, self.price_per_hour)


def price_of(spec: JobSpec, model: str, prices: Mapping[str, float]) -> float | None:
    """Of one device for an hour: the job's own word before the fleet's."""
    return prices.get(model) if spec.price_per_device_hour is None else spec.price_per_device_hour


def forecasts(
    runs: Sequence[SpeedRun], models: Sequence[str], spec: JobSpec, prices: Mapping[str, float]
) -> dict[str, Forecast]:
    """By model, as far as the runs tell; a model that was not measured only by its capability."""
    samples, by_cost = samples_of(runs), spec.hardware.prefer == "cost"
    measured = tuple(dict.fromkeys(run.model for run in runs))
    found: dict[str, Forecast] = {}
    for model in models:
        own = [run for run in runs if run.model == model]
        capability = {} if own else capabilities(model, measured)
        step = step_time(samples, model, spec.devices, capability=capability)
        if step is not None:
            behind = own or runs
            found[model] = Forecast(
                model, spec.devices, step, bool(own), len(behind), sum(run.steps for run in behind),
                price_of(spec, model, prices), by_cost, _is_split(runs, behind, spec.devices),
            )  # fmt: skip
    return found


def _is_split(runs: Sequence[SpeedRun], behind: Sequence[SpeedRun], devices: int) -> bool:
    sizes: dict[str, set[int]] = {}
    for run in runs:
        sizes.setdefault(run.model, set()).add(run.devices)
    fitted = any(len(found) > 1 for found in sizes.values())
    return not fitted and devices not in {run.devices for run in behind}


def samples_of(runs: Sequence[SpeedRun]) -> list[StepSample]:
    """One sample for each attempt where they are enough; else for each part of one.

    Parts of an attempt tell how much steps vary within it, not from one attempt to the next: their bounds
    are narrower.
    """
    models = {run.model for run in runs}
    sizes = {run.devices for run in runs}
    unknowns = len(models) + (len(sizes) > 1)
    if len(runs) >= unknowns + _SPARE:
        return [StepSample(run.model, run.devices, run.mean_ns) for run in runs]
    return [StepSample(run.model, run.devices, ns) for run in runs for ns in (run.part_ns or (run.mean_ns,))]
