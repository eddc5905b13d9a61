"""What several edits ask of a file."""

from __future__ import annotations

import ast
from collections.abc import Iterator

from unidle.tune.analysis.names import canonical
from unidle.tune.analysis.source import SourceFacts
from unidle.tune.analysis.walk import LoopNode
from unidle.tune.fixes.operations import AddImport, Operation
from unidle.tune.rules.common import assigned_in, names_in


def source(facts: SourceFacts, node: ast.AST) -> str:
    """The code of a node as it is written."""
    return ast.get_source_segment(facts.text, node) or ast.unparse(node)


def operand(facts: SourceFacts, node: ast.expr) -> str:
    """The same, in parentheses where a method could not be called on it."""
    text = source(facts, node)
    plain = isinstance(node, ast.Name | ast.Attribute | ast.Call | ast.Subscript)
    return text if plain else f"({text})"


def spelled(facts: SourceFacts, full: str) -> tuple[str, list[Operation]]:
    """How this file writes a full name such as ``torch.no_grad``; with an import where it has none.

    ``np`` is NumPy, as everywhere in the facts.
    """
    found = dict(_top_imports(facts.tree))
    parts = full.split(".")
    for count in range(len(parts), 0, -1):
        alias = found.get(".".join(parts[:count]))
        if alias is not None:
            return ".".join([alias, *parts[count:]]), []
    first = parts[0]
    return full, [AddImport("import numpy as np" if first == "np" else f"import {first}")]


def _top_imports(tree: ast.Module) -> Iterator[tuple[str, str]]:
    """Full names that top-level imports bind, with the name in this file."""
    for node in tree.body:
        if isinstance(node, ast.Import):
            for alias in node.names:
                plain = alias.name.partition(".")[0]
                yield canonical(alias.name if alias.asname else plain), alias.asname or plain
        elif isinstance(node, ast.ImportFrom) and node.module and not node.level:
            for alias in node.names:
                yield canonical(f"{node.module}.{alias.name}"), alias.asname or alias.name


def fresh(facts: SourceFacts, base: str) -> str:
    """A name that the file does not use."""
    used = {one.id for one in ast.walk(facts.tree) if isinstance(one, ast.Name)} | {
        one.attr for one in ast.walk(facts.tree) if isinstance(one, ast.Attribute)
    }
    name, number = base, 2
    while name in used:
        name, number = f"{base}_{number}", number + 1
    return name


def own_statement(facts: SourceFacts, call: ast.AST) -> ast.Expr | None:
    """The statement that consists of this call alone."""
    statement = facts.statement(call)
    return statement if isinstance(statement, ast.Expr) and statement.value is call else None


def block_of(facts: SourceFacts, statement: ast.stmt) -> list[ast.stmt]:
    """The statements among which it is."""
    parent = facts.walk.parent.get(statement)
    for name in ("body", "orelse", "finalbody"):
        block = getattr(parent, name, None)
        if isinstance(block, list) and statement in block:
            return block
    return []


def is_loop_body(facts: SourceFacts, statement: ast.stmt) -> LoopNode | None:
    """The loop whose body the statement is directly in."""
    parent = facts.walk.parent.get(statement)
    return parent if isinstance(parent, LoopNode) and statement in parent.body else None


def is_constant_in(loop: LoopNode, *nodes: ast.AST) -> bool:
    """Whether the names in expressions are not bound in a loop, and nothing in them is stored to or called on in place."""
    names = names_in(*nodes)
    if names & assigned_in(loop):
        return False
    return not any(_changes(one, names) for one in ast.walk(loop))


def _changes(node: ast.AST, names: set[str]) -> bool:
    """``x[0] = 1``, ``x.a = 1``, ``del x``, ``x.add_(1)``."""
    if isinstance(node, ast.Subscript | ast.Attribute) and isinstance(node.ctx, ast.Store | ast.Del):
        return bool(_root(node) & names)
    if isinstance(node, ast.Call) and isinstance(node.func, ast.Attribute) and node.func.attr.endswith("_"):
        return bool(_root(node.func) & names)
    return False


def _root(node: ast.expr) -> set[str]:
    while isinstance(node, ast.Attribute | ast.Subscript):
        node = node.value
    return {node.id} if isinstance(node, ast.Name) else set()


def changed_in_place(function: ast.AST, name: str) -> bool:
    """Whether a function changes the value of a name, other than by binding it."""
    return any(
        _changes(one, {name}) or (isinstance(one, ast.AugAssign) and name in names_in(one.target))
        for one in ast.walk(function)
    )


def reads(facts: SourceFacts, name: str, within: ast.AST | None = None) -> list[ast.Name]:
    """Where a plain name is read, in the file or below a node."""
    return [
        one for one in ast.walk(within or facts.tree)
        if isinstance(one, ast.Name) and one.id == name and isinstance(one.ctx, ast.Load)
    ]  # fmt: skip
