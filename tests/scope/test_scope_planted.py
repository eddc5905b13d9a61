"""The answers of the scripts with planted causes, for people and for programs, agree with each other and with the scripts."""

from __future__ import annotations

import ast
import re
from pathlib import Path

import pytest
import yaml

from unidle.scope.rules import CATEGORIES

SCRIPTS = Path(__file__).resolve().parent.parent.parent / "examples" / "profile"
ANSWERS = yaml.safe_load((SCRIPTS / "answers.yaml").read_text())
TABLE = dict(re.findall(r"^\| `(\w+)\.py` \|(.*)\|$", (SCRIPTS / "README.md").read_text().partition("## Answers")[2], re.MULTILINE))  # fmt: skip


def test_every_script_has_one_answer_in_the_page_and_one_in_the_file() -> None:
    assert {p.stem for p in SCRIPTS.glob("*.py")} == set(ANSWERS) == set(TABLE)


@pytest.mark.parametrize("name", sorted(ANSWERS))
def test_an_answers_categories_are_the_pages(name: str) -> None:
    told = set(re.findall(r"`(\w+)`", TABLE[name].split("|")[1])) & set(CATEGORIES)
    assert set(ANSWERS[name]["category"]) <= told


@pytest.mark.parametrize("name", sorted(ANSWERS))
def test_an_answers_lines_are_in_the_script(name: str) -> None:
    source = (SCRIPTS / f"{name}.py").read_text()
    functions = dict(functions_of(ast.parse(source), "", source))
    for at in ANSWERS[name]["at"]:
        function, _, text = at.partition(": ")
        assert text in functions[function], at


def functions_of(node: ast.AST, within: str, source: str) -> list[tuple[str, str]]:
    """Functions by their qualified names, with their text."""
    found = []
    for child in ast.iter_child_nodes(node):
        if isinstance(child, ast.FunctionDef | ast.ClassDef):
            name = f"{within}{child.name}"
            found.append((name, ast.get_source_segment(source, child) or ""))
            found += functions_of(child, f"{name}.", source)
    return found
