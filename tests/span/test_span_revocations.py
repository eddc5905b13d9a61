"""Devices that are revoked: the formula against chance itself, and what it does to a plan."""

from __future__ import annotations

import math
from dataclasses import replace
from typing import Any, cast

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from span.plans import small_case
from span.reading import span_from_mapping, wanted_from_mapping
from unidle.errors import BadInput
from unidle.span.files.plan import as_file
from unidle.span.model.cost import SaveTimes, repeats, stretch
from unidle.span.plan.offer import PlanRequest
from unidle.span.plan.search import Objective, brute, plan
from unidle.span.simulate.iteration import expected, simulate
from unidle.span.simulate.schedules import SCHEDULES


def lived(saving: SaveTimes, rate: float, segments: int, chance: np.random.Generator) -> tuple[float, float]:
    """Seconds that so many segments of work really take, and seconds in which work was done, with revocations by chance."""
    total = worked = 0.0
    left = chance.exponential(1 / rate)
    for _ in range(segments):
        needed = saving.every_s + saving.save_s
        while left < needed:
            total, worked = total + left, worked + left
            left = chance.exponential(1 / rate)
            while left < saving.restart_s:
                total += left
                left = chance.exponential(1 / rate)
            total, left = total + saving.restart_s, left - saving.restart_s
        total, worked, left = total + needed, worked + needed, left - needed
    return total, worked


@pytest.mark.parametrize(
    ("saving", "per_hour"),
    [
        (SaveTimes(600, 20, 300), 2.0),
        (SaveTimes(600, 0, 60), 0.5),
        (SaveTimes(1800, 60, 600), 4.0),
        (SaveTimes(60, 5, 900), 1.0),
    ],
)
def test_the_expected_time_is_what_chance_gives(saving: SaveTimes, per_hour: float) -> None:
    segments = 20_000
    total, worked = lived(saving, per_hour / 3600, segments, np.random.default_rng(7))
    assert total / (segments * saving.every_s) == pytest.approx(stretch(saving, per_hour), rel=0.03)
    both = segments * (saving.every_s + saving.save_s)
    assert worked / both == pytest.approx(repeats(saving, per_hour), rel=0.03)


def test_rare_revocations_cost_half_an_interval_and_a_restart() -> None:
    """Young's line of thought is the limit."""
    saving, rate = SaveTimes(600, 20, 300), 0.001
    first_order = (600 + 20 + rate / 3600 * 620 * (620 / 2 + 300)) / 600
    assert stretch(saving, rate) == pytest.approx(first_order, rel=1e-6)
    assert stretch(saving, 0) == 620 / 600 and repeats(saving, 0) == 1
    assert stretch(saving, 1e9) == math.inf


@given(
    st.floats(1, 5000), st.floats(0, 100), st.floats(0, 1000), st.floats(0, 50), st.floats(0, 1e4), st.floats(0, 1e4)
)  # fmt: skip
def test_more_undisturbed_time_is_never_less_expected_time(
    every: float, save: float, restart: float, rate: float, a: float, b: float
) -> None:
    saving, (few, many) = SaveTimes(every, save, restart), sorted((a, b))
    assert few * stretch(saving, rate, few) <= many * stretch(saving, rate, many) * (1 + 1e-12)


def spot(seed: int) -> PlanRequest:
    case = small_case(seed)
    offers = tuple(
        replace(offer, revocations_per_hour=(seed * 7 + k * 3) % 5 * 20.0)
        for k, offer in enumerate(case.offers)
    )
    return replace(case, offers=offers, saving=SaveTimes(60, 1 + seed % 3, 30))


@pytest.mark.parametrize("seed", range(0, 40, 2))
@pytest.mark.parametrize("objective", ["time", "cost"])
def test_a_plan_with_revocations_is_as_good_as_brute_force_and_told_as_expected(
    seed: int, objective: str
) -> None:
    case, aim = spot(seed), cast("Objective", objective)
    try:
        every = brute(case, aim, "zb-h1")
    except BadInput:
        return
    ours = plan(case, aim, "zb-h1", work_most=None)
    assert ours.value == every.value and ours.bound <= ours.value
    assert ours.lower_bound_ns <= ours.result.iteration_ns
    again = span_from_mapping(as_file(case, ours.layout))
    found = expected(again, simulate(again, SCHEDULES["zb-h1"]).result)
    assert found is not None
    told = found.iteration_ns if objective == "time" else found.cost_per_iteration
    assert told == pytest.approx(ours.value, rel=1e-6, abs=0.51 if objective == "time" else 0)


SITES = {
    "model": {"layers": 4, "hidden": 256, "sequence": 256}, "batch": 4, "device_tflops": 1,
    "sites": [
        {"name": "spot", "gpus": 4, "price_per_gpu_hour": 1},
        {"name": "firm", "gpus": 4, "price_per_gpu_hour": 3},
    ],
}  # fmt: skip


def test_cheap_devices_that_go_too_often_are_not_the_cheapest() -> None:
    def chosen(rate: float) -> str:
        sites = cast("Any", SITES["sites"])
        given: dict[str, Any] = SITES | {"sites": [sites[0] | {"revocations_per_hour": rate}, sites[1]]}
        made = plan(
            wanted_from_mapping(given | {"checkpoint_every_s": 600, "restart_s": 600}), "cost", "zb-h1"
        )
        return made.wanted.offers[made.layout.order[0]].name

    assert [chosen(rate) for rate in (0, 0.1, 10)] == ["spot", "spot", "firm"]


@pytest.mark.parametrize(
    ("change", "words"),
    [
        ({"restart_s": 5}, "restart_s: needs the interval between checkpoints"),
        ({"checkpoint_s": 5}, "checkpoint_s: needs the interval"),
        ({"sites": [{"name": "a", "gpus": 1, "revocations_per_hour": 1}]}, "sites[0].revocations_per_hour: needs the interval"),
        ({"sites": [{"name": "a", "gpus": 1, "revocations_per_hour": -1}]}, "sites[0].revocations_per_hour"),
        ({"checkpoint_every_s": 0}, "checkpoint_every_s"),
    ],
)  # fmt: skip
def test_what_is_missing_or_wrong_is_one_error(change: dict[str, Any], words: str) -> None:
    with pytest.raises(BadInput) as refused:
        wanted_from_mapping(SITES | change)
    assert words in str(refused.value) and refused.value.remedy


def test_devices_that_never_stay_long_enough_are_refused() -> None:
    sites = [{"name": "spot", "gpus": 4, "revocations_per_hour": 1e6}]
    with pytest.raises(BadInput, match="no layout ever ends an iteration"):
        plan(wanted_from_mapping(SITES | {"sites": sites, "checkpoint_every_s": 600}), "time", "zb-h1")
