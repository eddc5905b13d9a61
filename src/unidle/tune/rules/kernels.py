"""UDL4xx: many small kernels where one large one would do."""

from __future__ import annotations

import ast
from collections.abc import Iterator

from unidle.tune.analysis.source import SourceFacts
from unidle.tune.analysis.walk import FunctionFacts
from unidle.tune.registry import rule
from unidle.tune.rules.common import functions, literal, names_in, targets

CELLS = frozenset({"torch.nn.LSTMCell", "torch.nn.GRUCell", "torch.nn.RNNCell"})
SOFTMAX = frozenset({"torch.softmax", "torch.nn.functional.softmax"})
PRODUCTS = frozenset({"torch.matmul", "torch.bmm", "torch.einsum", "torch.baddbmm"})


def _built_from(facts: SourceFacts, function: ast.expr) -> str:
    """The full name of the class that ``self.name``, or a name, is an instance of."""
    values = []
    if (
        isinstance(function, ast.Attribute)
        and isinstance(function.value, ast.Name)
        and function.value.id == "self"
    ):
        owner = facts.owner_of(function)
        values = [b.value for b in (owner.attributes.get(function.attr, ()) if owner else ())]
    elif isinstance(function, ast.Name):
        values = [
            b.value
            for scope in facts.function_of(function).chain()
            for b in scope.bindings.get(function.id, ())
        ]
    for value in values:
        while (
            isinstance(value, ast.Call)
            and isinstance(value.func, ast.Attribute)
            and value.func.attr in ("to", "cuda")
        ):
            value = value.func.value
        if isinstance(value, ast.Call):
            return facts.name_of(value.func)
    return ""


@rule(
    "UDL402",
    "cell-in-loop",
    "a cell runs once for each time step; nn.LSTM, nn.GRU and nn.RNN run the whole sequence in one call",
)
def cell_in_loop(facts: SourceFacts) -> Iterator[ast.AST]:
    for call in facts.walk.calls:
        loops = facts.loops(call)
        if (
            not loops
            or not call.args
            or not isinstance(loops[-1], ast.For)
            or _built_from(facts, call.func) not in CELLS
        ):
            continue
        given, changing = call.args[0], targets(loops[-1])
        sliced = (
            isinstance(given, ast.Subscript)
            and names_in(given.slice) & changing
            and not names_in(given.value) & changing
        )
        item = isinstance(given, ast.Name) and given.id in changing
        if sliced or item:
            yield call


