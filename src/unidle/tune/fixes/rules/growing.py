"""Tensors and arrays that grow in a loop: parts are kept in a list and joined once."""

from __future__ import annotations

import ast

from unidle.tune.analysis.source import SourceFacts
from unidle.tune.fixes.common import fresh, source
from unidle.tune.fixes.operations import FixPlan, Insert, Remove
from unidle.tune.fixes.registry import fix
from unidle.tune.rules.common import literal

_JOINS = ("torch.cat", "torch.concat", "torch.concatenate", "np.concatenate", "np.vstack", "np.hstack", "torch.hstack", "torch.vstack")  # fmt: skip


@fix("UDL304", "UDL305")
def joined_once(facts: SourceFacts, node: ast.AST) -> FixPlan | None:
    loops = facts.loops(node)
    statement = facts.statement(node)
    if not isinstance(node, ast.Call) or not isinstance(statement, ast.Assign) or not loops:
        return None
    loop, target = loops[-1], statement.targets[0]
    if not isinstance(target, ast.Name) or len(statement.targets) != 1 or loop.orelse or _leaves(loop):
        return None
    if not _begins_as_value(facts, statement, target.id, loop):
        return None
    name = facts.name_of(node.func)
    parts = fresh(facts, f"{target.id}_parts")
    added = _added(facts, node, name, target.id)
    if added is None or (name == "np.append" and not _numpy(facts, node)):
        return None
    join = _join(facts, node, name, parts)
    return FixPlan(
        (
            Insert("before", loop, f"{parts} = [{_first(facts, node, name, target.id)}]\n"),
            Insert("before", statement, f"{parts}.append({added})\n"),
            Remove(statement),
            Insert("after", loop, f"{target.id} = {join}\n"),
        ),
        "all parts are copied once",
    )


def _leaves(loop: ast.AST) -> bool:
    """Whether a round may leave the function, so that what follows the loop does not run."""
    return any(isinstance(one, ast.Return | ast.Yield | ast.YieldFrom | ast.Try) for one in ast.walk(loop))


def _begins_as_value(facts: SourceFacts, statement: ast.stmt, name: str, loop: ast.stmt) -> bool:
    """Whether the name has a tensor or an array before the loop, from one statement, and the loop binds it once and reads it nowhere else."""
    bindings = facts.walk.function[statement].bindings.get(name, [])
    inside = [one for one in bindings if loop.lineno <= one.line <= (loop.end_lineno or 0)]
    before = [one for one in bindings if one.line < loop.lineno]
    if len(inside) != 1 or not before or literal(before[-1].value) is not None:
        return False
    first = before[-1].value
    if not isinstance(first, ast.Call) or not facts.name_of(first.func).startswith(("torch.", "np.")):
        return False
    uses = [one for one in ast.walk(loop) if isinstance(one, ast.Name) and one.id == name]
    return len(uses) == 2  # its binding, and its own growth


def _added(facts: SourceFacts, call: ast.Call, name: str, grown: str) -> str | None:
    """What a round adds."""
    if name == "np.append":
        if len(call.args) != 2 or call.keywords or source(facts, call.args[0]) != grown:
            return None
        return f"{_numpy(facts, call)}ravel({source(facts, call.args[1])})"
    given = call.args[0]
    if name not in _JOINS or not isinstance(given, ast.List | ast.Tuple) or len(given.elts) != 2:
        return None
    if source(facts, given.elts[0]) != grown or any(
        one.arg == "out" or one.arg is None for one in call.keywords
    ):
        return None
    return source(facts, given.elts[1])


def _first(facts: SourceFacts, call: ast.Call, name: str, grown: str) -> str:
    return f"{_numpy(facts, call)}ravel({grown})" if name == "np.append" else grown


def _numpy(facts: SourceFacts, call: ast.Call) -> str:
    """``np.`` of ``np.append``."""
    text = source(facts, call.func)
    return text[: text.rindex(".") + 1] if "." in text else ""


def _join(facts: SourceFacts, call: ast.Call, name: str, parts: str) -> str:
    if name == "np.append":
        return f"{_numpy(facts, call)}concatenate({parts})"
    more = [source(facts, one) for one in call.args[1:]]
    more += [f"{one.arg}={source(facts, one.value)}" for one in call.keywords]
    return f"{source(facts, call.func)}({', '.join([parts, *more])})"
