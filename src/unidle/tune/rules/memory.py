"""UDL3xx: memory, graphs and precision."""

from __future__ import annotations

import ast
import re
from collections.abc import Iterator

from unidle.tune.analysis.source import SourceFacts
from unidle.tune.analysis.walk import FunctionFacts
from unidle.tune.registry import rule
from unidle.tune.rules.common import functions, is_true, names_in, parameter_loop, without_gradient

_EVALUATES = re.compile(
    r"^_?(?:eval|evaluate|validate|validation|valid|test|predict|infer|inference)(?:_.*)?$|_(?:eval|validate|predict|infer)$"
)


def _text(node: ast.AST) -> str:
    return ast.unparse(node)


def _back_propagated(function: FunctionFacts, text: str) -> bool:
    """Whether ``backward`` is called on this value, or on something made of it."""
    made = {text}
    for _ in range(3):
        for name, bindings in function.bindings.items():
            if any(_mentions(binding.value, made) for binding in bindings):
                made.add(name)
    for call in function.calls:
        if isinstance(call.func, ast.Attribute) and call.func.attr in ("backward", "manual_backward"):
            parts: list[ast.AST] = [call.func.value, *call.args]
            if any(_mentions(part, made) for part in parts):
                return True
    hands_on = function.name in ("forward", "training_step") or "loss" in function.name
    return hands_on and any(_mentions(value, made) for value in function.returns)


def _mentions(node: ast.AST, texts: set[str]) -> bool:
    return any(
        isinstance(one, ast.Name | ast.Attribute | ast.Subscript) and _text(one) in texts
        for one in ast.walk(node)
    )


def _has_graph(facts: SourceFacts, node: ast.expr) -> bool:
    """Whether a value keeps a graph: a loss, or arithmetic with one."""
    if isinstance(node, ast.BinOp):
        return _has_graph(facts, node.left) or _has_graph(facts, node.right)
    return facts.role(node) == "loss" or (
        isinstance(node, ast.Name) and facts.is_tensor(node) and _has_backward(facts, node)
    )


def _has_backward(facts: SourceFacts, node: ast.Name) -> bool:
    for binding in facts.function_of(node).bindings.get(node.id, ()):
        if isinstance(binding.value, ast.Call) and facts.plain_name(binding.value.func) in ("detach", "item"):
            return False
    for call in facts.function_of(node).calls:
        function = call.func
        if (
            isinstance(function, ast.Attribute)
            and function.attr == "backward"
            and names_in(function.value) == {node.id}
        ):
            return True
    return False


_COUNT = re.compile(r"size|count|num|^n_|tokens|words|correct", re.IGNORECASE)


@rule(
    "UDL301",
    "graph-kept",
    "the sum or list keeps the graph of each step in memory; add loss.detach()",
    severity="error",
)
def graph_kept(facts: SourceFacts) -> Iterator[ast.AST]:
    for statement in facts.walk.statements:
        kept = _kept(statement)
        if kept is None:
            continue
        target, value = kept
        loop = facts.hot_code.step_loop(statement)
        function = facts.walk.function[statement]
        if loop is None or not _has_graph(facts, value) or without_gradient(facts, statement):
            continue
        if isinstance(value, ast.Name) and _COUNT.search(value.id):
            continue  # of what a criterion returns next to the loss
        text = _text(target)
        inside = any(
            loop.lineno < binding.line <= (loop.end_lineno or 0)
            for binding in function.bindings.get(text, ()) if text not in names_in(binding.value)
        )  # fmt: skip
        if not inside and not _back_propagated(function, text):
            yield statement


def _kept(statement: ast.stmt) -> tuple[ast.expr, ast.expr] | None:
    """What is added to what: ``a += b``, ``a = a + b``, ``a.append(b)``."""
    if isinstance(statement, ast.AugAssign) and isinstance(statement.op, ast.Add):
        return statement.target, statement.value
    if (
        isinstance(statement, ast.Assign)
        and isinstance(statement.value, ast.BinOp)
        and isinstance(statement.value.op, ast.Add)
    ):
        target, value = statement.targets[0], statement.value
        if _text(value.left) == _text(target):
            return target, value.right
    if isinstance(statement, ast.Expr) and isinstance(statement.value, ast.Call):
        call = statement.value
        if isinstance(call.func, ast.Attribute) and call.func.attr == "append" and len(call.args) == 1:
            return call.func.value, call.args[0]
    return None


