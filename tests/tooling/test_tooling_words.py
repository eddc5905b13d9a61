"""Counts in sentences, and that no source writes a length beside a bare plural."""

from __future__ import annotations

import ast
import re
from pathlib import Path

import pytest

import unidle
from unidle.words import are, counted, does, plural, were

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
