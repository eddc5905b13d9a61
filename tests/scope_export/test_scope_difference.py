"""The difference of two profiles: what changed, by how much, and how sure that is."""

from __future__ import annotations

from dataclasses import replace

import pytest
from hypothesis import given
from hypothesis import strategies as st

from scope_export import profiles
from unidle.scope.difference import difference, two_proportions
from unidle.scope.model import Frame, Profile, Sample


def one(*parts: tuple[int, int], frames: tuple[Frame, ...] = profiles.FRAMES) -> Profile:
    """A profile with that many samples of each stack."""
    samples = tuple(Sample(1, 1, stack, "on", count, count * 10**7) for stack, count in parts)
    return Profile("T0", 0, 10**9, frames, profiles.STACKS, samples)


def test_a_profile_does_not_differ_from_itself_however_often_it_is_repeated() -> None:
    told = difference(one((0, 10), (1, 30)), one((0, 100), (1, 300)))
    assert all(change.points == pytest.approx(0) for change in (*told.stacks, *told.functions, *told.lines))
    assert {change.hint for change in told.functions} == {"unclear"}


def test_what_grew_most_comes_first_with_its_share() -> None:
    told = difference(one((0, 800), (1, 200)), one((0, 400), (1, 600)))
    shares = {c.frames[0].function: c for c in told.functions}
    assert shares["__next__"].points == pytest.approx(40)
    assert shares["forward"].points == pytest.approx(-40)
    assert shares["train_step"].points == pytest.approx(0), "all stacks run through it"
    assert shares["__next__"].hint == "clear"
    assert abs(told.functions[0].points) == pytest.approx(40)
    assert told.stacks[0].frames[0].function == "<module>"


def test_lines_of_a_function_are_told_apart_where_the_function_is_not() -> None:
    told = difference(one((0, 800), (1, 200)), one((0, 400), (1, 600)))
    lines = {(c.frames[0].function, c.frames[0].line): c.points for c in told.lines}
    assert lines["train_step", 41] == pytest.approx(-40)
    assert lines["train_step", 43] == pytest.approx(40)


def test_recursion_counts_once() -> None:
    told = difference(profiles.deep(), profiles.deep())
    (function,) = told.functions
    assert function.before.share == 1


def test_few_samples_are_no_evidence() -> None:
    told = difference(one((0, 2), (1, 1)), one((0, 1), (1, 2)))
    assert {change.hint for change in told.functions} == {"unclear"}


def test_two_ranks_of_one_profile_are_compared_with_each_other() -> None:
    both = profiles.small()
    told = difference(
        both, both, of_before=lambda s: s.pid == 100 and s.tid == 100, of_after=lambda s: s.pid == 200
    )
    shares = {c.frames[0].function: c for c in told.functions}
    assert shares["__next__"].points == pytest.approx(100 * (0.55 - 0.15), abs=0.01)
    assert shares["__next__"].hint == "clear"


def test_states_are_chosen() -> None:
    told = difference(profiles.small(), profiles.small(), states=("off",))
    assert told.before.ns == sum(s.ns for s in profiles.small().samples if s.state == "off")


def test_numbers_of_frames_do_not_matter() -> None:
    turned = tuple(reversed(profiles.FRAMES))
    last = len(turned) - 1
    other = replace(
        one((0, 10), (1, 30), frames=turned),
        stacks=tuple(tuple(last - n for n in s) for s in profiles.STACKS),
    )
    told = difference(one((0, 10), (1, 30)), other)
    assert all(change.points == pytest.approx(0) for change in told.stacks)


def test_an_empty_side_has_no_shares() -> None:
    told = difference(profiles.empty(), one((0, 10)))
    assert told.before.ns == 0
    assert {change.before.share for change in told.stacks} == {0.0}


@given(st.integers(0, 1000), st.integers(0, 1000), st.integers(0, 1000), st.integers(0, 1000))
def test_the_statistic_changes_its_sign_with_the_sides(a: int, more_a: int, b: int, more_b: int) -> None:
    z = two_proportions(a, a + more_a, b, b + more_b)
    assert two_proportions(b, b + more_b, a, a + more_a) == pytest.approx(-z)


def test_the_statistic_is_that_of_the_textbook() -> None:
    assert two_proportions(45, 100, 60, 100) == pytest.approx(2.1240, abs=1e-3)
