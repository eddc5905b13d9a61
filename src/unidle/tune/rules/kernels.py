"""UDL4xx: many small kernels where one large one would do."""

from __future__ import annotations

import ast
from collections.abc import Iterator

from unidle.tune.analysis.source import SourceFacts
from unidle.tune.registry import rule
from unidle.tune.rules.common import functions, names_in, targets

CELLS = frozenset({"torch.nn.LSTMCell", "torch.nn.GRUCell", "torch.nn.RNNCell"})
SOFTMAX = frozenset({"torch.softmax", "torch.nn.functional.softmax"})


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
    "UDL404",
    "constant-made-each-step",
    "a constant table is made again in each forward pass; keep it in a buffer",
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
                and not (isinstance(up, ast.Attribute) and up.attr == "size")
            ):
                return False
            waiting += [binding.value for binding in bindings]
    return ranged


@rule(
    "UDL406",
    "one-hot-product",
    "a product with a one-hot matrix reads all rows; index the rows, as nn.Embedding does",
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
