"""What repeats of a measurement say: medians with intervals, layer by layer."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from math import comb
from typing import Any, NamedTuple

from unidle.span.model.measured import Layer


class Median(NamedTuple):
    """The median of repeats with an interval that holds the true one in 95 % of cases, in nanoseconds."""

    value: int
    low: int
    high: int


@dataclass(frozen=True, slots=True)
class Profiled:
    """A layer with its intervals. ``split``: the gradient of the weights was measured apart, not as a difference."""

    layer: Layer
    kind: str
    forward: Median
    backward: Median
    weight: Median
    split: bool


@dataclass(frozen=True, slots=True)
class Profile:
    """A whole model. ``step``: forward and backward of it uncut."""

    layers: tuple[Profiled, ...]
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


def profile_of(results: Sequence[Mapping[str, Any]]) -> Profile:
    """The profile of one or more processes that measured at the same time, with all their repeats together."""
    first = results[0]
    layers = list[Profiled]()
    for k, told in enumerate(first["layers"]):
        times = {
            name: median_of([sample for result in results for sample in result["layers"][k][name]])
            for name in ("forward_ns", "backward_ns", "weight_ns")
        }
        forward, backward, weight = times.values()
        layer = Layer(
            forward.value, backward.value, weight.value, forward.value, told["kept_bytes"], told["input_bytes"],
            told["keeps_input"], told["parameters_bytes"], told["gradient_bytes"], told["optimizer_bytes"], told["name"],
        )  # fmt: skip
        layers.append(Profiled(layer, told["kind"], forward, backward, weight, told["split"]))
    step = median_of([sample for result in results for sample in result["step_ns"]])
    return Profile(tuple(layers), step, first["device"], first["threads"], first["torch"], first["loss"])
