"""What an edit does to code: operations on nodes of the tree. They need no library; ``rewrite.py`` carries them out."""

from __future__ import annotations

import ast
from dataclasses import dataclass
from typing import Literal

from unidle.tune.analysis.source import SourceFacts

FixKind = Literal["same", "order", "precision", "output"]
"""What an edit changes on purpose.

``same``: nothing; digits may differ in the last places. ``order``: the order of samples or of random numbers. ``precision``:
results in more than the last places. ``output``: what is printed, logged or written.
"""


@dataclass(frozen=True, slots=True)
class Remove:
    """Take a statement out. Comments above it stay."""

    statement: ast.stmt


@dataclass(frozen=True, slots=True)
class SetKeyword:
    """Give a call a keyword argument, or another value for it; None takes it out."""

    call: ast.Call
    name: str
    value: str | None


@dataclass(frozen=True, slots=True)
class Replace:
    """Write something else for an expression."""

    node: ast.expr
    text: str


@dataclass(frozen=True, slots=True)
class Insert:
    """Put lines before or after a statement, or at the end of a function."""

    where: Literal["before", "after", "end"]
    statement: ast.stmt
    text: str


@dataclass(frozen=True, slots=True)
class Wrap:
    """Put a statement in a block, such as ``with torch.no_grad():`` or ``if step % 100 == 0:``."""

    statement: ast.stmt
    heading: str


@dataclass(frozen=True, slots=True)
class AddImport:
    """An import at the top of the file, such as ``import torch``."""

    text: str


Operation = Remove | SetKeyword | Replace | Insert | Wrap | AddImport


@dataclass(frozen=True, slots=True)
class FixPlan:
    """The operations of one edit, and why. They touch no place twice."""

    operations: tuple[Operation, ...]
    why: str


def is_possible(facts: SourceFacts, plan: FixPlan) -> bool:
    """Whether each statement of a plan stands alone on its lines, as operations on statements need it."""
    return all(
        _alone(facts, one.statement) for one in plan.operations if isinstance(one, Remove | Insert | Wrap)
    )


def _alone(facts: SourceFacts, statement: ast.stmt) -> bool:
    before = facts.line(statement.lineno)[: facts.column(statement.lineno, statement.col_offset) - 1]
    end = statement.end_lineno or statement.lineno
    after = facts.line(end)[facts.column(end, statement.end_col_offset or 0) - 1 :].strip()
    return not before.strip() and (not after or after.startswith("#"))