@rule(
    "UDL302",
    "evaluated-with-graph",
    "evaluation builds graphs for backward; use torch.inference_mode() or torch.no_grad()",
)
def evaluated_with_graph(facts: SourceFacts) -> Iterator[ast.AST]:
    for function in functions(facts):
        if function in facts.hot_code.train_functions or function.name == "forward" or function.hot:
            continue
        evaluates = any(
            facts.plain_name(call.func) == "eval" and _on_module(facts, call) for call in function.calls
        )
        if not evaluates and not _EVALUATES.search(function.name):
            continue
        if any(
            facts.plain_name(c.func)
            in ("backward", "grad", "requires_grad_", "enable_grad", "train_one_epoch")
            for c in function.calls
        ):
            continue
        for call in function.calls:
            if facts.loops(call) and _runs_module(facts, call) and not without_gradient(facts, call):
                yield facts.loops(call)[-1]
                break


def _on_module(facts: SourceFacts, call: ast.Call) -> bool:
    return isinstance(call.func, ast.Attribute) and facts.role(call.func.value) == "module"


def _runs_module(facts: SourceFacts, call: ast.Call) -> bool:
    if isinstance(call.func, ast.Attribute) and call.func.attr in (
        "to",
        "cuda",
        "eval",
        "train",
        "parameters",
    ):
        return False
    return (
        isinstance(call.func, ast.Name | ast.Attribute)
        and facts.role(call.func) == "module"
        and bool(call.args or call.keywords)
    )


@rule(
    "UDL303",
    "anomaly-detection-on",
    "anomaly detection checks each gradient and records stacks; use it to debug only",
    severity="error",
)
def anomaly_detection(facts: SourceFacts) -> Iterator[ast.AST]:
    for call in facts.calls(
        "torch.autograd.set_detect_anomaly",
        "torch.autograd.detect_anomaly",
        "torch.autograd.anomaly_mode.set_detect_anomaly",
    ):
        off = call.args and not (isinstance(call.args[0], ast.Constant) and call.args[0].value is True)
        if (
            not off
            and not any(facts.hot_code.rare(mark) for mark in facts.path_of(call))
            and not is_false_mode(call)
        ):
            yield call
    for call in facts.calls("lightning.Trainer"):
        if is_true(call, "detect_anomaly"):
            yield call


def is_false_mode(call: ast.Call) -> bool:
    """``mode=`` that is not the constant True."""
    return any(
        k.arg == "mode" and not (isinstance(k.value, ast.Constant) and k.value.value is True)
        for k in call.keywords
    )


@rule(
    "UDL304",
    "concatenated-in-loop",
    "cat in a loop copies all of the tensor in each round; append to a list and cat once",
)
def concatenated_in_loop(facts: SourceFacts) -> Iterator[ast.AST]:
    yield from _grown(
        facts, ("torch.cat", "torch.concat", "torch.concatenate", "torch.hstack", "torch.vstack")
    )


@rule(
    "UDL305",
    "array-grown-in-loop",
    "the array is copied in each round of the loop; append to a list and make the array once",
)
def array_grown(facts: SourceFacts) -> Iterator[ast.AST]:
    yield from _grown(facts, ("np.append", "np.concatenate", "np.vstack", "np.hstack", "pandas.concat"))


def _grown(facts: SourceFacts, names: tuple[str, ...]) -> Iterator[ast.AST]:
    for call in facts.calls(*names):
        statement = facts.statement(call)
        loops = facts.loops(call)
        if not loops or not isinstance(statement, ast.Assign) or statement.value is not call or not call.args:
            continue
        grown = call.args[0].elts if isinstance(call.args[0], ast.List | ast.Tuple) else call.args[:1]
        text = _text(statement.targets[0])
        if text not in map(_text, grown) or any(isinstance(one, ast.Subscript) for one in grown):
            continue
        if not _used_apart(loops[-1], statement, text) and not _generates(loops[-1]):
            yield call


