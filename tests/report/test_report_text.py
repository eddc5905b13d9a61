"""Numbers and names as a reader sees them."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from unidle import words
from unidle.report import text

S = 1_000_000_000


@pytest.mark.parametrize(
    ("ns", "shown"),
    [
        (0, "0 s"),
        (999, "999 ns"),
        (1_500, "1.5 us"),
        (3_250_000, "3.3 ms"),
        (450_000_000, "450 ms"),
        (999_999_999, "1.0 s"),
        (3_200_000_000, "3.2 s"),
        (59_949_999_999, "59.9 s"),
        (59_960_000_000, "1 min 00 s"),
        (245 * S, "4 min 05 s"),
        (3_599_600_000_000, "1 h 00 min"),
        (3_720 * S, "1 h 02 min"),
        (86_399 * S, "1 d 00 h"),
        (100 * 3_600 * S, "4 d 04 h"),
        (-3_200_000_000, "-3.2 s"),
    ],
)
def test_durations_have_at_most_two_units(ns: int, shown: str) -> None:
    assert words.duration(ns) == shown


@pytest.mark.parametrize(
    ("ns", "shown"),
    [
        (0, "0.0 GPU-s"),
        (1, "<0.1 GPU-s"),
        (12_400_000_000, "12.4 GPU-s"),
        (1_472 * S, "1,472 GPU-s"),
        (16_920 * S, "4.7 GPU-h"),
        (36_000_000 * S, "10,000 GPU-h"),
    ],
)
def test_device_time_is_in_seconds_then_in_hours(ns: int, shown: str) -> None:
    assert text.device_time(ns) == shown


def test_percentages_have_one_decimal_and_no_whole_has_none() -> None:
    assert text.percent(1, 3) == "33.3 %"
    assert text.percent(1, 100_000) == "<0.1 %"
    assert text.percent(0, 5) == "0.0 %"
    assert text.percent(0, 0) == "-"


def test_money_names_its_currency_and_nothing_is_shown_without_a_price() -> None:
    assert text.money(1.25, "USD") == "1.25 USD"
    assert text.money(0.001, "EUR") == "<0.01 EUR"
    assert text.money(24_000.0, "USD") == "24,000 USD"
    assert text.money(0.0, "USD") == "0.00 USD"
    assert text.money(None, "USD") == ""


def test_clock_time_is_utc_and_survives_any_number() -> None:
    assert text.clock_time(1_790_000_000_250_000_000) == "2026-09-21 14:13:20.250"
    assert text.clock_time(None) == ""
    assert text.clock_time(10**30).endswith(" ns")


@given(st.lists(st.integers(0, 10**18), min_size=1, max_size=40))
def test_shown_shares_add_up_to_one_hundred(parts: list[int]) -> None:
    whole = sum(parts)
    shown = text.shares(parts, whole)
    if whole == 0:
        assert set(shown) == {"-"}
        return
    tenths = sum(0 if s.startswith("<") else round(float(s.removesuffix(" %")) * 10) for s in shown)
    assert tenths == 1_000
