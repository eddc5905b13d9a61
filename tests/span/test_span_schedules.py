"""Known figures of schedules, and what holds for all of them in any setting."""

from __future__ import annotations

import os
from dataclasses import replace

import numpy as np
import pytest
from hypothesis import assume, event, given
from hypothesis import settings as examples
from hypothesis import strategies as st

from span.naive import iteration_ns
from span.settings import MS, settings, uniform
from unidle.errors import BadInput
from unidle.span.model.link import WanLink
from unidle.span.model.setting import Setting, Site, Stage
from unidle.span.simulate import engine
from unidle.span.simulate.bound import lower_bound_ns
from unidle.span.simulate.check import check
from unidle.span.simulate.iteration import Simulation, simulate
from unidle.span.simulate.schedules import SCHEDULES, own

EXAMPLES = int(os.environ.get("UNIDLE_SPAN_EXAMPLES", "120"))
ZERO = {"gpipe": 6600, "1f1b": 6600, "interleaved": 5700, "zb-h1": 5400}


def run(setting: Setting, name: str) -> Simulation:
    return simulate(setting, SCHEDULES[name], checked=False)


@pytest.mark.parametrize(("name", "expected"), ZERO.items())
def test_figures_without_communication(name: str, expected: int) -> None:
    told = run(uniform(4, 8, 200, 200, 200), name).result
    assert told.iteration_ns == expected
    assert told.utilisation == pytest.approx(4800 / expected)
    assert told.exposed_wan_ns == told.wan_bytes == 0


@given(stages=st.integers(1, 9), count=st.integers(1, 20), times=st.tuples(*[st.integers(1, 500)] * 3))
def test_gpipe_and_1f1b_take_what_the_formula_says(
    stages: int, count: int, times: tuple[int, int, int]
) -> None:
    setting = uniform(stages, count, *times)
    for name in ("gpipe", "1f1b"):
        assert run(setting, name).result.iteration_ns == (count + stages - 1) * sum(times)


@given(
    stages=st.integers(1, 9), more=st.integers(0, 12), longer=st.tuples(st.integers(0, 99), st.integers(0, 99)),
    weight=st.integers(1, 500),
)  # fmt: skip
def test_zb_h1_takes_what_the_formula_says(
    stages: int, more: int, longer: tuple[int, int], weight: int
) -> None:
    forward, backward, count = weight + longer[0], weight + longer[1], stages + more
    told = run(uniform(stages, count, forward, backward, weight), "zb-h1").result
    whole = forward + backward + weight
    assert told.iteration_ns == count * whole + (stages - 1) * (forward + backward - weight)


@given(stages=st.integers(1, 8), groups=st.integers(1, 3), chunks=st.integers(1, 4), half=st.integers(1, 100))
def test_interleaved_divides_the_bubble_by_its_chunks(
    stages: int, groups: int, chunks: int, half: int
) -> None:
    time = half * chunks
    setting = uniform(stages, groups * stages, time, time, time)
    setting = Setting(setting.stages, setting.microbatches, setting.sites, chunks=chunks)
    expected = 3 * time * groups * stages + (stages - 1) * 3 * time // chunks
    assert run(setting, "interleaved").result.iteration_ns == expected


@examples(max_examples=EXAMPLES)
@given(setting=settings(), name=st.sampled_from(sorted(SCHEDULES)))
def test_every_timeline_keeps_all_rules_and_no_schedule_beats_the_bound(setting: Setting, name: str) -> None:
    assume(holds_one(setting))
    made = run(setting, name)
    verdict = check(setting, made.rows(), made.program.chunks)
    event(made.program.share.how)
    assert verdict.problems == ()
    assert verdict.peak_bytes == made.result.peak_memory_bytes
    assert made.result.lower_bound_ns <= made.result.iteration_ns
    ends = max(row.end_ns for row in made.rows())
    assert ends == made.result.iteration_ns


@examples(max_examples=EXAMPLES)
@given(setting=settings(), name=st.sampled_from(sorted(SCHEDULES)))
def test_a_plain_simulation_takes_as_long(setting: Setting, name: str) -> None:
    assume(holds_one(setting))
    made = run(setting, name)
    assert iteration_ns(setting, made.program) == made.result.iteration_ns


@examples(max_examples=EXAMPLES)
@given(setting=settings(), name=st.sampled_from(sorted(SCHEDULES)))
def test_rounds_and_single_steps_take_as_long(setting: Setting, name: str) -> None:
    assume(holds_one(setting))
    program = run(setting, name).program
    one, other = (engine.run(setting, program, trace=True, by=by) for by in ("rounds", "steps"))
    for field in ("starts", "fills", "ready", "ends", "exposed_ns"):
        assert np.array_equal(getattr(one, field), getattr(other, field)), field
    assert set(one.passages) == set(other.passages)


def test_a_walk_goes_on_one_by_one_where_few_devices_move() -> None:
    setting = replace(uniform(60, 40, 3, 4, 5), input_bytes=1, memory_cap_bytes=1)
    program = run(setting, "1f1b").program
    one, other = (engine.run(setting, program, by=by) for by in (None, "steps"))
    assert np.array_equal(one.starts, other.starts) and int(one.ends.max()) == 40 * 60 * 12


