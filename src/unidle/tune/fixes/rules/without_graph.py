"""Graphs that no backward pass needs, and gradients that are set to zero one by one."""

from __future__ import annotations

import ast

from unidle.tune.analysis.source import SourceFacts
from unidle.tune.fixes.common import operand, source, spelled
from unidle.tune.fixes.operations import FixPlan, Insert, Remove, Replace, Wrap
from unidle.tune.fixes.registry import fix
from unidle.tune.rules.common import parameter_loop
from unidle.tune.rules.memory import _kept as kept_of


def _yields(node: ast.AST) -> bool:
    return any(isinstance(one, ast.Yield | ast.YieldFrom | ast.Await) for one in ast.walk(node))


@fix("UDL301")
def detached(facts: SourceFacts, node: ast.AST) -> FixPlan | None:
    kept = kept_of(node) if isinstance(node, ast.stmt) else None
    if kept is None:
        return None
    value = kept[1]
    return FixPlan((Replace(value, f"{operand(facts, value)}.detach()"),), "the graph of each step is freed")


@fix("UDL302")
def evaluated(facts: SourceFacts, node: ast.AST) -> FixPlan | None:
    if not isinstance(node, ast.For | ast.While) or _yields(node):
        return None
    written, imports = spelled(facts, "torch.no_grad")
    return FixPlan((Wrap(node, f"with {written}():"), *imports), "evaluation needs no graph")


@fix("UDL704")
def served(facts: SourceFacts, node: ast.AST) -> FixPlan | None:
    statement = facts.statement(node)
    if _yields(statement) or isinstance(statement, ast.FunctionDef | ast.AsyncFunctionDef | ast.ClassDef):
        return None
    written, imports = spelled(facts, "torch.inference_mode")
    return FixPlan((Wrap(statement, f"with {written}():"), *imports), "an answer needs no graph")


@fix("UDL309")
def zeroed(facts: SourceFacts, node: ast.AST) -> FixPlan | None:
    """The loop over parameters becomes ``optimizer.zero_grad(set_to_none=False)``, of the optimizer of these parameters."""
    loop = parameter_loop(facts, node)
    if (
        not isinstance(loop, ast.For)
        or not _only_zeroes(facts, loop, node)
        or not isinstance(loop.iter, ast.Call)
    ):
        return None
    function = loop.iter.func
    if not isinstance(function, ast.Attribute) or function.attr != "parameters" or loop.iter.args:
        return None
    optimizer = _optimizer_of(facts, node, source(facts, loop.iter))
    if optimizer is None:
        return None
    call = f"{optimizer}.zero_grad(set_to_none=False)\n"
    return FixPlan((Insert("before", loop, call), Remove(loop)), "gradients are set to zero in groups")


def _only_zeroes(facts: SourceFacts, loop: ast.For, node: ast.AST) -> bool:
    """``p.grad.zero_()`` alone, or below ``if p.grad is not None``."""
    body = loop.body
    if len(body) == 1 and isinstance(body[0], ast.If) and not body[0].orelse:
        test = ast.unparse(body[0].test)
        name = source(facts, loop.target)
        if test not in (f"{name}.grad is not None", f"{name}.grad"):
            return False
        body = body[0].body
    return len(body) == 1 and isinstance(body[0], ast.Expr) and body[0].value is node and not loop.orelse


def _optimizer_of(facts: SourceFacts, node: ast.AST, parameters: str) -> str | None:
    """The name of the only optimizer, where it has these parameters and no others."""
    found = [
        (name, binding.value)
        for scope in facts.function_of(node).chain()
        for name, bindings in scope.bindings.items()
        for binding in bindings
        if isinstance(binding.value, ast.Call) and facts.name_of(binding.value.func).startswith("torch.optim.")
        and not facts.name_of(binding.value.func).startswith("torch.optim.lr_scheduler")
    ]  # fmt: skip
    made = sum(name.startswith("torch.optim.") and "lr_scheduler" not in name for name in facts.named)
    if len(found) != 1 or made != 1:
        return None
    name, call = found[0]
    assert isinstance(call, ast.Call)
    return name if call.args and source(facts, call.args[0]) == parameters else None
