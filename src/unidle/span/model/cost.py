"""What training costs: a transformer stage from its shape, time on wires, and work that is lost with spot devices.

Integer nanoseconds and bytes. Sources: FLOPs and the split of the backward pass in two from "Zero Bubble Pipeline
Parallelism" (arXiv 2401.10241, table 1), 34 bytes kept per token and channel from "Reducing Activation Recomputation"
(arXiv 2205.05198, without the term of attention scores, which fused kernels do not keep), all-reduce by a ring.

Spot devices are revoked independently at constant rates, and one that goes stops the whole iteration. Work is saved after
every ``t`` seconds, each save takes ``w``, a restart ``u``, and a revocation during a restart begins it again. With
``r`` revocations a second over all devices in use, ``t`` seconds of work then take::

    exp(r u) (exp(r (t + w)) - 1) / r

in the mean: the "complete" model of Daly, "A higher order estimate of the optimum checkpoint interval for restart
dumps" (2006), exact for exponential times to failure; for small r it is Young's (1974) t + w + r t (t/2 + u).
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Final

KEPT_BYTES: Final = 34  # per token and channel of a layer, in values of two bytes
PARAMETERS: Final = 12  # times hidden squared, of a layer


@dataclass(frozen=True, slots=True)
class ModelShape:
    """A transformer and its microbatch; ``sequence`` in tokens, ``microbatch`` in sequences."""

    hidden: int
    sequence: int
    microbatch: int = 1
    bytes_per_value: int = 2

    @property
    def activation_bytes(self) -> int:
        """What crosses a cut for one microbatch, in either direction."""
        return self.bytes_per_value * self.microbatch * self.sequence * self.hidden

    @property
    def kept_bytes(self) -> int:
        """What the backward pass of one layer needs of one microbatch."""
        return KEPT_BYTES * self.microbatch * self.sequence * self.hidden * self.bytes_per_value // 2

    @property
    def parameter_bytes(self) -> int:
        """Gradients of one layer."""
        return PARAMETERS * self.hidden**2 * self.bytes_per_value

    @property
    def forward_flops(self) -> int:
        """One layer, one microbatch."""
        return self.weight_flops + 4 * self.microbatch * self.sequence**2 * self.hidden

    @property
    def backward_flops(self) -> int:
        """The gradient of the input; attention scores have no weights, so that it bears all of theirs."""
        return self.weight_flops + 8 * self.microbatch * self.sequence**2 * self.hidden

    @property
    def weight_flops(self) -> int:
        """The gradient of the weights."""
        return 24 * self.microbatch * self.sequence * self.hidden**2


def compute_ns(flops: int, tflops: float) -> int:
    """Time of so many operations at ``tflops`` (10^12 a second), to the nearest nanosecond."""
    return round(flops / (tflops * 1e3))


def wire_ns(size_bytes: int, gbps: float | None) -> int:
    """Time on the wire without its latency; None is a wire that takes no time."""
    return 0 if gbps is None else round(size_bytes * 8 / gbps)


def ring_ns(size_bytes: int, members: int, gbps: float | None) -> int:
    """All-reduce of ``size_bytes`` on each of ``members``: 2(n-1)/n of it leaves and enters each."""
    return wire_ns(2 * (members - 1) * size_bytes // members, gbps)


HOUR_S = 3600.0


@dataclass(frozen=True, slots=True)
class SaveTimes:
    """``every_s``: of work between two checkpoints; ``save_s``: work held up by one; ``restart_s``: until work resumes."""

    every_s: float
    save_s: float = 0.0
    restart_s: float = 0.0


def stretch(saving: SaveTimes, revocations_per_hour: float, iteration_s: float = 0.0) -> float:
    """The expected time of work over the time it takes undisturbed; infinite where it is beyond all measure.

    ``iteration_s``: work is saved between iterations, never more often than one ends.
    """
    work = max(saving.every_s, iteration_s)
    rate, segment = revocations_per_hour / HOUR_S, work + saving.save_s
    if rate == 0:
        return segment / work
    try:
        return math.exp(rate * saving.restart_s) * math.expm1(rate * segment) / (rate * work)
    except OverflowError:
        return math.inf


def repeats(saving: SaveTimes, revocations_per_hour: float, iteration_s: float = 0.0) -> float:
    """How often work is done in the mean until it is saved: bytes that leave a site are paid for each time."""
    work = max(saving.every_s, iteration_s)
    exponent = revocations_per_hour / HOUR_S * (work + saving.save_s)
    if exponent == 0:
        return 1.0
    try:
        return math.expm1(exponent) / exponent
    except OverflowError:
        return math.inf
