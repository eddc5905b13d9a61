"""Whole parts by largest remainder."""

from __future__ import annotations

from fractions import Fraction

from hypothesis import given
from hypothesis import strategies as st

from unidle.apportion import by_weight, rounded

weights = st.lists(st.integers(0, 9) | st.integers(0, 10**12), min_size=1, max_size=8)


@given(st.integers(0, 1000) | st.integers(0, 10**12), weights)
def test_parts_by_weight_sum_to_the_whole_and_are_within_one_of_exact(total: int, weights: list[int]) -> None:
    parts = by_weight(total, weights)
    whole = sum(weights)
    assert sum(parts) == (total if whole else 0)
    if whole:
        assert all(abs(p * whole - total * w) < whole for p, w in zip(parts, weights, strict=True))
    if total <= whole:
        assert all(part <= weight for part, weight in zip(parts, weights, strict=True))


@given(st.lists(st.integers(0, 10**30), max_size=12), st.integers(1, 10**15))
def test_rounded_numbers_are_nearest_neighbours_and_sum_to_the_rounded_total(
    numerators: list[int], denominator: int
) -> None:
    amounts = rounded(numerators, denominator)
    assert all(abs(a - Fraction(n, denominator)) < 1 for a, n in zip(amounts, numerators, strict=True))
    assert abs(sum(amounts) - Fraction(sum(numerators), denominator)) <= Fraction(1, 2)


def test_of_equal_remainders_the_first_is_rounded_up() -> None:
    assert by_weight(2, [1, 1, 1]) == [1, 1, 0]
    assert rounded([5, 5, 5], 10) == [1, 1, 0]
