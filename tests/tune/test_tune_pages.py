"""Every rule has a page, whose slow example it finds, and whose fast example no rule finds."""

from __future__ import annotations

import ast
import re

import pytest

from unidle.tune.check import check_text
from unidle.tune.pages import example, page_of
from unidle.tune.registry import rules

RULES = rules()


def test_there_are_at_least_forty_rules_in_seven_groups() -> None:
    assert len(RULES) >= 40
    assert {code[3] for code in RULES} == set("1234567")


def test_names_and_messages_are_short_and_used_once() -> None:
    assert len({one.name for one in RULES.values()}) == len(RULES)
    for one in RULES.values():
        assert re.fullmatch(r"[a-z0-9]+(-[a-z0-9]+)+", one.name)
        assert "\n" not in one.message
        assert len(one.message) < 160


@pytest.mark.parametrize("code", RULES)
def test_the_slow_example_is_found_and_the_fast_one_is_not(code: str) -> None:
    slow, fast = example(code, "Slow"), example(code, "Fast")
    ast.parse(slow)
    ast.parse(fast)
    assert {one.code for one in check_text(slow)} == {code}
    assert check_text(fast) == []


@pytest.mark.parametrize("code", RULES)
def test_a_page_has_all_its_parts_and_a_cost(code: str) -> None:
    page = page_of(code)
    assert page.startswith(f"# {code}: {RULES[code].name}\n")
    for heading in ("Slow", "Fast", "When it does not matter", "Cost"):
        assert f"\n## {heading}\n" in page
    cost = page.partition("## Cost\n")[2].partition("\n## ")[0]
    assert re.search(r"Measured on .*`python bench/tune_rules\.py|Not measured: ", cost, re.DOTALL), cost
    assert f"# noqa: {code}" in page
