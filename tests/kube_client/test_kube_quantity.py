"""Quantities as Kubernetes writes them."""

from __future__ import annotations

from decimal import Decimal

import pytest
from hypothesis import given
from hypothesis import strategies as st

from unidle.kube.quantity import cores, quantity, whole


@pytest.mark.parametrize(
    ("text", "number"),
    [
        ("0", 0), ("2", 2), ("500m", Decimal("0.5")), ("1.5", Decimal("1.5")), ("1e3", 1000), ("1E-1", Decimal("0.1")),
        ("12E", 12 * 10**18), ("2Gi", 2 << 30), ("1Ei", 1 << 60), ("3k", 3000), ("3Ki", 3072), ("5n", Decimal("5e-9")),
        ("7u", Decimal("7e-6")), ("-1", -1), (".5", Decimal("0.5")), ("24684092Ki", 24684092 << 10),
    ],
)  # fmt: skip
def test_suffixes_and_exponents(text: str, number: Decimal) -> None:
    assert quantity(text) == number


@pytest.mark.parametrize("text", ["", "Gi", "1 Gi", "1GB", "1e", "0x10", "1K", "one", "1e3Ki", "nan", "1\n"])
def test_what_is_no_quantity_is_an_error(text: str) -> None:
    with pytest.raises(ValueError, match="not a quantity"):
        quantity(text)


def test_fractions_are_rounded_up() -> None:
    assert cores("100001u") == 0.101
    assert cores("1500m") == 1.5
    assert whole("1500m") == 2
    assert whole("1.5Ki") == 1536


@given(st.integers(0, 10**12), st.sampled_from(["", "k", "M", "Ki", "Mi", "Gi"]))
def test_whole_numbers_stay_exact(number: int, suffix: str) -> None:
    unit = {"": 1, "k": 1000, "M": 10**6, "Ki": 1 << 10, "Mi": 1 << 20, "Gi": 1 << 30}[suffix]
    assert whole(f"{number}{suffix}") == number * unit
