"""A model as a run of it was measured: layers with their own times and bytes, and stages made of them."""

from __future__ import annotations

from dataclasses import dataclass
from functools import cached_property, lru_cache
from itertools import accumulate

import numpy as np
import numpy.typing as npt

from unidle.span.model.setting import Stage

Floats = npt.NDArray[np.float64]
Ints = npt.NDArray[np.int64]


@dataclass(frozen=True, slots=True)
class Layer:
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
class Measured:
    """Layers in order. ``microbatch``: sequences that the figures are of; ``tflops``: of the device that was measured."""

    layers: tuple[Layer, ...]
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
def _stage(measured: Measured, first: int, count: int, tflops: float) -> Stage:
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
