"""The small changes that scripts/mutants.py makes to a function, one at a time.

A mutant is one change in the body of a function. What runs on import, annotations, texts, ``raise``, ``assert`` and calls
of a logger stay as they are.
"""

from __future__ import annotations

import ast
import copy
import hashlib
from collections import Counter
from collections.abc import Iterator
from types import CodeType
from typing import Final, NamedTuple

Scope = ast.FunctionDef | ast.AsyncFunctionDef
Parent = tuple[ast.AST, str, int | None]  # a node, its field, and the index where the field is a list

BOUNDARY: Final[dict[type[ast.cmpop], type[ast.cmpop]]] = {
    ast.Lt: ast.LtE,
    ast.LtE: ast.Lt,
    ast.Gt: ast.GtE,
    ast.GtE: ast.Gt,
}
NEGATED: Final[dict[type[ast.cmpop], type[ast.cmpop]]] = {
    ast.Lt: ast.GtE,
    ast.GtE: ast.Lt,
    ast.Gt: ast.LtE,
    ast.LtE: ast.Gt,
    ast.Eq: ast.NotEq,
    ast.NotEq: ast.Eq,
    ast.In: ast.NotIn,
    ast.NotIn: ast.In,
    ast.Is: ast.IsNot,
    ast.IsNot: ast.Is,
}
SWAPPED: Final[dict[type[ast.operator], type[ast.operator]]] = {
    ast.Add: ast.Sub,
    ast.Sub: ast.Add,
    ast.Mult: ast.Div,
    ast.Div: ast.Mult,
    ast.FloorDiv: ast.Mult,
    ast.Mod: ast.FloorDiv,
    ast.Pow: ast.Mult,
    ast.BitAnd: ast.BitOr,
    ast.BitOr: ast.BitAnd,
    ast.LShift: ast.RShift,
    ast.RShift: ast.LShift,
}
EXTREMES: Final = {"min": "max", "max": "min"}
LOGGERS: Final = frozenset({"log", "_log", "logger", "_logger", "logging"})
NOT_READ: Final = frozenset({"annotation", "returns", "decorator_list", "args", "type_params"})
_LONGEST: Final = 90  # of a text in a name


class Mutant(NamedTuple):
    """One change. ``number`` is its place among all changes of the file, ``lines`` where the changed code is."""

    path: str
    function: str
    first_line: int  # of the outermost function, as in its code object
    number: int
    kind: str
    lines: tuple[int, int]
    statement: int
    text: str

    @property
    def name(self) -> str:
        """Stays the same when lines move."""
        return f"{self.path} {self.function}: {self.text}"

    def rank(self, seed: str) -> str:
        """Mutants in the order of this value are shuffled; a change elsewhere does not move them."""
        return hashlib.sha256(f"{seed} {self.name}".encode()).hexdigest()


class _Change(NamedTuple):
    function: str
    first_line: int
    kind: str
    parent: Parent
    old: ast.AST
    new: ast.AST
    statement: int


def mutants(source: str, path: str) -> list[Mutant]:
    """All mutants of a file, in the order of their lines."""
    seen: Counter[str] = Counter()
    found = []
    for number, change in enumerate(_changes(ast.parse(source))):
        text = f"{change.kind}: {_short(change.old)}"
        if not isinstance(change.new, ast.Pass):
            text = f"{text} -> {_short(change.new)}"
        place = f"{change.function} {text}"
        seen[place] += 1
        if seen[place] > 1:
            text = f"{text} ({seen[place]})"
        old = change.old
        lines = (getattr(old, "lineno", change.statement), getattr(old, "end_lineno", change.statement))
        found.append(
            Mutant(
                path, change.function, change.first_line, number, change.kind, lines, change.statement, text
            )
        )
    return found


def built(source: str, number: int, filename: str) -> CodeType:
    """The code of the module with one change."""
    tree = ast.parse(source)
    for at, change in enumerate(_changes(tree)):
        if at == number:
            node, field, index = change.parent
            new = ast.copy_location(change.new, change.old)
            if index is None:
                setattr(node, field, new)
            else:
                getattr(node, field)[index] = new
            return compile(ast.fix_missing_locations(tree), filename, "exec", dont_inherit=True)
    raise IndexError(number)


def code_of(module: CodeType, function: str, first_line: int) -> CodeType | None:
    """The code object of a function of the module or of a class in it."""
    for const in module.co_consts:
        if isinstance(const, CodeType):
            if (const.co_qualname, const.co_firstlineno) == (function, first_line):
                return const
            if found := code_of(const, function, first_line):
                return found
    return None


def _short(node: ast.AST) -> str:
    text = " ".join(ast.unparse(node).split())
    return text if len(text) <= _LONGEST else f"{text[:_LONGEST]}..."


