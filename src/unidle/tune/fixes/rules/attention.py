"""Attention that is written out: one call of ``scaled_dot_product_attention``, where the statements are the usual ones."""

from __future__ import annotations

import ast
from dataclasses import dataclass, field

from unidle.tune.analysis.source import SourceFacts
from unidle.tune.fixes.common import block_of, operand, source, spelled
from unidle.tune.fixes.operations import FixPlan, Operation, Remove, Replace
from unidle.tune.fixes.registry import fix
from unidle.tune.rules.attention import _is_scores
from unidle.tune.rules.common import literal, names_in
from unidle.tune.rules.kernels import SOFTMAX


@dataclass(slots=True)
class _Read:
    """What the statements before the product are made of."""

    scores: ast.expr | None = None
    scale: str = "1.0"
    mask: str = ""
    dropout: str = ""
    soft: bool = False
    statements: list[ast.stmt] = field(default_factory=list)


@fix("UDL403", kind="precision")
def one_call(facts: SourceFacts, node: ast.AST) -> FixPlan | None:
    """Follows ``att`` from ``q @ k.transpose(-2, -1)`` through scale, mask, softmax and dropout, each a statement of its own."""
    statement = facts.statement(node)
    product = _operands(facts, node)
    if product is None or not isinstance(product[0], ast.Name) or not isinstance(statement, ast.Assign):
        return None
    name, value = product[0].id, product[1]
    block = block_of(facts, statement)
    read = _Read()
    for one in block[: block.index(statement)] if statement in block else ():
        if isinstance(one, ast.Assign) and isinstance(one.targets[0], ast.Name) and one.targets[0].id == name:
            if not _follow(facts, read, one.value, name):
                return None
            read.statements.append(one)
        elif name in names_in(one):
            return None
    uses = sum(
        isinstance(one, ast.Name) and one.id == name for one in ast.walk(facts.function_of(node).node or node)
    )
    ours = sum(
        isinstance(one, ast.Name) and one.id == name
        for part in (*read.statements, node)
        for one in ast.walk(part)
    )
    if read.scores is None or not read.soft or uses != ours:
        return None
    query, key = _pair(facts, read.scores)
    if query is None or key is None or not isinstance(node, ast.expr):
        return None
    written, imports = spelled(facts, "torch.nn.functional.scaled_dot_product_attention")
    given = [source(facts, query), key, source(facts, value)]
    given += [
        one
        for one in (read.mask and f"attn_mask={read.mask}", read.dropout and f"dropout_p={read.dropout}")
        if one
    ]
    given.append(f"scale={read.scale}")
    operations: list[Operation] = [Remove(one) for one in read.statements]
    operations += [Replace(node, f"{written}({', '.join(given)})"), *imports]
    return FixPlan(tuple(operations), "the scores are not stored")


def _operands(facts: SourceFacts, node: ast.AST) -> tuple[ast.expr, ast.expr] | None:
    if isinstance(node, ast.BinOp) and isinstance(node.op, ast.MatMult):
        return node.left, node.right
    if isinstance(node, ast.Call) and facts.name_of(node.func) == "torch.matmul" and len(node.args) == 2:
        return node.args[0], node.args[1]
    return None


def _pair(facts: SourceFacts, scores: ast.expr) -> tuple[ast.expr | None, str | None]:
    """``q`` and ``k`` of ``q @ k.transpose(-2, -1)``."""
    found = _operands(facts, scores)
    if (
        found is None
        or not isinstance(call := found[1], ast.Call)
        or not isinstance(call.func, ast.Attribute)
    ):
        return None, None
    if call.func.attr != "transpose" or {ast.unparse(one) for one in call.args} not in (
        {"-2", "-1"},
        {"2", "3"},
    ):
        return None, None
    return found[0], source(facts, call.func.value)


