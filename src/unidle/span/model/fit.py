"""The model of a link between two sites, fitted to what a probe measured.

n flows together reach ``min(capacity, n * window_bits / latency)`` bits a second: one flow sends a window, then waits for
its acknowledgement (Mathis and others 1997 for why; ATLAS, arXiv 2411.14458, uses about 12 Mbit). Intervals are from a
bootstrap whose seed is given, so the same measurements give the same intervals.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Final

import numpy as np

from unidle.errors import BadInput
from unidle.fleet import Link, LinkMeasured

_RESAMPLES: Final = 1000
_OUTER: Final = (2.5, 97.5)


@dataclass(frozen=True, slots=True)
class Interval:
    """A value and its 95 % interval, in one unit."""

    value: float
    low: float
    high: float


@dataclass(frozen=True, slots=True)
class FlowRates:
    """What so many flows reached together, bits a second, once for each try."""

    flows: int
    bits_per_s: tuple[float, ...]


@dataclass(frozen=True, slots=True)
class LinkModel:
    """A link in one direction. ``latency_ns`` is the round trip, without load."""

    latency_ns: Interval
    p99_ns: float
    jitter_ns: float
    capacity_bps: Interval
    flow_bps: Interval
    window_bits: Interval

    def rate_bps(self, flows: int) -> float:
        """Bits a second that so many flows reach together."""
        return rate_bps(flows, self.capacity_bps.value, self.flow_bps.value)


def rate_bps(flows: int, capacity_bps: float, flow_bps: float) -> float:
    """The model: flows add up until the link is full."""
    return min(capacity_bps, flows * flow_bps)


def fit(round_trips_ns: Sequence[float], rates: Sequence[FlowRates], seed: int) -> LinkModel:
    """The model of least squared relative error, with intervals.

    Jitter is the mean difference of two round trips that follow each other (RFC 3550, without its smoothing). Errors:
    :class:`BadInput` where there is nothing to fit, or a measurement is not above 0.
    """
    _check(round_trips_ns, rates)
    trips = np.asarray(round_trips_ns, dtype=float)
    dice = np.random.default_rng(seed)
    picks = dice.integers(len(trips), size=(_RESAMPLES, len(trips)))
    medians = np.median(trips[picks], axis=1)
    latency = float(np.median(trips))
    capacity, flow = _best([(each.flows, list(each.bits_per_s)) for each in rates])
    drawn = [
        _best([(each.flows, list(dice.choice(each.bits_per_s, len(each.bits_per_s)))) for each in rates])
        for _ in range(_RESAMPLES)
    ]
    capacities, flows = np.array(drawn).T
    return LinkModel(
        latency_ns=_interval(latency, medians),
        p99_ns=float(np.percentile(trips, 99)),
        jitter_ns=float(np.abs(np.diff(trips)).mean()) if len(trips) > 1 else 0.0,
        capacity_bps=_interval(capacity, capacities),
        flow_bps=_interval(flow, flows),
        window_bits=_interval(flow * latency / 1e9, flows * medians / 1e9),
    )


def link_of(a: str, b: str, model: LinkModel, loss: float) -> Link:
    """The link of a fleet. Its latency is of one direction: half the round trip; ``loss`` is a part of 1."""
    return Link(
        a,
        b,
        _whole(model.capacity_bps.value),
        _whole(model.latency_ns.value / 2),
        flow_bps=_whole(model.flow_bps.value),
        measured=LinkMeasured(
            _ends(model.capacity_bps, 1),
            _ends(model.latency_ns, 2),
            _ends(model.flow_bps, 1),
            round(loss * 1e6),
        ),
    )


def _whole(value: float) -> int:
    return max(round(value), 1)


def _ends(interval: Interval, parts: int) -> tuple[int, int]:
    return _whole(interval.low / parts), _whole(interval.high / parts)


def grows(before: float, after: float, least: float = 0.05) -> bool:
    """Whether more flows are worth a further try: the rate grew by more than a twentieth."""
    return after > before * (1 + least)


def _best(points: list[tuple[int, list[float]]]) -> tuple[float, float]:
    """Capacity and rate of one flow.

    Which counts of flows lie below the knee is tried for each split: below it the rate of one flow is a mean of rate / n,
    above it the capacity is a mean of rates. With all below, the capacity is the most that was seen: a lower bound.
    """
    points = sorted(points)
    best: tuple[float, float, float] | None = None
    for split in range(1, len(points) + 1):
        under = [rate / n for n, rates in points[:split] for rate in rates]
        over = [rate for _, rates in points[split:] for rate in rates]
        flow = sum(under) / len(under)
        capacity = sum(over) / len(over) if over else flow * points[-1][0]
        error = sum((rate_bps(n, capacity, flow) / rate - 1) ** 2 for n, rates in points for rate in rates)
        if best is None or error < best[0] * (1 - 1e-9):
            best = (error, capacity, min(flow, capacity))
    assert best is not None
    return best[1], best[2]


def _interval(value: float, drawn: np.ndarray[tuple[int, ...], np.dtype[np.float64]]) -> Interval:
    low, high = np.percentile(drawn, _OUTER)
    return Interval(value, min(float(low), value), max(float(high), value))


def _check(round_trips_ns: Sequence[float], rates: Sequence[FlowRates]) -> None:
    not_positive: Callable[[Sequence[float]], bool] = lambda values: not values or min(values) <= 0  # noqa: E731
    if not_positive(round_trips_ns):
        raise BadInput(
            "needs round trips above 0",
            field="round_trips_ns",
            value=len(round_trips_ns),
            remedy="measure again",
        )
    if not rates:
        raise BadInput("needs the rate of one flow at least", field="rates", remedy="measure again")
    for each in rates:
        if each.flows < 1 or not_positive(each.bits_per_s):
            raise BadInput(
                "needs rates above 0",
                field=f"rates of {each.flows} flows",
                value=each.bits_per_s,
                remedy="measure again",
            )
