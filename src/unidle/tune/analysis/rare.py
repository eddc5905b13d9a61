"""Whether a branch runs in few rounds of a loop: ``if step % 100 == 0``, ``if args.debug``, ``if torch.isnan(loss)``."""

from __future__ import annotations

import ast
import re
from typing import Final

from unidle.tune.analysis.walk import BranchMark

_FLAG: Final = re.compile(
    r"debug|verbose|profil|dry_?run|should|is_last|(?:^|_)last|first|every|interval|(?:^|_)due|log|print|save|eval|"
    r"ckpt|checkpoint|plot|visuali|sample_now|report|sanity|elapsed|best|improved|valid|test|finished|(?:^|_)done",
    re.IGNORECASE,
)
_PERIOD: Final = re.compile(r"every|interval|freq|period", re.IGNORECASE)
_COUNTER: Final = re.compile(r"^(?:i|it|n|idx|b?step|steps|batch|batch_?(?:idx|i|id|nb)|epoch|iter\w*|count\w*|\w+_(?:idx|step|steps|iter|iters|num|count))$")  # fmt: skip
_BROKEN: Final = frozenset({"isnan", "isinf"})
_CLOCK: Final = frozenset({"time", "perf_counter", "monotonic", "process_time"})


def is_rare(mark: BranchMark) -> bool:
    """Whether what has this mark around it runs in few rounds only."""
    if mark.kind == "handler":
        return True
    if mark.kind != "if" or not isinstance(mark.node, ast.If):
        return False
    if mark.first:
        return _ends_loop(mark.node.body[-1]) or _rare(mark.node.test, True)
    return _rare(mark.node.test, False)


def _ends_loop(node: ast.stmt) -> bool:
    return isinstance(node, ast.Raise | ast.Break) or (
        isinstance(node, ast.Expr)
        and isinstance(node.value, ast.Call)
        and isinstance(node.value.func, ast.Attribute)
        and node.value.func.attr in ("exit", "_exit", "abort")
    )


def _rare(test: ast.expr, value: bool) -> bool:
    """Whether the test seldom has this value."""
    if isinstance(test, ast.UnaryOp) and isinstance(test.op, ast.Not):
        return _rare(test.operand, not value)
    if isinstance(test, ast.BoolOp):
        either = isinstance(test.op, ast.And) == value
        return (any if either else all)(_rare(one, value) for one in test.values)
    if isinstance(test, ast.Compare):
        return _rare_comparison(test, value)
    if isinstance(test, ast.BinOp) and isinstance(test.op, ast.Mod):
        return not value
    return value and _is_flag(test)


def _rare_comparison(test: ast.Compare, value: bool) -> bool:
    operator = test.ops[0]
    sides = [test.left, *test.comparators]
    if any(isinstance(part, ast.Mod) for side in sides for part in ast.walk(side)):
        return value == isinstance(operator, ast.Eq | ast.Lt | ast.LtE | ast.In)
    if isinstance(operator, ast.Eq | ast.In):
        return value and any(_COUNTER.match(_last_name(side)) for side in sides)
    if isinstance(operator, ast.NotEq):
        return not value and any(_COUNTER.match(_last_name(side)) for side in sides)
    if isinstance(operator, ast.Lt | ast.LtE | ast.Gt | ast.GtE):
        counted = any(_COUNTER.match(_last_name(side)) for side in sides)
        return value and (any(_is_flag(part) for side in sides for part in ast.walk(side)) and not counted)
    return False


def _is_flag(node: ast.AST) -> bool:
    if isinstance(node, ast.Call):
        name = _last_name(node.func)
        if name in ("any", "all") and isinstance(node.func, ast.Attribute):
            return _is_flag(node.func.value)
        periodic = len(node.args) > 1 and any(_PERIOD.search(_last_name(one)) for one in node.args)
        return periodic or name in _BROKEN or name in _CLOCK or bool(_FLAG.search(name))
    return bool(_FLAG.search(_last_name(node)))


def _last_name(node: ast.AST) -> str:
    if isinstance(node, ast.Attribute):
        return node.attr
    return node.id if isinstance(node, ast.Name) else ""
