"""UDL403: attention that is written out."""

from __future__ import annotations

import ast
from collections.abc import Callable, Iterator

from unidle.tune.analysis.source import SourceFacts
from unidle.tune.analysis.walk import FunctionFacts
from unidle.tune.registry import rule
from unidle.tune.rules.common import functions, literal, names_in
from unidle.tune.rules.kernels import SOFTMAX

PRODUCTS = frozenset({"torch.matmul", "torch.bmm", "torch.einsum", "torch.baddbmm"})


@rule(
    "UDL403",
    "attention-by-hand",
    "softmax(q @ k) @ v stores all scores; F.scaled_dot_product_attention does not",
)
def attention_by_hand(facts: SourceFacts) -> Iterator[ast.AST]:
    if (
        any(name.endswith("scaled_dot_product_attention") for name in facts.named)
        or "flash_attn" in facts.names.modules
    ):
        return
    for function in functions(facts):
        if not function.hot:
            continue
        scores = _made_by(function, lambda node: _is_scores(facts, node), set())
        weights = _made_by(function, _is_softmax(facts, scores), set())
        if not weights or _returned(function) & weights:
            continue
        for node in _products(facts, function):
            left = node.left if isinstance(node, ast.BinOp) else node.args[0] if node.args else node
            if (
                isinstance(node, ast.Call)
                and facts.name_of(node.func) == "torch.einsum"
                and len(node.args) > 1
            ):
                left = node.args[1]
            if names_in(left) & weights and not _is_scores(facts, node):
                yield node
                break


def _made_by(function: FunctionFacts, begins: Callable[[ast.expr], bool], known: set[str]) -> set[str]:
    """Names whose values begin with an expression, or are made of such a name by arithmetic or a call."""
    found = set(known)
    for _ in range(3):
        for name, bindings in function.bindings.items():
            for binding in bindings:
                inner = [one for one in ast.walk(binding.value) if isinstance(one, ast.expr)]
                if any(begins(one) for one in inner) or (found and _passes(binding.value, found)):
                    found.add(name)
    return found


def _returned(function: FunctionFacts) -> set[str]:
    """Names that a function returns as they are, alone or in a tuple."""
    values = [
        part
        for value in function.returns
        for part in (value.elts if isinstance(value, ast.Tuple) else [value])
    ]
    return {part.id for part in values if isinstance(part, ast.Name)}


def _passes(node: ast.expr, names: set[str]) -> bool:
    """Whether a value is one of these names after division, masking or dropout."""
    if isinstance(node, ast.Name):
        return node.id in names
    if isinstance(node, ast.BinOp) and not isinstance(node.op, ast.MatMult):
        return _passes(node.left, names)
    if isinstance(node, ast.Call):
        if isinstance(node.func, ast.Attribute) and node.func.attr in (
            "masked_fill",
            "float",
            "to",
            "type_as",
            "masked_fill_",
            "contiguous",
            "half",
            "view",
        ):
            return _passes(node.func.value, names)
        last = node.func.attr if isinstance(node.func, ast.Attribute) else getattr(node.func, "id", "")
        return "drop" in last and bool(node.args) and _passes(node.args[0], names)
    return False


def _is_scores(facts: SourceFacts, node: ast.expr) -> bool:
    """``q @ k.transpose(-2, -1)``."""
    if isinstance(node, ast.BinOp) and isinstance(node.op, ast.MatMult):
        return _is_transposed(facts, node.right)
    if not isinstance(node, ast.Call):
        return False
    name = facts.name_of(node.func)
    if name == "torch.einsum":
        form = literal(node.args[0]) if node.args else None
        left, _, right = form.replace(" ", "").partition("->") if isinstance(form, str) else ("", "", "")
        one, _, two = left.partition(",")
        return (
            bool(right)
            and len(one) == len(two) == len(right) >= 3
            and one[-1] == two[-1]
            and one[-1] not in right
        )
    if name in ("torch.matmul", "torch.bmm"):
        return len(node.args) > 1 and _is_transposed(facts, node.args[1])
    return (
        isinstance(node.func, ast.Attribute)
        and not name
        and node.func.attr in ("matmul", "bmm")
        and bool(node.args)
        and _is_transposed(facts, node.args[0])
    )


def _is_transposed(facts: SourceFacts, node: ast.expr) -> bool:
    if isinstance(node, ast.Attribute):
        return node.attr in ("mT", "mH") and facts.role(node.value) != "array"
    if isinstance(node, ast.Call) and isinstance(node.func, ast.Attribute):
        if node.func.attr in ("transpose", "swapaxes"):
            places = {ast.unparse(one) for one in node.args[-2:]}
            return places in ({"-2", "-1"}, {"2", "3"}, {"1", "2"})
        if node.func.attr == "permute":
            return len(node.args) == 4 and [literal(one) for one in node.args] in ([0, 1, 3, 2], [0, 2, 3, 1])
    return False


def _is_softmax(facts: SourceFacts, scores: set[str]) -> Callable[[ast.expr], bool]:
    """The test for a softmax of these scores."""
    return lambda node: _softmax_of(facts, node, scores)


def _softmax_of(facts: SourceFacts, node: ast.expr, scores: set[str]) -> bool:
    if not isinstance(node, ast.Call):
        return False
    if facts.name_of(node.func) in SOFTMAX and node.args:
        given: ast.expr = node.args[0]
    elif isinstance(node.func, ast.Attribute) and node.func.attr == "softmax":
        given = (
            node.args[0]
            if isinstance(node.func.value, ast.Name) and node.func.value.id == "self" and node.args
            else node.func.value
        )
    else:
        return False
    return bool(names_in(given) & scores) or any(
        _is_scores(facts, one) for one in ast.walk(given) if isinstance(one, ast.expr)
    )


def _products(facts: SourceFacts, function: FunctionFacts) -> Iterator[ast.BinOp | ast.Call]:
    assert function.node is not None
    for node in ast.walk(function.node):
        if (isinstance(node, ast.BinOp) and isinstance(node.op, ast.MatMult)) or (
            isinstance(node, ast.Call) and facts.name_of(node.func) in PRODUCTS
        ):
            yield node
