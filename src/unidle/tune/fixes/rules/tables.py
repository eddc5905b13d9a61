"""Constant tables that a forward pass makes again each time: they become buffers of the module."""

from __future__ import annotations

import ast

from unidle.tune.analysis.source import SourceFacts
from unidle.tune.analysis.walk import FunctionFacts
from unidle.tune.fixes.common import changed_in_place, fresh, source
from unidle.tune.fixes.operations import FixPlan, Insert, Replace
from unidle.tune.fixes.registry import fix
from unidle.tune.fixes.rules.data import _only_from_init
from unidle.tune.rules.common import keyword, names_in

_CASTS = ("half(", "bfloat16", "double(", "float16", "autocast", "float64", "complex")


@fix("UDL404")
def buffered(facts: SourceFacts, node: ast.AST) -> FixPlan | None:
    """Where the size is a constant, or an attribute that ``__init__`` sets; the buffer is not part of the state dict."""
    owner, function = facts.owner_of(node), facts.function_of(node)
    if not isinstance(node, ast.Call) or owner is None or function.name != "forward":
        return None
    init = owner.methods.get("__init__")
    if init is None or init.node is None or not facts.is_module(owner):
        return None
    top = _whole(facts, node)
    device = _device(facts, top)
    text = _without_device(facts, top)
    if text is None or (not _stays(top) and any(word in facts.text for word in _CASTS)):
        return None
    if not _is_fixed(facts, top, init, device) or _is_changed(facts, top, function):
        return None
    name = fresh(facts, "_table")
    line = f'self.register_buffer("{name}", {text}, persistent=False)\n'
    return FixPlan((Replace(top, f"self.{name}"), Insert("end", init.node, line)), "the table is made once")


def _whole(facts: SourceFacts, node: ast.Call) -> ast.Call:
    """The table with what is done to it at once: ``.bool()``, ``.view(...)``, ``.to(x.device)``."""
    for up in facts.parents(node):
        if (
            isinstance(up, ast.Attribute)
            and up.value is node
            and up.attr in ("bool", "view", "unsqueeze", "to", "tril", "triu")
        ):
            continue
        if isinstance(up, ast.Call) and isinstance(up.func, ast.Attribute) and up.func.value is node:
            node = up
            continue
        break
    return node


def _device(facts: SourceFacts, top: ast.Call) -> list[ast.expr]:
    """The expressions that name a device."""
    found = [
        k.value
        for one in ast.walk(top)
        if isinstance(one, ast.Call)
        for k in one.keywords
        if k.arg == "device"
    ]
    found += [
        one.args[0] for one in ast.walk(top)
        if isinstance(one, ast.Call) and facts.plain_name(one.func) == "to" and len(one.args) == 1
        and isinstance(one.args[0], ast.Attribute) and one.args[0].attr == "device"
    ]  # fmt: skip
    return found


def _without_device(facts: SourceFacts, top: ast.Call) -> str | None:
    """The code of the table, made on the host; a module moves its buffers."""

    class Strip(ast.NodeTransformer):
        def visit_Call(self, node: ast.Call) -> ast.AST:
            self.generic_visit(node)
            node.keywords = [one for one in node.keywords if one.arg != "device"]
            if isinstance(node.func, ast.Attribute) and node.func.attr == "to":
                plain = (
                    len(node.args) == 1
                    and isinstance(node.args[0], ast.Attribute)
                    and node.args[0].attr == "device"
                )
                return node.func.value if plain and not node.keywords else node
            return node

    tree = ast.parse(source(facts, top), mode="eval")
    return ast.unparse(ast.fix_missing_locations(Strip().visit(tree)))


def _stays(top: ast.Call) -> bool:
    """Whether a cast of the module leaves it as it is: a table of truth values."""
    last = top.func.attr if isinstance(top.func, ast.Attribute) else ""
    return last == "bool" or any(
        isinstance(one, ast.Call)
        and (kind := keyword(one, "dtype")) is not None
        and ast.unparse(kind).endswith(".bool")
        for one in ast.walk(top)
    )


def _is_fixed(facts: SourceFacts, top: ast.Call, init: FunctionFacts, device: list[ast.expr]) -> bool:
    """Whether the table depends on nothing but constants and attributes from ``__init__``, apart from its device."""
    left_out = {id(one) for place in device for one in ast.walk(place)}
    names = [one for one in ast.walk(top) if isinstance(one, ast.Name) and id(one) not in left_out]
    if any(one.id != "self" and not facts.names.imported(one.id) for one in names):
        return False
    if any(
        isinstance(one, ast.Call) and facts.plain_name(one.func).startswith("rand") for one in ast.walk(top)
    ):
        return False
    selves = [facts.walk.parent.get(one) for one in names if one.id == "self"]
    holder = ast.Call(ast.Name("x", ast.Load()), [one for one in selves if isinstance(one, ast.expr)], [])
    return _only_from_init(facts, _without_name(holder), init)


def _without_name(call: ast.Call) -> ast.Call:
    call.func = ast.Constant(0)
    return call


def _is_changed(facts: SourceFacts, top: ast.Call, function: FunctionFacts) -> bool:
    """Whether forward changes the table, which a buffer would keep."""
    statement = facts.statement(top)
    names = names_in(*statement.targets) if isinstance(statement, ast.Assign) else set()
    return function.node is not None and any(changed_in_place(function.node, name) for name in names)
