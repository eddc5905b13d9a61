"""Counts in sentences, and that no source writes a length beside a bare plural."""

from __future__ import annotations

import ast
import re
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

import unidle
from unidle.words import are, counted, device_time, does, plural, were

_PLURAL = re.compile(r" (?:(?:more|other|low|free|such) )?[A-Za-z]*[^s\W]s\b")
_VERBS = frozenset({"is", "has", "was", "does", "needs", "uses", "asks", "fits"})


@pytest.mark.parametrize(
    ("number", "noun", "text"),
    [
        (1, "job", "1 job"),
        (2, "job", "2 jobs"),
        (0, "rank", "0 ranks"),
        (1, "entry", "1 entry"),
        (3, "entry", "3 entries"),
        (2, "day", "2 days"),
        (2, "switch", "2 switches"),
        (2, "address", "2 addresses"),
        (1, "more node", "1 more node"),
        (4, "more node", "4 more nodes"),
    ],
)
def test_a_count_and_its_noun_agree(number: int, noun: str, text: str):
    assert counted(number, noun) == text


def test_a_count_and_its_verb_agree():
    assert [f"{counted(n, 'job')} {are(n)} stopped" for n in (1, 2)] == [
        "1 job is stopped",
        "2 jobs are stopped",
    ]
    assert [were(n) for n in (0, 1, 2)] == ["were", "was", "were"]
    assert [does(n, "stay") for n in (1, 2)] == ["stays", "stay"]
    assert plural(0.5, "device") == "devices"


@pytest.mark.parametrize(
    ("us", "text"),
    [
        (0, "0 device-s"),
        (1, "under 0.001 device-s"),
        (7_200_000, "7.2 device-s"),
        (359_000_000, "359 device-s"),
        (360_000_000, "0.1 device-hours"),
        (1_512_000_000, "0.42 device-hours"),
        (3_600_000_000, "1 device-hour"),
        (3_600_000, "3.6 device-s"),
        (90_000_000_000, "25 device-hours"),
        (12_345 * 3_600_000_000, "12345 device-hours"),
    ],
)
def test_small_and_large_amounts_of_device_time_are_told_in_units_of_their_size(us: int, text: str):
    assert device_time(us) == text


@given(st.integers(1, 10**18))
def test_no_device_time_is_told_as_none(us: int):
    amount = device_time(us).removeprefix("under ").split()[0]
    assert float(amount) > 0


def test_no_source_writes_device_time_but_in_one_place():
    root = Path(unidle.__file__).parent
    bare = re.compile(r"\} device-(?:hours?|s)\b")
    found = [
        str(p.relative_to(root)) for p in sorted(root.rglob("*.py")) if bare.search(p.read_text("utf-8"))
    ]
    assert found == ["words.py"]


def test_no_source_writes_a_length_beside_a_bare_plural():
    root = Path(unidle.__file__).parent
    found = [
        f"{path.relative_to(root)}:{text.lineno}"
        for path in sorted(root.rglob("*.py"))
        for text in ast.walk(ast.parse(path.read_text("utf-8")))
        if isinstance(text, ast.JoinedStr) and _counts_alone(text)
    ]
    assert found == []


def _counts_alone(text: ast.JoinedStr) -> bool:
    for value, after in zip(text.values, text.values[1:], strict=False):
        length = (
            isinstance(value, ast.FormattedValue)
            and isinstance(value.value, ast.Call)
            and isinstance(value.value.func, ast.Name)
            and value.value.func.id == "len"
        )
        if length and isinstance(after, ast.Constant):
            noun = _PLURAL.match(str(after.value))
            if noun is not None and noun[0].split()[-1] not in _VERBS:
                return True
    return False