@rule(
    "UDL403",
    "attention-by-hand",
    "softmax(q @ k) @ v stores all scores; F.scaled_dot_product_attention does not",
    fixable=True,
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
        weights = _made_by(function, lambda node, known=scores: _softmax_of(facts, node, known), set())
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


def _made_by(function: FunctionFacts, begins, known: set[str]) -> set[str]:  # type: ignore[no-untyped-def]
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


@rule(
    "UDL404",
    "constant-made-each-step",
    "a constant table is made again in each forward pass; keep it in a buffer",
    fixable=True,
)
def constant_each_step(facts: SourceFacts) -> Iterator[ast.AST]:
    for call in (*facts.calls("torch.tril", "torch.triu"), *facts.method_calls("tril", "triu")):
        made = (
            call.args[0]
            if facts.name_of(call.func) and call.args
            else call.func.value
            if isinstance(call.func, ast.Attribute)
            else call
        )
        if (
            facts.hot(call)
            and isinstance(made, ast.Call)
            and facts.name_of(made.func) in ("torch.ones", "torch.full", "torch.ones_like", "torch.full_like")
        ):
            yield call
    for call in (*facts.calls("torch.sin", "torch.cos"), *facts.method_calls("sin", "cos")):
        if facts.hot(call) and _is_table(facts, call):
            yield call
            break


def _is_table(facts: SourceFacts, call: ast.Call) -> bool:
    """Whether what is given is made of ``torch.arange`` and no tensor of the caller."""
    function = facts.function_of(call)
    waiting: list[ast.AST] = [*call.args] if facts.name_of(call.func) else [call.func]
    seen: set[str] = set()
    ranged = False
    while waiting:
        node = waiting.pop()
        for one in ast.walk(node):
            if isinstance(one, ast.Call) and facts.name_of(one.func) in ("torch.arange", "torch.linspace"):
                ranged = True
            if not isinstance(one, ast.Name) or one.id in seen or facts.names.imported(one.id):
                continue
            up = facts.walk.parent.get(one)
            if isinstance(up, ast.Attribute) and (
                up.attr in ("device", "dtype", "shape") or one.id == "self"
            ):
                if one.id == "self" and facts.role(up) in ("tensor", "host"):
                    return False
                continue
            seen.add(one.id)
            bindings = function.bindings.get(one.id, ())
            if (
                not bindings
                and facts.is_tensor(one)
                and not (isinstance(up, ast.Attribute) and up.attr in ("size",))
            ):
                return False
            waiting += [binding.value for binding in bindings]
    return ranged


@rule(
    "UDL406",
    "one-hot-product",
    "a product with a one-hot matrix reads all rows; index the rows, as nn.Embedding does",
    fixable=True,
)
def one_hot_product(facts: SourceFacts) -> Iterator[ast.AST]:
    for call in facts.calls("torch.nn.functional.one_hot"):
        whole: ast.AST = call
        for up in facts.parents(call):
            if isinstance(up, ast.Attribute) or (isinstance(up, ast.Call) and up.func is whole):
                whole = up
                continue
            product = isinstance(up, ast.BinOp) and isinstance(up.op, ast.MatMult) and up.left is whole
            applied = isinstance(up, ast.Call) and up.args[:1] == [whole] and (
                facts.name_of(up.func) in ("torch.matmul", "torch.mm", "torch.nn.functional.linear")
                or _built_from(facts, up.func) == "torch.nn.Linear"
            )  # fmt: skip
            if (product or applied) and facts.hot(call):
                yield call
            break


@rule(
    "UDL407",
    "log-of-softmax",
    "log(softmax(x)) takes two passes and loses digits; use log_softmax",
    fixable=True,
)
def log_of_softmax(facts: SourceFacts) -> Iterator[ast.AST]:
    def is_softmax(node: ast.expr) -> bool:
        if not isinstance(node, ast.Call):
            return False
        method = (
            isinstance(node.func, ast.Attribute)
            and node.func.attr == "softmax"
            and facts.is_tensor(node.func.value)
        )
        return facts.name_of(node.func) in SOFTMAX or method

    for call in facts.calls("torch.log"):
        if call.args and is_softmax(call.args[0]):
            yield call
    for call in facts.method_calls("log"):
        if (
            not facts.name_of(call.func)
            and isinstance(call.func, ast.Attribute)
            and is_softmax(call.func.value)
        ):
            yield call


@rule(
    "UDL408",
    "compiled-in-loop",
    "the function is compiled, scripted or traced again in each round; do it once before",
    severity="error",
)
def compiled_in_loop(facts: SourceFacts) -> Iterator[ast.AST]:
    for call in facts.calls("torch.compile", "torch.jit.script", "torch.jit.trace", "torch.export.export"):
        loops = facts.loops(call)
        if facts.hot(call):
            yield call
        elif loops and call.args and not names_in(call.args[0]) & targets(loops[-1]) and any(
            one in facts.hot_code.loops for one in ast.walk(loops[-1])
        ):  # fmt: skip
            assigned = {
                n.id for n in ast.walk(loops[-1]) if isinstance(n, ast.Name) and isinstance(n.ctx, ast.Store)
            }
            if not names_in(call.args[0]) & assigned:
                yield call


@rule("UDL409", "graph-break", "the call breaks the compiled graph; move it out of the compiled function")
def graph_break(facts: SourceFacts) -> Iterator[ast.AST]:
    compiled = {
        function for function in functions(facts) if function.node is not None
        for decorator in function.node.decorator_list
        if facts.name_of(decorator.func if isinstance(decorator, ast.Call) else decorator) == "torch.compile"
    }  # fmt: skip
    for call in facts.calls("torch.compile"):
        if call.args and isinstance(call.args[0], ast.Name):
            for scope in facts.function_of(call).chain():
                if call.args[0].id in scope.functions:
                    compiled.add(scope.functions[call.args[0].id])
                    break
    for function in compiled:
        for call in function.calls:
            printed = isinstance(call.func, ast.Name) and call.func.id == "print"
            method = call.func.attr if isinstance(call.func, ast.Attribute) and not call.args else ""
            if printed or (method in ("item", "numpy", "tolist") and facts.is_tensor(call.func.value)):  # type: ignore[attr-defined]
                yield call


@rule(
    "UDL411",
    "heads-in-loop",
    "the heads run one after the other; one wider layer with a reshape computes all of them",
)
def heads_in_loop(facts: SourceFacts) -> Iterator[ast.AST]:
    for call in facts.calls("torch.cat", "torch.concat", "torch.stack"):
        inner = call.args[0] if call.args else None
        if not isinstance(inner, ast.ListComp) or not facts.hot(call) or len(inner.generators) != 1:
            continue
        one = inner.generators[0]
        owner = facts.owner_of(call)
        applied = (
            isinstance(inner.elt, ast.Call)
            and names_in(inner.elt.func) == targets(one)
            and not names_in(*inner.elt.args) & targets(one)
        )
        if not applied or one.ifs or owner is None or not isinstance(one.iter, ast.Attribute):
            continue
        for binding in owner.attributes.get(one.iter.attr, ()):
            made = binding.value
            if (
                isinstance(made, ast.Call)
                and facts.name_of(made.func) == "torch.nn.ModuleList"
                and made.args
                and _equal_members(made.args[0])
            ):
                yield call


def _equal_members(node: ast.expr) -> bool:
    """Whether a list of modules is made by one constructor with equal arguments."""
    if not isinstance(node, ast.ListComp | ast.GeneratorExp) or not isinstance(node.elt, ast.Call):
        return False
    return not names_in(node.elt) & set().union(*(targets(one) for one in node.generators))
