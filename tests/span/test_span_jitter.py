"""Iterations in which nothing lasts as planned, and orders that follow what is ready."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given
from hypothesis import settings as runs

from span.reading import load_span
from span.settings import settings, uniform
from unidle.errors import BadInput
from unidle.span.model.link import WanLink
from unidle.span.model.setting import Setting
from unidle.span.plan.what_if import slow_site, without_link
from unidle.span.simulate.dynamic import online
from unidle.span.simulate.iteration import simulate
from unidle.span.simulate.jitter import fixed_ns, luck, steps_of, weathered
from unidle.span.simulate.program import Program
from unidle.span.simulate.schedules import SCHEDULES

EXAMPLE = Path(__file__).parents[2] / "examples" / "span" / "three-sites.yaml"


@pytest.mark.parametrize("name", SCHEDULES)
@runs(max_examples=12)
@given(setting=settings())
def test_without_jitter_the_fixed_order_takes_what_was_planned(name: str, setting: Setting) -> None:
    try:
        done = simulate(setting, SCHEDULES[name])
    except BadInput:
        return
    as_planned = luck(setting, done.program, 0.0, np.random.default_rng(1))
    steps = steps_of(setting, done.program, done.run)
    assert fixed_ns(setting, done.program, steps, as_planned) == done.result.iteration_ns


@pytest.mark.parametrize("name", [name for name in SCHEDULES if name != "interleaved"])
@runs(max_examples=12)
@given(setting=settings())
def test_online_everything_is_done_within_the_bound_and_the_memory_of_the_plan(
    name: str, setting: Setting
) -> None:
    try:
        done = simulate(setting, SCHEDULES[name])
    except BadInput:
        return
    peaks = done.result.peak_memory_by_stage
    found = online(setting, done.program, peaks, luck(setting, done.program, 0.3, np.random.default_rng(1)))
    for device, ran in enumerate(found.started):
        stage = device % len(setting.stages)
        expected = {(op, m) for op in "FBW" for m in range(setting.microbatches)}
        if done.program.joined:
            expected = {each for each in expected if each[0] != "W"}
        assert {(op, unit) for op, unit, _ in ran if op != "R"} == expected
        assert len(ran) == len({(op, unit) for op, unit, _ in ran})
        assert most_held(setting, done.program, stage, ran) <= peaks[stage]
    as_planned = online(
        setting, done.program, peaks, luck(setting, done.program, 0.0, np.random.default_rng(1))
    )
    assert as_planned.iteration_ns >= done.result.lower_bound_ns


def most_held(setting: Setting, program: Program, stage: int, ran: list[tuple[str, int, int]]) -> int:
    """By the rules of memory, from the order alone."""
    shape, there, held, most = setting.stages[stage], set[int](), 0, 0
    for op, unit, _ in ran:
        if op == "F":
            held += setting.entering_bytes(stage)
        if unit not in there and (op in "BR" or (shape.recompute_ns and not program.again[stage, unit])):
            there.add(unit)
            held += shape.kept_bytes
        most = max(most, held)
        if op == "W" or (op == "B" and program.joined):
            held -= setting.entering_bytes(stage) + shape.kept_bytes
    return most + setting.held_bytes(stage)


def test_both_meet_the_same_luck_and_a_seed_gives_the_same_figures() -> None:
    done = simulate(load_span(EXAMPLE), SCHEDULES["unidle"])
    first, second = (weathered(done, done.setting, 0.1, 5, np.random.default_rng(3)) for _ in range(2))
    assert first == second and first.online is not None
    assert first.planned_ns == done.result.iteration_ns
    assert first.fixed.p50_ns <= first.fixed.p99_ns and first.fixed.mean_ns > first.planned_ns


def test_factors_have_the_mean_and_the_variation_that_was_asked_for() -> None:
    setting = uniform(50, 200, 10**9, 1, 1)
    program = simulate(setting, SCHEDULES["1f1b"]).program
    lasts = np.array(luck(setting, program, 0.2, np.random.default_rng(5)).compute["F"]) / 1e9
    assert lasts.mean() == pytest.approx(1, abs=0.01) and lasts.std() == pytest.approx(0.2, abs=0.01)


def test_a_lost_link_is_gone_around_and_a_slow_site_takes_longer() -> None:
    base = load_span(EXAMPLE)
    ring = replace(base, links=(*base.links, WanLink("oregon", "virginia", 90_000_000, 5.0)))
    lost = without_link(ring, "ohio-oregon")
    path = lost.path(1, 2)
    assert path is not None and path.latency_ns == 130_000_000
    with pytest.raises(BadInput, match="no link is left between ohio and virginia"):
        without_link(base, "ohio-virginia")
    with pytest.raises(BadInput, match="there is no such link"):
        without_link(base, "oregon-tokyo")
    slow = slow_site(base, "ohio:1.5")
    assert (
        slow.stages[2].forward_ns == round(base.stages[2].forward_ns * 1.5)
        and slow.stages[0] == base.stages[0]
    )
    for text in ("ohio", "ohio:0", "ohio:x", "nowhere:2"):
        with pytest.raises(BadInput, match="--slow-site"):
            slow_site(base, text)


def test_too_many_operations_are_refused() -> None:
    done = simulate(uniform(600, 100, 1, 1, 1), SCHEDULES["1f1b"])
    with pytest.raises(BadInput, match="more than the"):
        weathered(done, done.setting, 0.1, 1, np.random.default_rng(1))