def _generates(loop: ast.AST) -> bool:
    """Whether a round chooses the next token: then the model takes the time."""
    return any(
        isinstance(one, ast.Attribute) and one.attr in ("argmax", "multinomial", "topk") and isinstance(loop, ast.For)
        and isinstance(loop.iter, ast.Call) and isinstance(loop.iter.func, ast.Name) and loop.iter.func.id == "range"
        for one in ast.walk(loop)
    )  # fmt: skip


def _used_apart(loop: ast.AST, statement: ast.stmt, text: str) -> bool:
    """Whether the loop uses the grown value, other than to grow it: then each round needs it whole. A test for None is no use."""
    inside = set(ast.walk(statement))
    for one in ast.walk(loop):
        if isinstance(one, ast.If) and text in _text(one.test):
            inside |= set(ast.walk(one.test))
    for one in ast.walk(loop):
        if one in inside or not isinstance(one, ast.Name | ast.Attribute):
            continue
        if isinstance(one.ctx, ast.Load) and _text(one) == text:
            return True
    return False


@rule(
    "UDL306",
    "double-precision",
    "float64 is many times slower than float32 on a GPU, and twice on a CPU",
)
def double_precision(facts: SourceFacts) -> Iterator[ast.AST]:
    for call in facts.method_calls("double"):
        receiver = call.func.value if isinstance(call.func, ast.Attribute) else call
        if (facts.role(receiver) == "module" and facts.hot_code.has_loop) or (
            facts.hot(call) and facts.role(receiver) in ("tensor", "batch")
        ):
            yield call
    for call in facts.calls("torch.set_default_dtype"):
        if (
            call.args
            and facts.name_of(call.args[0]) in ("torch.float64", "torch.double")
            and facts.hot_code.has_loop
        ):
            yield call
    for call in facts.method_calls("to", "type"):
        receiver = call.func.value if isinstance(call.func, ast.Attribute) else call
        wide = any(
            facts.name_of(a) in ("torch.float64", "torch.double")
            for a in [*call.args, *(k.value for k in call.keywords)]
        )
        if (
            wide
            and facts.role(receiver) in ("batch", "tensor", "module")
            and (facts.hot(call) or facts.role(receiver) == "module")
        ):
            yield call


@rule(
    "UDL307",
    "deep-copy-each-step",
    "copy.deepcopy in each step copies all parameters; do it when the copy is needed",
)
def deep_copy(facts: SourceFacts) -> Iterator[ast.AST]:
    for call in facts.calls("copy.deepcopy"):
        if facts.hot(call) and call.args:
            inner = call.args[0]
            state = isinstance(inner, ast.Call) and facts.plain_name(inner.func) == "state_dict"
            if state or facts.role(inner) in ("module", "optimizer"):
                yield call


@rule(
    "UDL308",
    "item-per-parameter",
    ".item() for each parameter waits for the device that many times; use clip_grad_norm_ or torch._foreach_norm",
    severity="error",
)
def item_per_parameter(facts: SourceFacts) -> Iterator[ast.AST]:
    for call in facts.method_calls("item", "cpu", "tolist"):
        loop = parameter_loop(facts, call)
        if loop is not None and facts.hot(call):
            yield call


@rule(
    "UDL309",
    "gradients-zeroed-one-by-one",
    "gradients are set to zero one by one; use optimizer.zero_grad()",
)
def zeroed_one_by_one(facts: SourceFacts) -> Iterator[ast.AST]:
    for call in facts.method_calls("zero_"):
        receiver = call.func.value if isinstance(call.func, ast.Attribute) else call
        if ".grad" in _text(receiver) and facts.hot(call) and parameter_loop(facts, call) is not None:
            yield call
