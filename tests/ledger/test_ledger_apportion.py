"""Parts of a whole in integers."""

from __future__ import annotations

from fractions import Fraction

from hypothesis import given
from hypothesis import strategies as st

from unidle.ledger.apportion import by_weight, quotients


@given(st.integers(0, 10**12), st.lists(st.integers(0, 10**9), min_size=1, max_size=30))
def test_parts_by_weight_sum_to_the_total_and_are_within_one_of_exact(total: int, weights: list[int]) -> None:
    parts, whole = by_weight(total, weights), sum(weights)
    assert sum(parts) == (total if whole else 0)
    for part, weight in zip(parts, weights, strict=True):
        assert whole == 0 or abs(part * whole - total * weight) < whole
        assert weight or not part
    if total <= whole:
        assert all(part <= weight for part, weight in zip(parts, weights, strict=True))


def test_of_equal_remainders_the_first_is_rounded_up() -> None:
    assert by_weight(4, [1, 1, 1]) == [2, 1, 1]


@given(st.lists(st.integers(0, 10**30), max_size=12), st.integers(1, 10**15))
def test_apportioned_amounts_are_nearest_neighbours_and_sum_to_the_rounded_total(numerators, denominator):
    amounts = quotients(numerators, denominator)
    assert all(abs(a - Fraction(n, denominator)) < 1 for a, n in zip(amounts, numerators, strict=True))
    assert abs(sum(amounts) - Fraction(sum(numerators), denominator)) <= Fraction(1, 2)
