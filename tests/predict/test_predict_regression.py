"""Least squares with prediction intervals, and the speed and cost of steps on a kind of GPU."""

from __future__ import annotations

import math
import random

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from unidle.control.replay.simulate import Arrival, simulate
from unidle.engine.sim.workload import SimJob
from unidle.fleet import Device, Fleet, Node
from unidle.jobs import JobSpec
from unidle.place.policy import FirstFit
from unidle.predict.regression import least_squares, t_cdf, t_quantile
from unidle.predict.speed import StepSample, run_of_steps, step_time
from unidle.store.memory import MemoryStore
from unidle.view.speeds import job_runs

MS = 1_000_000


# From printed tables of Student's distribution.
@pytest.mark.parametrize(
    ("probability", "freedom", "value"),
    [
        (0.95, 1, 6.314), (0.975, 1, 12.706), (0.95, 2, 2.920), (0.975, 5, 2.571), (0.95, 10, 1.812),
        (0.995, 10, 3.169), (0.975, 30, 2.042), (0.95, 1000, 1.646),
    ],
)  # fmt: skip
def test_quantiles_of_student_are_those_of_the_tables(probability: float, freedom: int, value: float) -> None:
    assert t_quantile(probability, freedom) == pytest.approx(value, abs=6e-4)


@given(st.floats(0.55, 0.999), st.integers(1, 200))
def test_a_quantile_is_where_the_distribution_has_its_probability(probability: float, freedom: int) -> None:
    assert t_cdf(t_quantile(probability, freedom), freedom) == pytest.approx(probability, abs=1e-9)


def test_a_line_is_found_again_and_its_interval_is_the_textbook_one() -> None:
    x = np.array([1.0, 2, 3, 4, 5])
    y = np.array([1.1, 1.9, 3.2, 3.9, 5.1])
    fit = least_squares(np.column_stack([np.ones(5), x]), y)
    assert fit is not None
    slope, intercept = np.polyfit(x, y, 1)
    assert fit.coefficients == pytest.approx([intercept, slope])
    residual = math.sqrt(float(((y - intercept - slope * x) ** 2).sum()) / 3)
    half = t_quantile(0.95, 3) * residual * math.sqrt(1 + 1 / 5 + (6 - 3) ** 2 / 10)
    mean, low, high = fit.predict(np.array([1.0, 6.0]), 0.9)
    assert (mean, high - mean, mean - low) == pytest.approx((intercept + 6 * slope, half, half))


def test_what_cannot_be_told_from_the_data_is_no_fit() -> None:
    ones = np.ones((4, 1))
    assert least_squares(np.column_stack([ones, 2 * ones]), np.arange(4.0)) is None
    assert least_squares(np.ones((1, 1)), np.ones(1)) is None


def test_intervals_hold_as_often_as_they_promise() -> None:
    chance = random.Random(5)
    inside = 0
    for _ in range(400):
        x = np.array([[1.0, chance.uniform(0, 1)] for _ in range(8)])
        y = x @ np.array([2.0, 3.0]) + np.array([chance.gauss(0, 1) for _ in range(8)])
        fit = least_squares(x, y)
        assert fit is not None
        _, low, high = fit.predict(np.array([1.0, 0.5]), 0.8)
        inside += low <= 3.5 + chance.gauss(0, 1) <= high
    assert 0.74 < inside / 400 < 0.86


def steps(model: str, devices: int, *ms: float) -> list[StepSample]:
    return [StepSample(model, devices, round(t * MS)) for t in ms]


def test_few_steps_on_several_sizes_tell_the_time_on_another_size() -> None:
    samples = steps("H100", 1, 800, 808) + steps("H100", 2, 404, 400) + steps("H100", 4, 200, 203)
    found = step_time(samples, "H100", 8)
    assert found is not None
    assert found.low_ns < 100 * MS < found.high_ns
    assert found.value_ns == pytest.approx(100 * MS, rel=0.03)
    assert (found.level_ppm, found.samples) == (900_000, 6)


def test_without_several_sizes_the_scaling_is_the_callers() -> None:
    samples = steps("H100", 4, 200, 202, 198)
    split, own = (step_time(samples, "H100", 8, scaling=s) for s in (-1.0, 0.0))
    assert split is not None and own is not None
    assert split.value_ns == pytest.approx(100 * MS, rel=0.01)
    assert own.value_ns == pytest.approx(200 * MS, rel=0.01)


def test_a_model_that_was_not_measured_is_told_from_the_capability_of_those_that_were() -> None:
    capability = {"T4": 65.0, "A100": 312.0, "H100": 989.0}
    samples = steps("T4", 1, 1520, 1525, 1531) + steps("A100", 1, 318, 320, 315)
    found = step_time(samples, "H100", 1, capability=capability)
    assert found is not None
    assert found.low_ns < 100 * MS < found.high_ns
    assert "other models" in found.by
    assert step_time(samples, "H100", 1) is None
    assert step_time(samples[:3], "H100", 1, capability=capability) is None


def test_steps_that_the_log_saw_tell_the_time_on_another_number_of_devices() -> None:
    devices = [Device(f"n/{k}", "n", k, "gpu", "H100") for k in range(8)]
    fleet = Fleet(nodes=(Node("n", "", tuple(devices)),))
    ranks = {"a": 1, "b": 1, "c": 2, "d": 4}
    arrivals = [Arrival(1 + k, job, JobSpec(("x",), ranks=n)) for k, (job, n) in enumerate(ranks.items())]
    jitter = {"a": 1.01, "b": 0.99, "c": 1.0, "d": 1.005}
    step_ns = {job: round(8e9 / n * jitter[job]) for job, n in ranks.items()}
    behaviour = {job: SimJob(5 * ns, 10**9, step_ns=ns) for job, ns in step_ns.items()}
    view = simulate(MemoryStore(), fleet, arrivals, lambda c: behaviour[c.job], FirstFit())
    runs = [run for job in view.jobs.values() for run in job_runs(view.book, job)]
    samples = [StepSample(run.model, run.devices, run.mean_ns) for run in runs]
    assert [(s.model, s.devices) for s in samples] == [("H100", n) for n in ranks.values()]
    found = step_time(samples, "H100", 8)
    assert found is not None
    assert found.low_ns < 10**9 < found.high_ns
    assert found.value_ns == pytest.approx(10**9, rel=0.03)


def test_too_few_steps_are_no_prediction() -> None:
    assert step_time([], "H100", 1) is None
    assert step_time(steps("H100", 1, 100), "H100", 1) is None
    assert step_time(steps("H100", 1, 100) + steps("H100", 2, 50), "H100", 4) is None


def test_cost_follows_time_devices_and_price() -> None:
    step = step_time(steps("H100", 8, 100, 100, 100), "H100", 8)
    assert step is not None
    found = run_of_steps(step, 36_000, 8, 2.5)
    assert found.run.value_ns == 3_600 * 10**9
    assert (found.cost_low_micro, found.cost_micro, found.cost_high_micro) == (20_000_000,) * 3
    assert run_of_steps(step, 1, 8).cost_micro is None


@given(
    st.lists(st.tuples(st.sampled_from(["A", "B"]), st.integers(1, 64), st.integers(1, 10**12)), max_size=12),
    st.integers(1, 256),
)
def test_whatever_was_measured_bounds_are_positive_and_in_order(measured, devices: int) -> None:
    found = step_time([StepSample(*m) for m in measured], "A", devices)
    if found is not None:
        assert 0 <= found.low_ns <= found.value_ns <= found.high_ns
