"""How samples become tensors, and what is read for each of them."""

from __future__ import annotations

import ast

from unidle.tune.analysis.source import SourceFacts
from unidle.tune.analysis.walk import FunctionFacts
from unidle.tune.fixes.common import changed_in_place, fresh, source, spelled
from unidle.tune.fixes.operations import FixPlan, Insert, Replace
from unidle.tune.fixes.registry import fix
from unidle.tune.rules.common import names_in

_LEGACY = {
    "torch.FloatTensor": "torch.float32", "torch.Tensor": "torch.float32", "torch.LongTensor": "torch.int64", "torch.DoubleTensor": "torch.float64",
}  # fmt: skip


@fix("UDL103")
def stacked(facts: SourceFacts, node: ast.AST) -> FixPlan | None:
    """``torch.tensor(rows)`` becomes ``torch.tensor(np.stack(rows))``; the type is the same, for one array has one too."""
    if not isinstance(node, ast.Call) or len(node.args) != 1 or isinstance(node.args[0], ast.Starred):
        return None
    stack, imports = spelled(facts, "np.stack")
    rows = f"{stack}({source(facts, node.args[0])})"
    why = "the arrays are copied as a whole, not number by number"
    kind = _LEGACY.get(facts.name_of(node.func))
    if kind is None:
        return FixPlan((Replace(node.args[0], rows), *imports), why)
    if node.keywords:
        return None
    make, more = spelled(facts, "torch.as_tensor")
    dtype, _ = spelled(facts, kind)
    return FixPlan((Replace(node, f"{make}({rows}, dtype={dtype})"), *imports, *more), why)


@fix("UDL104")
def shared(facts: SourceFacts, node: ast.AST) -> FixPlan | None:
    """Not where the function changes the array, which the tensor then shares."""
    if not isinstance(node, ast.Call):
        return None
    function = facts.function_of(node).node
    if function is None or any(changed_in_place(function, name) for name in names_in(node.args[0])):
        return None
    target = facts.statement(node)
    if isinstance(target, ast.Assign) and any(
        changed_in_place(function, name) for name in names_in(*target.targets)
    ):
        return None
    make, imports = spelled(facts, "torch.as_tensor")
    kind = _LEGACY.get(facts.name_of(node.func))
    why = "the tensor shares the memory of the array"
    if kind is None:
        return FixPlan((Replace(node.func, make), *imports), why)
    if node.keywords:
        return None
    dtype, _ = spelled(facts, kind)
    given = source(facts, node.args[0])
    return FixPlan((Replace(node, f"{make}({given}, dtype={dtype})"), *imports), why)


@fix("UDL102")
def read_once(facts: SourceFacts, node: ast.AST) -> FixPlan | None:
    """The file is read at the end of ``__init__``, where the call has only attributes that are set there."""
    owner = facts.owner_of(node)
    if not isinstance(node, ast.Call) or owner is None:
        return None
    init, method = owner.methods.get("__init__"), facts.function_of(node)
    if init is None or init.node is None or method.node is None or not _only_from_init(facts, node, init):
        return None
    target = facts.statement(node)
    names = names_in(*target.targets) if isinstance(target, ast.Assign) else set()
    if any(changed_in_place(method.node, name) for name in names):
        return None
    name = fresh(facts, "_read_once")
    why = "the file is read once, not for each sample"
    return FixPlan(
        (Replace(node, f"self.{name}"), Insert("end", init.node, f"self.{name} = {source(facts, node)}\n")),
        why,
    )


def _only_from_init(facts: SourceFacts, call: ast.Call, init: FunctionFacts) -> bool:
    """Whether a call has constants, imported names and attributes of ``self`` that only ``__init__`` sets."""
    owner = init.owner
    for one in ast.walk(call):
        if not isinstance(one, ast.Name):
            continue
        if one.id != "self":
            if facts.names.imported(one.id):
                continue
            return False
        up = facts.walk.parent.get(one)
        if owner is None or not isinstance(up, ast.Attribute) or up.attr not in owner.attributes:
            return False
        if up.attr in owner.methods or not _set_once(up.attr, init):
            return False
    return True


def _set_once(attribute: str, init: FunctionFacts) -> bool:
    """Whether an attribute is bound by a statement of ``__init__`` itself, and nowhere else."""
    assert init.owner is not None
    inside = [one for one in ast.walk(init.node or ast.Pass()) if _binds(one, attribute)]
    everywhere = [one for one in ast.walk(init.owner.node) if _binds(one, attribute)]
    return len(inside) == len(everywhere) == 1 and init.node is not None and any(
        inside[0] in ast.walk(statement) for statement in init.node.body if isinstance(statement, ast.Assign | ast.AnnAssign)
    )  # fmt: skip


def _binds(node: ast.AST, attribute: str) -> bool:
    return isinstance(node, ast.Attribute) and node.attr == attribute and isinstance(node.ctx, ast.Store)
