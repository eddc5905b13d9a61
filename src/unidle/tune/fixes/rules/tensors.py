"""Expressions of tensors that have a faster form."""

from __future__ import annotations

import ast
import copy

from unidle.tune.analysis.source import SourceFacts
from unidle.tune.fixes.common import operand, source, spelled
from unidle.tune.fixes.operations import FixPlan, Insert, Remove, Replace
from unidle.tune.fixes.registry import fix
from unidle.tune.rules.common import has_keyword, keyword, literal, names_in

_WITHOUT_CHANCE = frozenset({
    "torch.tensor", "torch.zeros", "torch.ones", "torch.full", "torch.arange", "torch.eye", "torch.empty", "torch.linspace",
})  # fmt: skip


def _given(facts: SourceFacts, call: ast.Call) -> str:
    """The arguments of a call as they are written, without its parentheses."""
    parts = [source(facts, one) for one in call.args]
    parts += [
        f"{one.arg}={source(facts, one.value)}" if one.arg else f"**{source(facts, one.value)}"
        for one in call.keywords
    ]
    return ", ".join(parts)


@fix("UDL407")
def log_softmax(facts: SourceFacts, node: ast.AST) -> FixPlan | None:
    if not isinstance(node, ast.Call):
        return None
    plain = bool(facts.name_of(node.func))
    inner = (
        node.args[0]
        if plain and node.args
        else node.func.value
        if isinstance(node.func, ast.Attribute)
        else None
    )
    if not isinstance(inner, ast.Call) or (plain and (len(node.args) != 1 or node.keywords)):
        return None
    why = "one pass, and more exact"
    name = facts.name_of(inner.func)
    if not name and isinstance(inner.func, ast.Attribute):
        given = _given(facts, inner)
        return FixPlan((Replace(node, f"{operand(facts, inner.func.value)}.log_softmax({given})"),), why)
    written, imports = spelled(facts, name.replace("softmax", "log_softmax"))
    return FixPlan((Replace(node, f"{written}({_given(facts, inner)})"), *imports), why)


@fix("UDL210")
def made_on_device(facts: SourceFacts, node: ast.AST) -> FixPlan | None:
    """``torch.zeros(n).to(device)`` becomes ``torch.zeros(n, device=device)``; not for random numbers, which a device draws from a generator of its own."""
    if not isinstance(node, ast.Call) or not isinstance(node.func, ast.Attribute):
        return None
    made = node.func.value
    if not isinstance(made, ast.Call) or facts.name_of(made.func) not in _WITHOUT_CHANCE:
        return None
    if node.func.attr == "cuda" and not node.args and not node.keywords:
        device = '"cuda"'
    elif node.func.attr == "to" and len(node.args) == 1 and not node.keywords:
        device = source(facts, node.args[0])
    elif node.func.attr == "to" and not node.args and [one.arg for one in node.keywords] == ["device"]:
        device = source(facts, node.keywords[0].value)
    else:
        return None
    head = source(facts, made.func)
    given = _given(facts, made)
    joint = ", " if given else ""
    return FixPlan(
        (Replace(node, f"{head}({given}{joint}device={device})"),), "the tensor is made where it is used"
    )


@fix("UDL406")
def indexed(facts: SourceFacts, node: ast.AST) -> FixPlan | None:
    """``F.one_hot(index, n).float() @ table`` becomes ``table[index]``."""
    if not isinstance(node, ast.Call) or not node.args or has_keyword(node, "out"):
        return None
    whole: ast.AST = node
    for up in facts.parents(node):
        if isinstance(up, ast.Attribute) or (isinstance(up, ast.Call) and up.func is whole):
            if isinstance(up, ast.Attribute) and up.attr not in (
                "float",
                "to",
                "type_as",
                "double",
                "half",
                "type",
            ):
                return None
            whole = up
            continue
        table: ast.expr | None = None
        if isinstance(up, ast.BinOp) and isinstance(up.op, ast.MatMult) and up.left is whole:
            table = up.right
        elif (
            isinstance(up, ast.Call)
            and facts.name_of(up.func) in ("torch.matmul", "torch.mm")
            and len(up.args) == 2
        ):
            table = up.args[1]
        if table is None or not isinstance(table, ast.Name | ast.Attribute) or not isinstance(up, ast.expr):
            return None
        text = f"{source(facts, table)}[{source(facts, node.args[0])}]"
        return FixPlan((Replace(up, text),), "only the rows that are asked for are read")
    return None


@fix("UDL306", kind="precision")
def single_precision(facts: SourceFacts, node: ast.AST) -> FixPlan | None:
    if not isinstance(node, ast.Call):
        return None
    why = "float32 is at least twice as fast"
    if facts.name_of(node.func) == "torch.set_default_dtype":
        text, imports = spelled(facts, "torch.float32")
        return FixPlan((Replace(node.args[0], text), *imports), why)
    if isinstance(node.func, ast.Attribute) and node.func.attr == "double":
        return FixPlan((Replace(node, f"{operand(facts, node.func.value)}.float()"),), why)
    wide = [
        one for one in (*node.args, *(k.value for k in node.keywords))
        if facts.name_of(one) in ("torch.float64", "torch.double")
    ]  # fmt: skip
    text, imports = spelled(facts, "torch.float32")
    return FixPlan((Replace(wide[0], text), *imports), why) if len(wide) == 1 else None


