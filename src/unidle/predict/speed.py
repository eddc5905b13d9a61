"""Speed and cost of a job per GPU model, from a few measured steps.

The regression is in logarithms, so that bounds stay positive and errors are relative:

    log(step time) = m + b * log(devices)            m for each measured model of GPU
    log(step time) = m + k * log(capability) + b * log(devices)

The first serves models that were measured. The second carries over to one that was not, by a
capability that the caller gives for every model (peak TFLOP/s, for instance), as CM-DARE regresses
step time on the ratio of a network's complexity to a GPU's capability. ``b`` is fitted where
several cluster sizes were measured; else it is the caller's (-1: the same work split among more
devices; 0: each device has its own). Source of the approach: Li, Walls, Guo, "Characterizing and
Modeling Distributed Training with Transient Cloud GPU Servers", ICDCS 2020.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, NamedTuple

from unidle.predict.estimate import Estimate
from unidle.predict.regression import least_squares

if TYPE_CHECKING:
    from unidle.predict.regression import Floats

_HOUR_NS = 3_600_000_000_000


class StepSample(NamedTuple):
    """One measured step: on ``devices`` GPUs of one model it took ``step_ns``."""

    model: str
    devices: int
    step_ns: int


@dataclass(frozen=True, slots=True)
class RunEstimate:
    """Steps on one kind of devices: time per step, of the whole run, and its cost in millionths."""

    step: Estimate
    run: Estimate
    cost_micro: int | None = None
    cost_low_micro: int | None = None
    cost_high_micro: int | None = None


def step_time(
    samples: Sequence[StepSample],
    model: str,
    devices: int,
    *,
    capability: Mapping[str, float] | None = None,
    scaling: float = -1.0,
    level: float = 0.9,
) -> Estimate | None:
    """The time of one step on ``devices`` GPUs of ``model``; None where the samples do not tell.

    Too few of them (no more than there are unknowns), or a model that was not measured and whose
    capability, or that of two measured ones, is not given.
    """
    import numpy as np

    samples = [s for s in samples if s.devices > 0 and s.step_ns > 0]
    measured = list(dict.fromkeys(s.model for s in samples))
    if model in measured:
        own = {m: [float(m == other) for other in measured] for m in measured}
        by = f"steps on {model}"
    elif capability and model in capability:
        samples = [s for s in samples if s.model in capability]
        if len({capability[s.model] for s in samples}) < 2:
            return None
        known = {*(s.model for s in samples), model}
        own = {m: [1.0, math.log(capability[m])] for m in known}
        by = "steps on other models by their capability"
    else:
        return None
    sizes = {s.devices for s in samples}
    fitted = len(sizes) > 1

    def row(name: str, count: int) -> list[float]:
        return [*own[name], math.log(count)] if fitted else own[name]

    x: Floats = np.array([row(s.model, s.devices) for s in samples])
    fixed = 0.0 if fitted else scaling
    y: Floats = np.array([math.log(s.step_ns) - fixed * math.log(s.devices) for s in samples])
    fit = least_squares(x, y)
    if fit is None:
        return None
    found = fit.predict(np.array(row(model, devices)), level)
    mean, low, high = (round(math.exp(min(v + fixed * math.log(devices), 43.0))) for v in found)
    return Estimate(mean, low, high, round(level * 1e6), len(samples), by)


def run_of_steps(
    step: Estimate, steps: int, devices: int, price_per_device_hour: float | None = None
) -> RunEstimate:
    """The time and cost of ``steps`` steps; their errors are taken to be the same for all of them."""
    run = Estimate(
        step.value_ns * steps,
        step.low_ns * steps,
        step.high_ns * steps,
        step.level_ppm,
        step.samples,
        step.by,
    )
    if price_per_device_hour is None:
        return RunEstimate(step, run)
    price_micro = round(price_per_device_hour * 1e6)
    value, low, high = (
        ns * devices * price_micro // _HOUR_NS for ns in (run.value_ns, run.low_ns, run.high_ns)
    )
    return RunEstimate(step, run, value, low, high)
