"""The registry of rules: code, name, message, and the function that finds places."""

from __future__ import annotations

import ast
import re
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass
from typing import TYPE_CHECKING, Final, Literal

if TYPE_CHECKING:
    from unidle.tune.analysis.source import SourceFacts

DOCS: Final = "https://unidle.dev/docs/tune/"
"""The address of the published pages of the rules."""

Severity = Literal["error", "warning", "note"]
Find = Callable[["SourceFacts"], Iterable[ast.AST]]


@dataclass(frozen=True, slots=True)
class TuneRule:
    """One rule. ``severity`` is the level in SARIF."""

    code: str
    name: str
    message: str
    severity: Severity
    find: Find

    @property
    def fixable(self) -> bool:
        """Whether a deterministic edit exists, for some of the places at least."""
        from unidle.tune.fixes.registry import fixes

        return self.code in fixes()

    @property
    def url(self) -> str:
        """The address of its page."""
        return f"{DOCS}{self.code}.html"


@dataclass(frozen=True, slots=True, order=True)
class CodeFinding:
    """A rule and a place. Lines and columns begin with 1; ``cell`` is the cell of a notebook, from 1, else 0."""

    file: str
    cell: int
    line: int
    column: int
    code: str
    end_line: int
    message: str
    fixable: bool
    url: str
    severity: Severity = "warning"
    text: str = ""
    """The line of code, without indent."""


_RULES: dict[str, TuneRule] = {}


def rule(code: str, name: str, message: str, *, severity: Severity = "warning") -> Callable[[Find], Find]:
    """Register a function that yields the nodes of a file to report."""

    def add(find: Find) -> Find:
        if code in _RULES or not re.fullmatch(r"UDL[1-7]\d\d", code):
            raise ValueError(f"rule {code} is registered twice, or is no code")
        _RULES[code] = TuneRule(code, name, message, severity, find)
        return find

    return add


def rules() -> dict[str, TuneRule]:
    """All rules by code, in order."""
    import unidle.tune.rules  # noqa: F401  registers them

    return dict(sorted(_RULES.items()))


def places(facts: SourceFacts, chosen: Iterable[TuneRule]) -> Iterator[tuple[TuneRule, ast.AST]]:
    """The nodes that the rules find in one file; each rule reports a place once."""
    for one in chosen:
        seen: set[tuple[int, int]] = set()
        for node in one.find(facts):
            line, column = getattr(node, "lineno", 1), getattr(node, "col_offset", 0)
            if (line, column) in seen or facts.in_test(node):
                continue
            seen.add((line, column))
            yield one, node


def findings(facts: SourceFacts, chosen: Iterable[TuneRule]) -> Iterator[CodeFinding]:
    """What the rules find in one file."""
    from unidle.tune.fixes.registry import plan_for

    for one, node in places(facts, chosen):
        line, column = getattr(node, "lineno", 1), getattr(node, "col_offset", 0)
        end = getattr(node, "end_lineno", None) or line
        if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef | ast.ClassDef | ast.For | ast.While):
            end = line  # the heading, not the body
        yield CodeFinding(
            facts.path, 0, line, facts.column(line, column), one.code, end,
            one.message, plan_for(facts, one.code, node) is not None, one.url, one.severity, facts.line(line).strip(),
        )  # fmt: skip