@examples(max_examples=EXAMPLES // 2)
@given(setting=settings())
def test_unidle_is_never_slower_than_others(setting: Setting) -> None:
    assume(holds_one(setting))
    ours = run(setting, "unidle").result
    names = ("gpipe", "1f1b", "zb-h1", "varuna", "atlas", "atlas-keep")
    others = {name: run(setting, name).result for name in names}
    assert others["atlas-keep"].iteration_ns <= others["atlas"].iteration_ns  # the stronger of the two
    event("faster" if ours.iteration_ns < others["atlas"].iteration_ns else "as fast")
    assert all(ours.iteration_ns <= other.iteration_ns for other in others.values())
    assert ours.wan_bytes == others["atlas"].wan_bytes


def holds_one(setting: Setting) -> bool:
    cap, kept = setting.memory_cap_bytes, max(stage.kept_bytes for stage in setting.stages)
    return cap is None or cap >= setting.static_bytes + setting.input_bytes + kept


def two_sites(cap: int | None = None, cell: int = 1) -> Setting:
    """Two stages 40 ms apart: 1 MB at 1 Gbit/s are 8 ms, in one flow of 300 Mbit/s 26.7 ms."""
    shape = Stage(10 * MS, 10 * MS, 10 * MS, 10 * MS, 17_000_000)
    return Setting(
        (shape, shape), 2, (Site("a", 1, None, 3.6), Site("b", 1)), (WanLink("a", "b", 40 * MS, 1.0, None, 5.0),), cell,
        cell, 1_000_000, 500, cap,
    )  # fmt: skip


def test_two_stages_by_hand() -> None:
    told = run(two_sites(), "1f1b").result  # F0 10, sent 18, there 58, F 68, B and W 88, sent 96, there 136
    second = (
        136 + 20
    )  # B0 and W0 of the first stage; B1 of the second stage: 58 + 8 there, F after 88, 118, 166 there
    assert told.iteration_ns == max(second, 118 + 8 + 40 + 20) * MS
    assert told.wan_bytes == 4 * 1_000_000
    assert told.cost_per_iteration == pytest.approx(3.6 * 0.186 / 3600 + 4 * 0.001 * 5)
    # two in flight on the first stage, whole: nothing was made again
    assert told.peak_memory_bytes == 500 + 2 * 18_000_000


def test_memory_by_hand_where_activations_are_made_again() -> None:
    told = run(two_sites(cap=500 + 2_000_000 + 17_000_000), "1f1b").result
    assert told.peak_memory_by_stage == (500 + 2 * 1_000_000 + 17_000_000, 500 + 1_000_000 + 17_000_000)
    assert told.iteration_ns > run(two_sites(), "1f1b").result.iteration_ns


def test_one_flow_takes_as_long_as_its_window_allows() -> None:
    one = replace(two_sites(), one_flow=True)
    rows = [row for row in run(one, "gpipe").rows() if row.op == "send"]
    assert {row.end_ns - row.start_ns for row in rows} == {round(8e6 / 0.3)}
    many = [row for row in run(one, "atlas").rows() if row.op == "send"]
    assert {row.end_ns - row.start_ns for row in many} == {8 * MS}


def test_a_cell_sends_at_once_and_takes_turns() -> None:
    rows = [row for row in run(two_sites(cell=4), "atlas").rows() if row.op == "send" and row.of == "F"]
    assert len(rows) == 4 * 4 * 2
    assert {row.end_ns - row.start_ns for row in rows} == {2 * MS}
    assert {row.device_or_link for row in rows} == {f"a/{k}/0>b/{k}/1" for k in range(4)}
    assert sum(row.size_bytes for row in rows) == 8 * 1_000_000


def test_what_does_not_fit_is_refused_with_stage_and_bytes() -> None:
    with pytest.raises(BadInput) as refused:
        run(two_sites(cap=18_000_000), "1f1b")
    assert "stage 0 (site a)" in str(refused.value) and "500 more" in str(refused.value)


def test_a_schedule_of_the_users_own() -> None:
    def mine(setting: Setting) -> list[list[tuple[str, int]]]:
        steps = [(op, m) for op in "FBW" for m in range(setting.microbatches)]
        return [steps for _ in setting.stages]

    made = simulate(uniform(4, 8, 200, 200, 200), own("mine", mine), checked=True)
    assert made.result.iteration_ns == 11 * 400 + 8 * 200


@pytest.mark.parametrize(
    ("steps", "words"),
    [
        ([], "F of 0 of 1"),
        ([("F", 0), ("B", 0)], "W of 0 of 1"),
        ([("B", 0)], "before what it needs"),
        ([("F", 0), ("F", 0)], "twice"),
        ([("F", 1)], "microbatches 0 to 0"),
        ([("F", 0), ("R", 0), ("W", 0)], "between R0 and B0"),
    ],
)
def test_a_schedule_that_is_none_is_refused(steps: list[tuple[str, int]], words: str) -> None:
    with pytest.raises(BadInput, match=words):
        simulate(uniform(1, 1, 2, 2, 2), own("mine", lambda _: [steps]))


def test_stages_that_wait_for_each_other_are_refused() -> None:
    lists = [[("F", 0), ("B", 0), ("W", 0), ("F", 1), ("B", 1), ("W", 1)],
             [("F", 0), ("F", 1), ("B", 0), ("W", 0), ("B", 1), ("W", 1)]]  # fmt: skip
    with pytest.raises(BadInput, match="wait for each other"):
        simulate(uniform(2, 2, 5, 5, 5), own("mine", lambda _: lists))


@examples(max_examples=60)
@given(setting=settings(capped=False))
def test_the_bound_needs_no_schedule(setting: Setting) -> None:
    longest = max(stage.useful_ns for stage in setting.stages)
    assert lower_bound_ns(setting) >= setting.microbatches * longest