def _changes(tree: ast.Module) -> Iterator[_Change]:
    for name, function in _outermost(tree):
        first = min([function.lineno, *(each.lineno for each in function.decorator_list)])
        for at, statement in enumerate(function.body):
            for parent, node, line in _nodes((function, "body", at), statement, statement.lineno):
                for kind, new in _edits(node, last=node is function.body[-1]):
                    yield _Change(name, first, kind, parent, node, new, line)


def _outermost(tree: ast.AST, prefix: str = "") -> Iterator[tuple[str, Scope]]:
    for node in getattr(tree, "body", ()):
        if isinstance(node, Scope):
            yield f"{prefix}{node.name}", node
        elif isinstance(node, ast.ClassDef):
            yield from _outermost(node, f"{prefix}{node.name}.")


def _nodes(parent: Parent, node: ast.AST, line: int) -> Iterator[tuple[Parent, ast.AST, int]]:
    """A node and what is below it, with the line of its statement."""
    if isinstance(node, ast.Raise | ast.Assert | ast.JoinedStr | ast.Import | ast.ImportFrom) or _logs(node):
        return
    if isinstance(node, ast.stmt):
        line = node.lineno
    yield parent, node, line
    for field, value in ast.iter_fields(node):
        if field in NOT_READ and not isinstance(node, ast.Call):
            continue
        if isinstance(value, list):
            for index, each in enumerate(value):
                if isinstance(each, ast.AST):
                    yield from _nodes((node, field, index), each, line)
        elif isinstance(value, ast.AST):
            yield from _nodes((node, field, None), value, line)


def _logs(node: ast.AST) -> bool:
    called = node.value.func if isinstance(node, ast.Expr) and isinstance(node.value, ast.Call) else None
    return (
        isinstance(called, ast.Attribute)
        and isinstance(called.value, ast.Name)
        and called.value.id in LOGGERS
    )


def _edits(node: ast.AST, *, last: bool) -> Iterator[tuple[str, ast.AST]]:
    if isinstance(node, ast.stmt):
        yield from _edits_of_statement(node, last=last)
    elif isinstance(node, ast.Compare):
        for kind, table in (("boundary", BOUNDARY), ("negation", NEGATED)):
            if type(node.ops[0]) in table:
                yield kind, _with(node, ops=[table[type(node.ops[0])](), *node.ops[1:]])
    elif isinstance(node, ast.BinOp) and type(node.op) in SWAPPED and not _is_text(node):
        yield "arithmetic", _with(node, op=SWAPPED[type(node.op)]())
    elif isinstance(node, ast.BoolOp):
        yield "boolean", _with(node, op=ast.Or() if isinstance(node.op, ast.And) else ast.And())
    elif isinstance(node, ast.UnaryOp) and isinstance(node.op, ast.Not):
        yield "not", node.operand
    elif isinstance(node, ast.Constant) and type(node.value) in (int, float):
        yield "constant", ast.Constant(node.value + 1)  # type: ignore[operator]
        yield "constant", ast.Constant(node.value - 1)  # type: ignore[operator]
    elif isinstance(node, ast.Call) and isinstance(node.func, ast.Name) and node.func.id in EXTREMES:
        yield "extreme", _with(node, func=ast.Name(EXTREMES[node.func.id], ast.Load()))


def _edits_of_statement(node: ast.stmt, *, last: bool) -> Iterator[tuple[str, ast.AST]]:
    if isinstance(node, ast.Return):
        if node.value is not None and not (isinstance(node.value, ast.Constant) and node.value.value is None):
            yield "return None", ast.Return(ast.Constant(None))
        if not last:
            yield "no return", ast.Pass()
    elif isinstance(node, ast.AugAssign):
        if type(node.op) in SWAPPED and not _is_text(node):
            yield "arithmetic", _with(node, op=SWAPPED[type(node.op)]())
        yield "no statement", ast.Pass()
    elif _can_go(node):
        yield "no statement", ast.Pass()


def _can_go(node: ast.stmt) -> bool:
    if isinstance(node, ast.AnnAssign):
        return node.value is not None
    if isinstance(node, ast.Expr):
        return isinstance(node.value, ast.Call | ast.Yield | ast.YieldFrom)
    return isinstance(node, ast.Assign)


def _is_text(node: ast.AST) -> bool:
    return any(
        isinstance(each, ast.JoinedStr) or (isinstance(each, ast.Constant) and isinstance(each.value, str))
        for each in ast.walk(node)
    )


def _with(node: ast.AST, **fields: object) -> ast.AST:
    """A copy of the node with other fields. The rest is shared."""
    new = copy.copy(node)
    for name, value in fields.items():
        setattr(new, name, value)
    return new
