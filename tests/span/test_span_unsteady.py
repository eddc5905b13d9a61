"""Transfers that come late now and then: measured from step to step, and planned with."""

from __future__ import annotations

from dataclasses import replace
from itertools import pairwise

import numpy as np
import pytest

from span.test_span_reconsider import MS, SECOND, setting
from unidle.span.model.link import WanLink
from unidle.span.model.setting import Setting
from unidle.span.replan.decide import Replan, first_choice, reconsider, said
from unidle.span.replan.drift import TRIES, Unsteady, drift, expected_ns, unsteady
from unidle.span.replan.observed import Remaining, Step
from unidle.span.simulate.iteration import Simulation, simulate
from unidle.span.simulate.schedules import SCHEDULES


def chain() -> Setting:
    links = tuple(WanLink(a, b, 2 * MS, 1.0) for a, b in pairwise("abcd"))
    return replace(setting(4, 16), links=links, input_bytes=1_000_000)


def steps_of(made: Simulation, sends: float, works: float = 0.0, count: int = 20) -> list[Step]:
    """Steps whose transfers and operations vary: log-normal factors with mean 1."""
    chance, found = np.random.default_rng(3), []
    for number in range(count):
        step = Step(number, 1, (made.setting.microbatches,))
        for row in made.rows():
            took, cv = row.end_ns - row.start_ns, works
            if row.op == "send":  # until it was acknowledged
                took, cv = took + 4 * MS, sends
            spread = np.sqrt(np.log1p(cv**2))
            took = round(took * np.exp(chance.standard_normal() * spread - spread**2 / 2))
            step.rows.append(row._replace(end_ns=row.start_ns + took))
        found.append(step)
    return found


def decided(made: Simulation, steps: list[Step]) -> Replan:
    first = first_choice(made.setting, SCHEDULES["unidle"], (3,) * 4)
    return reconsider(drift(made, steps), first, made, (3,) * 4)


@pytest.mark.parametrize(("sends", "works"), [(0.0, 0.0), (0.2, 0.1), (0.6, 0.0), (0.0, 0.4)])
def test_what_varies_is_measured_and_what_varies_little_is_none(sends: float, works: float) -> None:
    made = simulate(chain(), SCHEDULES["unidle"])
    found = unsteady(steps_of(made, sends, works, 60))
    assert found.sends == pytest.approx(sends, rel=0.1)
    assert found.works == pytest.approx(works, rel=0.1)
    assert bool(found) == (sends > 0.3 or works > 0.15)
    assert ("transfers vary by" in str(found)) == (sends > 0.3)
    assert ("operations vary by" in str(found)) == (works > 0.15)


def test_what_becomes_slower_once_is_no_unsteadiness() -> None:
    made = simulate(chain(), SCHEDULES["unidle"])
    steps = steps_of(made, 0.0, 0.0)
    for step in steps[10:]:
        step.rows = [row._replace(end_ns=2 * row.end_ns - row.start_ns) for row in step.rows]
    assert not unsteady(steps)


def test_few_steps_tell_nothing_of_it() -> None:
    made = simulate(chain(), SCHEDULES["unidle"])
    assert not unsteady(steps_of(made, 1.0, 1.0, 7))


def test_a_plan_with_more_room_is_taken_where_transfers_come_late() -> None:
    made = simulate(chain(), SCHEDULES["unidle"])
    seen = drift(made, steps_of(made, 0.5))
    assert seen and not seen.stages
    choice = decided(made, steps_of(made, 0.5))
    assert choice.same_ns is not None and choice.same_ns > 1.05 * made.result.iteration_ns
    assert choice.best_ns < choice.same_ns / 1.05
    assert choice.is_worth(Remaining(1000, 0, SECOND))
    told = said(choice, seen, Remaining(1000, 0, SECOND))
    assert "transfers vary by" in told and "from the next checkpoint on" in told
    # It holds for other tries than those by which it was chosen, and costs little where all is steady.
    planned = simulate(choice.setting, choice.schedule)
    before, after = (
        [expected_ns(each, chain(), weather) for weather in WEATHERS] for each in (made, planned)
    )
    assert all(b is not None and a is not None and a < b for a, b in zip(after, before, strict=True))
    assert planned.result.iteration_ns <= 1.2 * made.result.iteration_ns


WEATHERS = [Unsteady(sends, 0.05, 0) for sends in (0.4, 0.6, 0.8)]


def test_what_goes_on_after_that_is_left_alone() -> None:
    """In the same weather nothing is better than what was chosen for it."""
    made = simulate(chain(), SCHEDULES["unidle"])
    choice = decided(made, steps_of(made, 0.5))
    again = simulate(choice.setting, choice.schedule)
    seen = drift(again, steps_of(again, 0.5))
    found = reconsider(seen, choice, again, choice.cut)
    assert not found.is_better(Remaining(1000, 0, 0))


def test_the_mean_is_over_the_same_tries_for_all_and_none_where_they_would_take_long() -> None:
    made = simulate(chain(), SCHEDULES["unidle"])
    weather = Unsteady(0.5, 0.1, 0)
    assert TRIES > 1 and expected_ns(made, chain(), weather) == expected_ns(made, chain(), weather)
    assert expected_ns(made, chain(), Unsteady(0.0, 0.0, 0)) == made.result.iteration_ns
    large = simulate(setting(4, 300), SCHEDULES["1f1b"])
    assert expected_ns(large, large.setting, weather) is None
