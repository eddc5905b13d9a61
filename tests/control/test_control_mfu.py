"""Model FLOPs utilisation of jobs, by hand-made logs."""

from __future__ import annotations

from dataclasses import replace

import pytest

from sim.worlds import node
from unidle.control.queries.describe import job_detail, job_line
from unidle.control.queries.mfu import job_mfu, mfu_lines
from unidle.fleet import Fleet, Node
from unidle.jobs import StepFlops
from view.telling import Telling

GIVEN = StepFlops(1e12)


def fleet(peak: float | None = 2.0, model: str = "h") -> Fleet:
    devices = tuple(replace(device, model=model) for device in node("m0", 2).devices)
    return Fleet((), (Node("m0", "", devices),), peak_tflops={} if peak is None else {model: peak})


def told(flops: StepFlops | None = GIVEN, of: Fleet | None = None) -> Telling:
    telling = Telling(2).fleet(of or fleet()).submit("j", ranks=2, flops=flops)
    return telling.at(10).place("j", "m0/0", "m0/1").steps("j", 1, 5, each_s=2.0)


def test_it_is_operations_over_the_median_step_and_the_peak_of_all_devices() -> None:
    telling = told()
    telling.at(100).mark("j", 0, "step", n=6)  # a stop between steps is not the steps' speed
    mfu = job_mfu(telling.view, telling.job("j"))
    assert mfu is not None
    assert (mfu.step_ns, mfu.peak) == (2_000_000_000, 4e12)
    assert mfu.value == pytest.approx(1 / 8)
    assert mfu.text() == "MFU 12.5 %: 1 TFLOP in a step of 2,000.0 ms; peak 4 TFLOP/s"
    assert job_line(telling.job("j"), None, telling.view)["mfu"] == mfu.value
    assert job_detail(telling.view, telling.job("j"))["runs"][0]["mfu"] == mfu.as_json()


def test_counted_operations_are_the_sum_of_all_ranks_and_none_where_one_counted_nothing() -> None:
    telling = told(StepFlops())
    telling.mark("j", 0, "flops", n=3 * 10**11)
    assert job_mfu(telling.view, telling.job("j")) is None
    assert "rank 1 counted no step" in mfu_lines(telling.view, telling.job("j"))[0]
    telling.mark("j", 1, "flops", n=10**11)
    mfu = job_mfu(telling.view, telling.job("j"))
    assert mfu is not None
    assert (mfu.flops, mfu.counted) == (4e11, True)


def test_the_peak_of_a_known_model_is_its_data_sheets_and_that_of_the_fleet_file_wins() -> None:
    telling = told(of=fleet(None, "NVIDIA H100 80GB HBM3"))
    mfu = job_mfu(telling.view, telling.job("j"))
    assert mfu is not None
    assert mfu.peak == pytest.approx(2 * 989.4e12)
    telling = told(of=fleet(1.0, "NVIDIA H100 80GB HBM3"))
    mfu = job_mfu(telling.view, telling.job("j"))
    assert mfu is not None
    assert mfu.peak == pytest.approx(2e12)


def test_what_is_missing_is_said() -> None:
    telling = told(of=fleet(None))
    assert mfu_lines(telling.view, telling.job("j")) == [
        "MFU is not known: the peak of h is not; set peak_tflops in the fleet file"
    ]
    telling = told(flops=None)
    assert mfu_lines(telling.view, telling.job("j")) == []
    assert job_line(telling.job("j"), None, telling.view)["mfu"] is None
    waits = Telling(2).submit("w", flops=GIVEN)
    assert mfu_lines(waits.view, waits.job("w")) == []
