"""Values that are kept from one step to the next, though they depend on data or parameters."""

from __future__ import annotations

import ast
from collections.abc import Iterator
from typing import Final

from unidle.tune.analysis.source import SourceFacts
from unidle.tune.cheats import words

_PLAIN: Final = frozenset(
    {"shape", "size", "device", "dtype", "ndim", "numel", "dim", "len", "type_as", "config"}
)
CONSTANT_CALLS: Final = frozenset({
    "arange", "ones", "zeros", "full", "eye", "tril", "triu", "linspace", "tensor", "exp", "log", "sin", "cos", "outer", "cat", "stack", "view",
    "reshape", "unsqueeze", "to", "float", "bool", "sqrt", "meshgrid", "masked_fill", "empty", "range", "int", "pow", "ones_like", "zeros_like",
    "transpose", "expand", "repeat", "cumsum", "flip", "contiguous", "half", "double", "long", "size", "dim", "len", "tuple", "einsum",
    "squeeze", "log2", "hann_window", "as_tensor", "append", "max", "min",
})  # fmt: skip


def cached(before: SourceFacts, after: SourceFacts) -> Iterator[tuple[int, str]]:
    """Lines with a new cache of what is not constant."""
    known = {ast.unparse(node) for node in _decorators(before)}
    for decorator in _decorators(after):
        if ast.unparse(decorator) in known:
            continue
        function = after.walk.parent.get(decorator) or _owner(after, decorator)
        if function is None or not _constant(function):
            yield (
                decorator.lineno,
                f"`@{ast.unparse(decorator)[:60]}` keeps results of a function that is not only constants",
            )
    old = {ast.unparse(node.test) for node in ast.walk(before.tree) if isinstance(node, ast.If)}
    for node in ast.walk(after.tree):
        if (
            isinstance(node, ast.If)
            and _asks_for_kept(node.test)
            and ast.unparse(node.test) not in old
            and not _constant(node)
        ):
            yield (
                node.lineno,
                f"`if {ast.unparse(node.test)[:60]}` keeps a value that depends on data or parameters",
            )
        elif (
            isinstance(node, ast.IfExp)
            and _asks_for_kept(node.test)
            and ast.unparse(node) not in ast.unparse(before.tree)
            and not _constant(node)
        ):
            yield node.lineno, f"`{ast.unparse(node)[:60]}` keeps a value that depends on data or parameters"
        elif (
            isinstance(node, ast.Call) and _keeps(node) and ast.unparse(node) not in ast.unparse(before.tree)
        ):
            yield node.lineno, f"`{ast.unparse(node)[:60]}` keeps the result of a call"
        elif isinstance(node, ast.Global | ast.Nonlocal) and ast.unparse(node) not in ast.unparse(
            before.tree
        ):
            yield node.lineno, f"`{ast.unparse(node)[:60]}` keeps a value between calls"
    yield from _left_loop(before, after)


def _decorators(facts: SourceFacts) -> Iterator[ast.expr]:
    for node in ast.walk(facts.tree):
        if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef):
            for one in node.decorator_list:
                target = one.func if isinstance(one, ast.Call) else one
                if words.CACHES.match(facts.names.of(target)):
                    yield one


def _owner(facts: SourceFacts, decorator: ast.expr) -> ast.AST | None:
    return next(
        (n for n in ast.walk(facts.tree) if isinstance(n, ast.FunctionDef) and decorator in n.decorator_list),
        None,
    )


def _asks_for_kept(test: ast.expr) -> bool:
    """``x is None``, ``k not in d``, ``hasattr(...)``, ``step == 0``, and their like."""
    for node in ast.walk(test):
        if isinstance(node, ast.Compare) and any(
            isinstance(op, ast.Is | ast.IsNot | ast.In | ast.NotIn) for op in node.ops
        ):
            return True
        if (
            isinstance(node, ast.Call)
            and isinstance(node.func, ast.Name)
            and node.func.id in ("hasattr", "getattr", "id", "hash")
        ):
            return True
    return False


def _keeps(node: ast.Call) -> bool:
    """``kept.setdefault(key, call(...))``."""
    return (
        isinstance(node.func, ast.Attribute) and node.func.attr == "setdefault"
        and any(isinstance(part, ast.Call) for part in node.args[1:]) and not _constant(node.args[1])
    )  # fmt: skip


def _constant(node: ast.AST) -> bool:
    """Whether only constructors and shapes are called below a node."""
    for part in ast.walk(node):
        if isinstance(part, ast.Call):
            name = part.func.attr if isinstance(part.func, ast.Attribute) else getattr(part.func, "id", "")
            if name not in CONSTANT_CALLS | _PLAIN | {
                "hasattr",
                "lru_cache",
                "cache",
                "register_buffer",
                "get",
            }:
                return False
        elif isinstance(part, ast.Name) and part.id in (
            "batch",
            "inputs",
            "targets",
            "labels",
            "model",
            "loss",
            "images",
        ):
            return False
    return True


def _left_loop(before: SourceFacts, after: SourceFacts) -> Iterator[tuple[int, str]]:
    """Calls of a model, a loss or a random source that were in each step, and are not now."""

    def noted(facts: SourceFacts) -> tuple[dict[str, int], dict[str, int]]:
        hot: dict[str, int] = {}
        cold: dict[str, int] = {}
        for call in facts.walk.calls:
            name = ast.unparse(call.func)
            plain = name.rpartition(".")[2]
            if facts.role(call.func) in ("module", "loss_fn") or plain in (
                "rand",
                "randn",
                "randint",
                "randperm",
                "next",
                "normal_",
                "uniform_",
                "item",
            ):
                (hot if facts.hot(call) else cold)[name] = call.lineno
        return hot, cold

    hot_before, cold_before = noted(before)
    hot, cold = noted(after)
    for name, line in cold.items():
        if name in hot_before and name not in hot and name not in cold_before and not name.endswith(".item"):
            yield line, f"`{name}` was computed in each step"
