"""The registry of edits: for which rules there is one, what it changes on purpose, and the function that plans it."""

from __future__ import annotations

import ast
from collections.abc import Callable
from dataclasses import dataclass

from unidle.tune.analysis.source import SourceFacts
from unidle.tune.fixes.operations import FixKind, FixPlan, is_possible

Planner = Callable[[SourceFacts, ast.AST], FixPlan | None]


@dataclass(frozen=True, slots=True)
class TuneFix:
    """The edit of one rule."""

    code: str
    kind: FixKind
    plan: Planner


_FIXES: dict[str, TuneFix] = {}


def fix(*codes: str, kind: FixKind = "same") -> Callable[[Planner], Planner]:
    """Register a function that plans the edit of a place; it returns None where it has no correct one."""

    def add(plan: Planner) -> Planner:
        for code in codes:
            if code in _FIXES:
                raise ValueError(f"rule {code} has two edits")
            _FIXES[code] = TuneFix(code, kind, plan)
        return plan

    return add


def fixes() -> dict[str, TuneFix]:
    """All edits by the code of their rule."""
    import unidle.tune.fixes.rules  # noqa: F401  registers them

    return _FIXES


def plan_for(facts: SourceFacts, code: str, node: ast.AST) -> FixPlan | None:
    """The edit of a finding; None where there is no correct one."""
    known = fixes().get(code)
    plan = known.plan(facts, node) if known is not None else None
    return plan if plan is not None and is_possible(facts, plan) else None
