"""Statements that a training script does not need."""

from __future__ import annotations

import ast

from unidle.tune.analysis.source import SourceFacts
from unidle.tune.fixes.common import own_statement, reads
from unidle.tune.fixes.operations import FixPlan, Remove, Replace, SetKeyword
from unidle.tune.fixes.registry import fix
from unidle.tune.rules.common import has_keyword


def _removed(facts: SourceFacts, node: ast.AST, why: str) -> FixPlan | None:
    statement = own_statement(facts, node)
    return FixPlan((Remove(statement),), why) if statement is not None else None


@fix("UDL204")
def synchronised(facts: SourceFacts, node: ast.AST) -> FixPlan | None:
    return _removed(facts, node, "the host need not wait for the device in each step")


@fix("UDL205")
def cache_emptied(facts: SourceFacts, node: ast.AST) -> FixPlan | None:
    return _removed(facts, node, "the allocator keeps its memory between steps")


@fix("UDL206")
def collected(facts: SourceFacts, node: ast.AST) -> FixPlan | None:
    if "gc.disable" in facts.named or "gc.freeze" in facts.named:
        return None
    return _removed(facts, node, "Python collects garbage by itself")


@fix("UDL604", kind="order")
def barrier(facts: SourceFacts, node: ast.AST) -> FixPlan | None:
    return _removed(facts, node, "gradients synchronise the ranks already")


@fix("UDL701")
def debug_environment(facts: SourceFacts, node: ast.AST) -> FixPlan | None:
    if isinstance(node, ast.Assign):
        return FixPlan((Remove(node),), "the variable is for debugging")
    return _removed(facts, node, "the variable is for debugging")


@fix("UDL709")
def cache_off(_facts: SourceFacts, node: ast.AST) -> FixPlan | None:
    why = "keys and values of earlier tokens are kept"
    return FixPlan((Replace(node.value, "True"),), why) if isinstance(node, ast.Assign) else None


@fix("UDL303")
def anomaly_detection(facts: SourceFacts, node: ast.AST) -> FixPlan | None:
    why = "anomaly detection is for debugging"
    if not isinstance(node, ast.Call):
        return None
    if facts.name_of(node.func) == "lightning.Trainer":
        return FixPlan((SetKeyword(node, "detect_anomaly", None),), why)
    statement = facts.statement(node)
    if isinstance(statement, ast.Expr):
        return _removed(facts, node, why)
    if not isinstance(statement, ast.With) or has_keyword(node, "mode") or statement.items[0].optional_vars:
        return None
    if facts.name_of(node.func).endswith("set_detect_anomaly"):
        return FixPlan((Replace(node.args[0], "False"),), why) if node.args else None
    if not isinstance(node.func, ast.Attribute):
        return None
    owner = ast.get_source_segment(facts.text, node.func.value)
    return FixPlan((Replace(node, f"{owner}.set_detect_anomaly(False)"),), why)


_WITHOUT_EFFECT = frozenset({
    "item", "cpu", "detach", "numpy", "tolist", "float", "int", "bool", "mean", "sum", "max", "min", "argmax", "eq", "clone", "norm", "abs", "to", "deepcopy", "state_dict",
})  # fmt: skip


@fix("UDL201", "UDL202", "UDL307")
def unused_value(facts: SourceFacts, node: ast.AST) -> FixPlan | None:
    """``current = loss.item()`` where no one reads ``current``."""
    statement = facts.statement(node)
    function = facts.function_of(statement)
    if not isinstance(statement, ast.Assign) or len(statement.targets) != 1 or function.node is None:
        return None  # names of a module may be read elsewhere
    target = statement.targets[0]
    if not isinstance(target, ast.Name) or reads(facts, target.id, function.node):
        return None
    if target.id in function.params or any(
        isinstance(one, ast.Global | ast.Nonlocal) for one in ast.walk(function.node)
    ):
        return None
    for one in ast.walk(statement.value):
        if isinstance(one, ast.Call) and facts.plain_name(one.func) not in _WITHOUT_EFFECT:
            return None
        if isinstance(one, ast.NamedExpr | ast.Await | ast.Yield | ast.YieldFrom):
            return None
    if any(
        facts.plain_name(one.func) in ("locals", "eval", "exec", "vars")
        for one in function.calls
        if isinstance(one.func, ast.Name)
    ):
        return None
    return FixPlan((Remove(statement),), "the value is used nowhere")
