"""Operations carried out on text by libcst, which keeps comments and format."""

from __future__ import annotations

import ast
from typing import Any, Final

from unidle.errors import BadInput, UnidleError
from unidle.tune.analysis.source import SourceFacts
from unidle.tune.fixes.operations import (
    AddImport,
    FixPlan,
    Insert,
    Operation,
    Remove,
    Replace,
    SetKeyword,
    Wrap,
)

MISSING: Final = "needs the package libcst, which is not installed"


class NoPlace(UnidleError):
    """The node of an operation has no counterpart in the text, so the edit cannot be written."""


def need_libcst() -> None:
    """Errors: BadInput, once for all edits, where the package is absent."""
    try:
        import libcst  # noqa: F401
    except ImportError as error:
        raise BadInput(MISSING, field="tune", remedy="pip install 'unidle[tune]'") from error


def rewritten(facts: SourceFacts, plan: FixPlan) -> str:
    """The text of a file after an edit. Errors: NoPlace, and BadInput without libcst."""
    need_libcst()
    from unidle.tune.fixes.concrete import ConcreteText, EditError

    text = ConcreteText(facts.text)
    try:
        for one in plan.operations:
            _note(facts, text, one)
        result = text.result()
    except EditError as error:
        raise NoPlace(str(error), field=facts.path) from error
    try:
        ast.parse(result)
    except SyntaxError as error:
        raise NoPlace(f"the edit would not be valid Python: {error.msg}", field=facts.path) from error
    return result


def _note(facts: SourceFacts, text: Any, one: Operation) -> None:
    if isinstance(one, Remove):
        text.remove(_start(facts, one.statement))
    elif isinstance(one, Insert):
        text.insert(_start(facts, one.statement), one.where, one.text)
    elif isinstance(one, Wrap):
        text.wrap(_start(facts, one.statement), one.heading)
    elif isinstance(one, AddImport):
        text.add_import(one.text)
    elif isinstance(one, SetKeyword):
        text.set_keyword(_span(facts, one.call), one.name, one.value)
    elif isinstance(one, Replace):
        text.replace(_span(facts, one.node), one.text)


def _start(facts: SourceFacts, node: ast.stmt) -> tuple[int, int]:
    """Line from 1 and column from 0, in characters."""
    return node.lineno, facts.column(node.lineno, node.col_offset) - 1


def _span(facts: SourceFacts, node: ast.expr) -> tuple[int, int, int, int]:
    line, column = node.end_lineno or node.lineno, node.end_col_offset or 0
    return (
        node.lineno,
        facts.column(node.lineno, node.col_offset) - 1,
        line,
        facts.column(line, column) - 1,
    )