@fix("UDL405")
def whole_tensor(facts: SourceFacts, node: ast.AST) -> FixPlan | None:
    """``for i in range(x.size(0)): y[i] = x[i] * 2`` becomes ``y[:] = x[:] * 2``, where one tensor and constants are all that is in it."""
    loop = facts.loops(node)[-1] if facts.loops(node) else None
    if (
        not isinstance(node, ast.Assign)
        or not isinstance(loop, ast.For)
        or loop.body != [node]
        or loop.orelse
    ):
        return None
    index, over = loop.target, loop.iter
    if not isinstance(index, ast.Name) or not isinstance(over, ast.Call) or len(over.args) != 1:
        return None
    places = [
        one for one in ast.walk(node) if isinstance(one, ast.Subscript) and index.id in names_in(one.slice)
    ]
    bases = {source(facts, one.value) for one in places if isinstance(one.ctx, ast.Load)}
    if len(bases) != 1 or not all(isinstance(one.slice, ast.Name) for one in places):
        return None
    base = bases.pop()
    if base not in _sized(facts, over.args[0]) or not _is_elementwise(facts, node.value, index.id, base):
        return None
    target = node.targets[0]
    if not isinstance(target, ast.Subscript) or not _like(facts, target.value, base):
        return None
    return FixPlan((Insert("before", loop, _sliced(node, index.id)), Remove(loop)), "one kernel for all rows")


def _sized(facts: SourceFacts, size: ast.expr) -> set[str]:
    """The tensor whose first size this is: ``x`` of ``len(x)``, ``x.size(0)``, ``x.shape[0]``."""
    if isinstance(size, ast.Call) and isinstance(size.func, ast.Name) and size.func.id == "len" and size.args:
        return {source(facts, size.args[0])}
    if isinstance(size, ast.Call) and isinstance(size.func, ast.Attribute) and size.func.attr == "size":
        return {source(facts, size.func.value)} if size.args and literal(size.args[0]) == 0 else set()
    if (
        isinstance(size, ast.Subscript)
        and isinstance(size.value, ast.Attribute)
        and size.value.attr == "shape"
    ):
        return {source(facts, size.value.value)} if literal(size.slice) == 0 else set()
    return set()


def _like(facts: SourceFacts, target: ast.expr, base: str) -> bool:
    """Whether the target was made with the shape of the tensor: ``torch.zeros_like(x)``."""
    if not isinstance(target, ast.Name):
        return False
    bindings = facts.function_of(target).bindings.get(target.id, [])
    if len(bindings) != 1 or not isinstance(made := bindings[0].value, ast.Call) or not made.args:
        return False
    return facts.name_of(made.func).endswith("_like") and source(facts, made.args[0]) == base


_ELEMENTWISE = frozenset({
    "torch.exp", "torch.log", "torch.sqrt", "torch.abs", "torch.relu", "torch.tanh", "torch.sigmoid", "torch.sin", "torch.cos",
    "torch.square", "torch.clamp", "torch.neg", "torch.nn.functional.relu", "torch.nn.functional.gelu",
})  # fmt: skip


def _is_elementwise(facts: SourceFacts, value: ast.expr, index: str, base: str) -> bool:
    """Whether each number of the result depends on the same number of one row, and on constants."""
    if isinstance(value, ast.Constant):
        return isinstance(value.value, int | float)
    if isinstance(value, ast.BinOp):
        plain = not isinstance(value.op, ast.MatMult)
        return plain and all(_is_elementwise(facts, one, index, base) for one in (value.left, value.right))
    if isinstance(value, ast.UnaryOp):
        return isinstance(value.op, ast.USub) and _is_elementwise(facts, value.operand, index, base)
    if isinstance(value, ast.Subscript):
        return (
            isinstance(value.slice, ast.Name)
            and value.slice.id == index
            and source(facts, value.value) == base
        )
    if isinstance(value, ast.Call) and facts.name_of(value.func) in _ELEMENTWISE and len(value.args) == 1:
        return keyword(value, "out") is None and _is_elementwise(facts, value.args[0], index, base)
    return False


def _sliced(statement: ast.Assign, index: str) -> str:
    """The statement with ``[:]`` for ``[index]``."""
    whole = copy.deepcopy(statement)
    for one in ast.walk(whole):
        if isinstance(one, ast.Subscript) and isinstance(one.slice, ast.Name) and one.slice.id == index:
            one.slice = ast.Slice()
    return ast.unparse(whole) + "\n"
