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

from unidle.predict import Estimate
from unidle.predict.regression import least_squares, t_quantile

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
    samples = [s for s in samples if s.devices > 0 and s.step_ns > 0]
    if any(s.model == model for s in samples):
        found, used, by = (
            _measured(samples, model, devices, scaling, level),
            len(samples),
            f"steps on {model}",
        )
    elif capability and model in capability:
        samples = [s for s in samples if s.model in capability]
        found, used = _carried(samples, model, devices, capability, scaling, level), len(samples)
        by = "steps on other models by their capability"
    else:
        return None
    if found is None:
        return None
    mean, low, high = (round(math.exp(min(v, 43.0))) for v in found)
    return Estimate(mean, low, high, round(level * 1e6), used, by)


_Bounds = tuple[float, float, float]  # of log(ns): expected, low, high


def _measured(
    samples: Sequence[StepSample], model: str, devices: int, scaling: float, level: float
) -> _Bounds | None:
    """Least squares of the first form in closed form: a level for each model, one slope within all of them.

    It needs no linear algebra, so that a start with a few measured steps stays quick.
    """
    groups: dict[str, list[tuple[float, float]]] = {}
    for s in samples:
        groups.setdefault(s.model, []).append((math.log(s.devices), math.log(s.step_ns)))
    centre = {
        name: (sum(x for x, _ in points) / len(points), sum(y for _, y in points) / len(points))
        for name, points in groups.items()
    }
    inside = [(x - centre[n][0], y - centre[n][1]) for n, points in groups.items() for x, y in points]
    fitted = any(len({x for x, _ in points}) > 1 for points in groups.values())
    spread = sum(x * x for x, _ in inside)
    slope = sum(x * y for x, y in inside) / spread if fitted else scaling
    freedom = len(samples) - len(groups) - fitted
    if freedom < 1:
        return None
    variance = sum((y - slope * x) ** 2 for x, y in inside) / freedom
    at = math.log(devices) - centre[model][0]
    leverage = 1 / len(groups[model]) + (at * at / spread if fitted else 0.0)
    half = t_quantile(0.5 + level / 2, freedom) * math.sqrt(variance * (1 + leverage))
    mean = centre[model][1] + slope * at
    return mean, mean - half, mean + half


def _carried(
    samples: Sequence[StepSample],
    model: str,
    devices: int,
    capability: Mapping[str, float],
    scaling: float,
    level: float,
) -> _Bounds | None:
    """Least squares of the second form."""
    if len({capability[s.model] for s in samples}) < 2:
        return None
    import numpy as np

    fitted = len({s.devices for s in samples}) > 1

    def row(name: str, count: int) -> list[float]:
        return [1.0, math.log(capability[name]), *([math.log(count)] if fitted else [])]

    fixed = 0.0 if fitted else scaling
    x: Floats = np.array([row(s.model, s.devices) for s in samples])
    y: Floats = np.array([math.log(s.step_ns) - fixed * math.log(s.devices) for s in samples])
    fit = least_squares(x, y)
    if fit is None:
        return None
    mean, low, high = (
        v + fixed * math.log(devices) for v in fit.predict(np.array(row(model, devices)), level)
    )
    return mean, low, high


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