def _follow(facts: SourceFacts, read: _Read, value: ast.expr, name: str) -> bool:
    """One statement of the chain."""
    if read.scores is None:
        return _scores(facts, read, value)
    if isinstance(value, ast.Call):
        if _is_softmax(facts, value, name) and not read.soft:
            read.soft = True
            return True
        if not read.soft:
            return _mask(facts, read, value, name)
        return _dropout(facts, read, value, name)
    if (
        isinstance(value, ast.BinOp)
        and not read.soft
        and not read.mask
        and isinstance(value.left, ast.Name)
        and value.left.id == name
    ):
        return _scaled(facts, read, value)
    return False


def _scores(facts: SourceFacts, read: _Read, value: ast.expr) -> bool:
    if _is_scores(facts, value):
        read.scores = value
        return True
    if isinstance(value, ast.BinOp) and _is_scores(facts, value.left):
        read.scores = value.left
        return _scaled(facts, read, value)
    return False


def _scaled(facts: SourceFacts, read: _Read, value: ast.BinOp) -> bool:
    """``* (1.0 / math.sqrt(d))`` and ``/ math.sqrt(d)``."""
    if read.scale != "1.0" or any(
        facts.is_tensor(one)
        for one in ast.walk(value.right)
        if isinstance(one, ast.Name) and not isinstance(facts.walk.parent.get(one), ast.Attribute)
    ):
        return False
    if isinstance(value.op, ast.Mult):
        read.scale = source(facts, value.right)
        return True
    if isinstance(value.op, ast.Div):
        read.scale = f"1.0 / ({source(facts, value.right)})"
        return True
    return False


def _is_softmax(facts: SourceFacts, call: ast.Call, name: str) -> bool:
    plain = facts.name_of(call.func) in SOFTMAX
    dims = [*call.args[1 if plain else 0 :], *(one.value for one in call.keywords if one.arg == "dim")]
    if len(dims) != 1 or ast.unparse(dims[0]) not in ("-1", "3"):
        return False
    of = call.args[0] if plain and call.args else getattr(call.func, "value", None)
    method = isinstance(call.func, ast.Attribute) and call.func.attr == "softmax"
    return (plain or method) and isinstance(of, ast.Name) and of.id == name


def _mask(facts: SourceFacts, read: _Read, call: ast.Call, name: str) -> bool:
    """``att.masked_fill(mask == 0, float("-inf"))``."""
    if (
        read.mask
        or not isinstance(call.func, ast.Attribute)
        or call.func.attr != "masked_fill"
        or len(call.args) != 2
    ):
        return False
    if (
        not isinstance(call.func.value, ast.Name)
        or call.func.value.id != name
        or not _is_minus_infinite(call.args[1])
    ):
        return False
    where = call.args[0]
    if (
        isinstance(where, ast.Compare)
        and isinstance(where.ops[0], ast.Eq)
        and literal(where.comparators[0]) == 0
    ):
        read.mask = f"{operand(facts, where.left)} != 0"
    else:
        read.mask = f"~({source(facts, where)})"
    return True


def _is_minus_infinite(node: ast.expr) -> bool:
    return ast.unparse(node) in ("float('-inf')", "-float('inf')", "-torch.inf", "-math.inf", "-np.inf")


def _dropout(facts: SourceFacts, read: _Read, call: ast.Call, name: str) -> bool:
    """A dropout module of the class: its share while it trains."""
    function = call.func
    if read.dropout or not isinstance(function, ast.Attribute) or len(call.args) != 1 or call.keywords:
        return False
    if (
        not isinstance(call.args[0], ast.Name)
        or call.args[0].id != name
        or not isinstance(function.value, ast.Name)
    ):
        return False
    owner = facts.owner_of(call)
    made = [one.value for one in owner.attributes.get(function.attr, ())] if owner else []
    if (
        len(made) != 1
        or not isinstance(made[0], ast.Call)
        or facts.name_of(made[0].func) != "torch.nn.Dropout"
    ):
        return False
    read.dropout = f"self.{function.attr}.p if self.training else 0.0"
    return function.value.id == "self"
