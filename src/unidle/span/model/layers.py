"""Layers of a model with their own times and bytes, as a run or a profile measured them, and the stages made of them."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property, lru_cache
from itertools import accumulate
from math import comb
from typing import Any, Final, NamedTuple

import numpy as np
import numpy.typing as npt

from unidle.span.model.setting import Stage

Floats = npt.NDArray[np.float64]
Ints = npt.NDArray[np.int64]


@dataclass(frozen=True, slots=True)
class LayerCost:
    """One layer and one microbatch: nanoseconds, and bytes.

    ``kept_bytes``: what its backward needs in addition to its own input; ``keeps_input``: whether that input has to be kept, too,
    and the layer before does not keep it already.
    """

    forward_ns: int
    backward_ns: int
    weight_ns: int
    recompute_ns: int
    kept_bytes: int
    input_bytes: int
    keeps_input: bool = True
    parameters_bytes: int = 0
    gradient_bytes: int = 0
    optimizer_bytes: int = 0
    name: str = ""

    @property
    def state_bytes(self) -> int:
        """What its device holds of it whatever it does."""
        return self.parameters_bytes + self.gradient_bytes + self.optimizer_bytes


@dataclass(frozen=True, eq=False)
class ModelCosts:
    """Layers in order. ``microbatch``: sequences that the figures are of; ``tflops``: of the device that was measured."""

    layers: tuple[LayerCost, ...]
    microbatch: int = 1
    tflops: float = 1.0

    def stage(self, first: int, count: int, tflops: float) -> Stage:
        """So many layers on a device; a faster one takes less time in proportion."""
        return _stage(self, first, count, tflops)

    @cached_property
    def sums(self) -> dict[str, list[int]]:
        """Of each figure the sums over the first n layers."""
        names = (
            "forward_ns", "backward_ns", "weight_ns", "recompute_ns", "kept_bytes", "gradient_bytes", "state_bytes",
        )  # fmt: skip
        found = {name: [0, *accumulate(getattr(layer, name) for layer in self.layers)] for name in names}
        held = (layer.input_bytes * layer.keeps_input for layer in self.layers)
        return found | {"inputs": [0, *accumulate(held)]}

    @cached_property
    def enters(self) -> Ints:
        """Bytes that enter each layer, shape ``(layers,)``."""
        return np.array([layer.input_bytes for layer in self.layers], dtype=np.int64)

    @cached_property
    def useful_ns(self) -> Ints:
        """Of a stage from one layer up to another, shape ``(layers, layers + 1)``; 0 and less where it is empty."""
        return self._spans("forward_ns", "backward_ns", "weight_ns")

    @cached_property
    def needed_bytes(self) -> Ints:
        """What a device holds of such a stage with one microbatch, in the same shape."""
        inner = self._spans("kept_bytes", "state_bytes", "inputs")
        first = [layer.input_bytes * (not layer.keeps_input) for layer in self.layers]
        found: Ints = inner + np.array(first, dtype=np.int64)[:, None]
        return found

    def _spans(self, *names: str) -> Ints:
        sums: Ints = np.array([self.sums[name] for name in names], dtype=np.int64).sum(axis=0)
        found: Ints = sums[None, :] - sums[:-1, None]
        return found


@lru_cache(maxsize=1 << 16)
def _stage(measured: ModelCosts, first: int, count: int, tflops: float) -> Stage:
    end, speed, sums = first + count, tflops / measured.tflops, measured.sums

    def of(name: str) -> int:
        return sums[name][end] - sums[name][first]

    def lasts(name: str) -> int:
        return round(of(name) / speed)

    return Stage(
        max(lasts("forward_ns"), 1), max(lasts("backward_ns"), 1), lasts("weight_ns"), lasts("recompute_ns"),
        of("kept_bytes") + sums["inputs"][end] - sums["inputs"][first + 1], of("gradient_bytes"),
        measured.layers[first].input_bytes, of("state_bytes"),
    )  # fmt: skip


class Median(NamedTuple):
    """The median of repeats with an interval that holds the true one in 95 % of cases, in nanoseconds."""

    value: int
    low: int
    high: int


@dataclass(frozen=True, slots=True)
class ProfiledLayer:
    """A layer with its intervals. ``split``: the gradient of the weights was measured apart, not as a difference."""

    layer: LayerCost
    kind: str
    forward: Median
    backward: Median
    weight: Median
    split: bool


@dataclass(frozen=True, slots=True)
class ModelProfile:
    """A whole model. ``step``: forward and backward of it uncut."""

    layers: tuple[ProfiledLayer, ...]
    step: Median
    device: str
    threads: int
    torch: str
    has_loss: bool

    @property
    def sum_ns(self) -> int:
        """All layers together."""
        return sum(each.forward.value + each.backward.value + each.weight.value for each in self.layers)


def median_of(samples: Sequence[int]) -> Median:
    """The middle one, and order statistics next to it: no distribution is assumed. Below 6 samples all of them."""
    ranked, count = sorted(samples), len(samples)
    middle = ranked[count // 2] if count % 2 else (ranked[count // 2 - 1] + ranked[count // 2] + 1) // 2
    out, below = 0, 0  # samples left out at each end, and how many of the 2^count cases that misses
    while 2 * (below + comb(count, out)) * 20 <= 2**count:
        below += comb(count, out)
        out += 1
    out = max(out - 1, 0)
    return Median(middle, ranked[out], ranked[count - 1 - out])


def profile_of(results: Sequence[Mapping[str, Any]]) -> ModelProfile:
    """The profile of one or more processes that measured at the same time, with all their repeats together."""
    first = results[0]
    layers = list[ProfiledLayer]()
    for k, told in enumerate(first["layers"]):
        times = {
            name: median_of([sample for result in results for sample in result["layers"][k][name]])
            for name in ("forward_ns", "backward_ns", "weight_ns")
        }
        forward, backward, weight = times.values()
        layer = LayerCost(
            forward.value, backward.value, weight.value, forward.value, told["kept_bytes"], told["input_bytes"],
            told["keeps_input"], told["parameters_bytes"], told["gradient_bytes"], told["optimizer_bytes"], told["name"],
        )  # fmt: skip
        layers.append(ProfiledLayer(layer, told["kind"], forward, backward, weight, told["split"]))
    step = median_of([sample for result in results for sample in result["step_ns"]])
    return ModelProfile(tuple(layers), step, first["device"], first["threads"], first["torch"], first["loss"])


OPERATIONS: Final = {"F": "forward", "B": "backward", "W": "weight", "R": "recompute"}


@dataclass(frozen=True, slots=True)
class StageTimes:
    """One stage of an attempt, over all its pipelines: nanoseconds for one microbatch, ``None`` where none was seen.

    ``joined``: both backward parts ran as one, and ``backward`` is both. ``layers``: ranges from the first to before the
    last, if the plan has them. ``sends_bytes``: of one microbatch's activations to the next stage.
    """

    stage: int
    site: str
    layers: tuple[tuple[int, int], ...]
    forward: Median | None
    backward: Median | None
    weight: Median | None
    recompute: Median | None
    sends_bytes: int | None
    microbatches: int
    joined: bool


def stage_times(
    plan: Mapping[str, Any], records: Iterable[tuple[str, Mapping[str, Any]]]
) -> list[StageTimes]:
    """Of each stage of the run plan; ``records``: what devices wrote, each with the device's name.

    The first step of the attempt, in which PyTorch warms up, does not count where there is another. Chunks of a stage are added up.
    """
    devices = {str(device["device"]): device for device in plan["devices"]}
    times: dict[tuple[str, int, int, str], int] = {}
    sent: dict[int, int] = {}
    for name, body in records:
        if body.get("kind") != "row" or name not in devices:
            continue
        op, step = str(body["op"]), int(body["step"])
        if op in OPERATIONS:
            key = (name, step, int(body["microbatch"]), op)
            times[key] = times.get(key, 0) + int(body["end_ns"]) - int(body["start_ns"])
        elif op == "send" and body.get("of") == "F":
            stage = int(devices[name]["stage"])
            sent[stage] = max(sent.get(stage, 0), int(body.get("bytes") or 0))
    first = min((step for _, step, _, _ in times), default=0)
    if any(step > first for _, step, _, _ in times):
        times = {key: ns for key, ns in times.items() if key[1] > first}
    return [_of_stage(plan, list(devices.values()), stage, times, sent) for stage in _stages(plan)]


def _stages(plan: Mapping[str, Any]) -> Sequence[int]:
    return sorted({int(device["stage"]) for device in plan["devices"]})


def _of_stage(
    plan: Mapping[str, Any], devices: Sequence[Mapping[str, Any]], stage: int,
    times: Mapping[tuple[str, int, int, str], int], sent: Mapping[int, int],
) -> StageTimes:  # fmt: skip
    own = [device for device in devices if int(device["stage"]) == stage]
    names = {str(device["device"]) for device in own}
    samples: dict[str, list[int]] = {op: [] for op in OPERATIONS}
    for (name, _, _, op), ns in times.items():
        if name in names:
            samples[op].append(ns)
    found = {OPERATIONS[op]: median_of(taken) if taken else None for op, taken in samples.items()}
    cut = plan["model"].get("cut")
    parts = range(stage, len(cut), len(_stages(plan))) if cut else ()
    return StageTimes(
        stage, str(own[0]["site"]), tuple((int(cut[k][0]), int(cut[k][1])) for k in parts), **found,
        sends_bytes=sent.get(stage), microbatches=len(samples["F"]),
        joined=bool(own[0].get("joined")) or not samples["W"],
    )  # fmt: skip
