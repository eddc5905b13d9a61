"""Pipelines that prove slower while a run goes on get fewer microbatches."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from itertools import pairwise

from hypothesis import given
from hypothesis import settings as runs
from hypothesis import strategies as st

from unidle.span.model.link import WanLink
from unidle.span.model.setting import Setting, Site, Stage
from unidle.span.replan.observed import Remaining, Step, batch_loss
from unidle.span.replan.rebalance import NewShares, measured_speeds, new_shares
from unidle.span.simulate.schedules import SCHEDULES, Schedule
from unidle.span.simulate.schedules.custom import own
from unidle.span.simulate.uneven import Modelled, PipelineShares, microbatches_of, simulated

MS = 1_000_000
SETTING = Setting(
    (Stage(2 * MS, 2 * MS, 2 * MS, 0, 100),) * 2, 4, tuple(Site(name, 1) for name in "ab"),
    tuple(WanLink(a, b, MS, 1.0) for a, b in pairwise("ab")), pipelines=2, input_bytes=100,
)  # fmt: skip
ONE = SCHEDULES["zb-h1"]


def steps(running: Modelled, speeds: Sequence[float], noise: Sequence[float] = (1, 1, 1)) -> list[Step]:
    """What ranks would tell of devices with these speeds."""
    found = []
    for number, factor in enumerate(noise, 1):
        step = Step(number, 1, microbatches_of(running))
        for row in running.rows():
            length = round((row.end_ns - row.start_ns) * factor / speeds[row.pipeline])
            step.rows.append(row._replace(end_ns=row.start_ns + length))
        found.append(step)
    return found


def found_by(
    running: Modelled, schedule: Schedule, told: list[Step], left: int = 1000, restart_ns: int = 10**9
) -> NewShares | None:
    return new_shares(running, schedule, told, Remaining.after(told, left, restart_ns))


def alike(setting: Setting = SETTING) -> Modelled:
    return simulated(setting, ONE, None)


def test_a_pipeline_that_proves_half_as_fast_gets_half_as_many() -> None:
    found = found_by(alike(), ONE, steps(alike(), (1, 0.5)))
    assert found is not None
    assert found.shares == PipelineShares((6, 2), (1, 0.5))
    assert found.before == (4, 4) and found.before_ns > 1.05 * found.after_ns
    assert "(0: 100 %, 1: 50 %): microbatches 6, 2 instead of 4, 4" in found.line()


def test_what_was_shared_out_by_speed_stays_while_the_speeds_are_as_planned() -> None:
    running = simulated(SETTING, ONE, PipelineShares((6, 2), (1, 0.5)))
    assert found_by(running, ONE, steps(running, (1, 1))) is None  # rows have the planned speeds already
    faster = found_by(running, ONE, steps(running, (1, 2)))
    assert faster is not None and faster.shares.microbatches == (4, 4)


def test_noise_and_a_single_slow_step_change_nothing() -> None:
    assert found_by(alike(), ONE, steps(alike(), (1, 0.97))) is None
    told = steps(alike(), (1, 1))
    told[1] = steps(alike(), (1, 0.1))[1]
    assert found_by(alike(), ONE, told) is None
    assert found_by(alike(), ONE, steps(alike(), (1, 0.9))) is None  # 4 and 4 are the best way


def test_what_the_steps_to_come_would_not_win_back_is_not_begun() -> None:
    told = steps(alike(), (1, 0.5))
    found = found_by(alike(), ONE, told)
    assert found is not None
    won = found.before_ns - found.after_ns
    assert found_by(alike(), ONE, told, 100, 100 * won - 1) is not None
    assert found_by(alike(), ONE, told, 100, 100 * won) is None


def test_steps_that_wait_for_other_things_than_pipelines_are_left_alone() -> None:
    told = steps(alike(), (1, 0.5))
    found = found_by(alike(), ONE, told)
    assert found is not None
    for times, expected in ((19, True), (22, False)):
        for step in told:
            step.took_ns = times * (found.before_ns - found.after_ns)
        assert (found_by(alike(), ONE, told) is not None) == expected


def test_nothing_is_said_before_every_device_has_told_its_times() -> None:
    (told, *_) = steps(alike(), (1, 0.5))
    told.rows = [row for row in told.rows if row.pipeline == 0]
    assert found_by(alike(), ONE, [told]) is None
    assert found_by(alike(), ONE, []) is None


def test_more_microbatches_than_memory_holds_are_not_given() -> None:
    def forwards_first(setting: Setting) -> list[list[tuple[str, int]]]:
        return [[(op, m) for op in "FBW" for m in range(setting.microbatches)] for _ in setting.stages]

    mine = own("mine", forwards_first)
    roomy, tight = (replace(SETTING, memory_cap_bytes=count * 200) for count in (6, 5))
    for setting, expected in ((roomy, (6, 2)), (tight, None)):
        running = simulated(setting, mine, None)
        found = found_by(running, mine, steps(running, (1, 0.5)))
        assert (found and found.shares.microbatches) == expected


@runs(max_examples=30)
@given(
    speeds=st.lists(st.sampled_from([0.25, 0.5, 1.0, 1.02, 3.0]), min_size=1, max_size=4),
    cell=st.integers(1, 2),
    count=st.integers(1, 6),
)
def test_the_microbatches_together_stay_and_a_cell_stays_alike(
    speeds: list[float], cell: int, count: int
) -> None:
    setting = replace(SETTING, pipelines=len(speeds) * cell, cell=cell, microbatches=count)
    running = alike(setting)
    found = found_by(running, ONE, steps(running, [speed for speed in speeds for _ in range(cell)]))
    if found is not None:
        counts = found.shares.microbatches
        assert sum(counts) == count * setting.pipelines and min(counts) >= 1
        assert all(len(set(counts[k : k + cell])) == 1 for k in range(0, len(counts), cell))
        assert found.after_ns < found.before_ns


def test_a_cell_is_as_fast_as_its_slowest_device() -> None:
    setting = replace(SETTING, pipelines=4, cell=2)
    running = alike(setting)
    told = steps(running, (1, 0.5, 1, 1))
    assert measured_speeds(setting, (4,) * 4, told) == (0.5, 0.5, 1, 1)
    slow = [
        row._replace(end_ns=row.start_ns + 4 * (row.end_ns - row.start_ns)) if row.stage == 1 else row
        for row in running.rows()
        if row.pipeline == 3
    ]
    one = Step(1, 1, (4,) * 4)
    one.rows = [*(row for row in running.rows() if row.pipeline < 3), *slow]
    assert measured_speeds(setting, (4,) * 4, [one]) == (1, 1, 0.25, 0.25)


def test_the_loss_is_the_mean_over_microbatches_not_over_pipelines() -> None:
    assert batch_loss({0: 1.0, 1: 5.0}, (3, 1)) == 2.0
    step = Step(1, 1, (3, 1))
    for device, loss in (("b/0/1", 1.0), ("b/1/1", 5.0)):
        step.take(device, {"begin_ns": 0, "end_ns": 1, "loss": loss})
    assert step.loss == 2.0
