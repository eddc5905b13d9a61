"""The fit of a link's model finds what made the measurements."""

from __future__ import annotations

import random

import pytest
from hypothesis import given
from hypothesis import settings as given_settings
from hypothesis import strategies as st

from unidle.errors import BadInput
from unidle.span.model.fit import FlowRates, fit, grows, rate_bps


def _measured(capacity: float, flow: float, noise: float, seed: int) -> list[FlowRates]:
    dice = random.Random(seed)
    counts, found = 1, []
    while True:
        rate = rate_bps(counts, capacity, flow)
        found.append(FlowRates(counts, tuple(rate * dice.uniform(1 - noise, 1 + noise) for _ in range(5))))
        if counts * flow > 2 * capacity or counts >= 64:
            return found
        counts *= 2


@given(capacity=st.floats(1e8, 1e11), share=st.floats(0.05, 3.0), seed=st.integers(0, 100))
@given_settings(max_examples=20)
def test_the_model_that_made_the_rates_is_found(capacity: float, share: float, seed: int) -> None:
    flow = min(capacity * share, capacity)
    model = fit([40e6] * 10, _measured(capacity, flow, 0.02, seed), seed=1)
    assert model.capacity_bps.value == pytest.approx(capacity, rel=0.06)
    assert model.flow_bps.value == pytest.approx(flow, rel=0.06)
    assert model.capacity_bps.low <= model.capacity_bps.value <= model.capacity_bps.high
    assert model.rate_bps(1) <= model.rate_bps(1000) == model.capacity_bps.value


def test_the_window_is_what_one_flow_has_on_its_way() -> None:
    model = fit([40e6] * 20, _measured(5e9, 293e6, 0.0, 0), seed=1)
    assert model.window_bits.value == pytest.approx(293e6 * 0.040)


def test_the_same_measurements_and_seed_give_the_same_intervals() -> None:
    rates = _measured(1e9, 2e8, 0.1, 3)
    trips = [20e6 + 1e5 * k for k in range(50)]
    assert fit(trips, rates, seed=7) == fit(trips, rates, seed=7)
    assert fit(trips, rates, seed=7) != fit(trips, rates, seed=8)
    assert fit(trips, rates, seed=7).p99_ns > fit(trips, rates, seed=7).latency_ns.value


@pytest.mark.parametrize(
    ("trips", "rates"),
    [
        ([], [FlowRates(1, (1.0,))]),
        ([0.0], [FlowRates(1, (1.0,))]),
        ([1.0], []),
        ([1.0], [FlowRates(1, (0.0,))]),
    ],
)
def test_what_cannot_be_fitted_is_refused(trips: list[float], rates: list[FlowRates]) -> None:
    with pytest.raises(BadInput, match="measure again"):
        fit(trips, rates, seed=1)


def test_growth_is_more_than_a_twentieth() -> None:
    assert grows(100, 110)
    assert not grows(100, 104)
