"""No path of a machine's processes or devices stands in the rooms that work for ranks on any host (see the import contract)."""

from __future__ import annotations

import ast
from pathlib import Path

import pytest

ROOMS = ("control", "guard", "report", "view")
SOURCES = Path(__file__).resolve().parents[2] / "src" / "unidle"
MACHINE = ("/proc", "/sys/", "/dev/")


def texts_of(tree: ast.AST) -> list[str]:
    """String constants without docstrings."""
    documented = (ast.Module, ast.ClassDef, ast.FunctionDef, ast.AsyncFunctionDef)
    docs = {
        id(node.body[0].value)
        for node in ast.walk(tree)
        if isinstance(node, documented) and node.body and isinstance(node.body[0], ast.Expr)
    }
    found = (node for node in ast.walk(tree) if isinstance(node, ast.Constant) and id(node) not in docs)
    return [node.value for node in found if isinstance(node.value, str)]


@pytest.mark.parametrize("room", ROOMS)
def test_a_room_names_no_path_of_one_machine(room: str) -> None:
    files = sorted((SOURCES / room).rglob("*.py"))
    named = [
        f"{file.relative_to(SOURCES)}: {text!r}"
        for file in files
        for text in texts_of(ast.parse(file.read_text()))
        if text.startswith(MACHINE)
    ]
    assert len(files) > 3 and named == []


def test_a_path_in_code_is_seen_and_one_in_a_docstring_is_not() -> None:
    tree = ast.parse('"""/proc"""\ndef f():\n    """/proc/self"""\n    return open(f"/proc/{1}")\n')
    assert texts_of(tree) == ["/proc/"]
