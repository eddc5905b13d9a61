"""UDL2xx: what makes the host wait for the device in each step, and copies between them."""

from __future__ import annotations

import ast
from collections.abc import Iterator

from unidle.tune.analysis import tables
from unidle.tune.analysis.source import SourceFacts
from unidle.tune.registry import rule
from unidle.tune.rules.common import assigned_in, has_keyword, literal, names_in, parameter_loop

PRINTS = frozenset({"print"})


def in_print(facts: SourceFacts, node: ast.AST) -> bool:
    """Whether a node is part of what a ``print`` shows."""
    return any(
        isinstance(up, ast.Call) and isinstance(up.func, ast.Name) and up.func.id in PRINTS
        for up in facts.parents(node)
    )


def _receiver(call: ast.Call) -> ast.expr:
    return call.func.value if isinstance(call.func, ast.Attribute) else call


def _waits(facts: SourceFacts, node: ast.expr) -> bool:
    """Whether a value may be a tensor on a device: one, or unknown and not one of the host."""
    role = facts.role(node)
    return role in ("tensor", "loss")


@rule(
    "UDL201",
    "item-each-step",
    ".item() waits for the device in each step; do it every N steps, or keep the sum on the device",
)
def item_each_step(facts: SourceFacts) -> Iterator[ast.AST]:
    if not facts.accelerated:
        return
    for call in facts.method_calls("item"):
        if (
            call.args
            or not facts.hot(call)
            or in_print(facts, call)
            or parameter_loop(facts, call) is not None
        ):
            continue
        if _waits(facts, _receiver(call)) and not _compiled(facts, call):
            yield call
    for call in facts.walk.calls:
        if (
            (
                isinstance(call.func, ast.Name)
                and call.func.id in ("float", "int", "bool")
                and len(call.args) == 1
            )
            and facts.hot(call)
            and _waits(facts, call.args[0])
            and not in_print(facts, call)
        ):
            yield call


def _compiled(facts: SourceFacts, node: ast.AST) -> bool:
    """In a compiled function, which has a rule of its own (UDL409)."""
    function = facts.function_of(node).node
    heads = [d.func if isinstance(d, ast.Call) else d for d in (function.decorator_list if function else ())]
    return any(facts.name_of(head) == "torch.compile" for head in heads)


@rule(
    "UDL202",
    "copied-to-host-each-step",
    "a tensor is copied to the host in each step; keep it on the device, or copy every N steps",
)
def copied_to_host(facts: SourceFacts) -> Iterator[ast.AST]:
    if not facts.accelerated:
        return
    for call in facts.method_calls("cpu", "numpy", "tolist", "to"):
        if (
            not facts.hot(call)
            or not _waits(facts, _receiver(call))
            or in_print(facts, call)
            or _compiled(facts, call)
        ):
            continue
        method = call.func.attr if isinstance(call.func, ast.Attribute) else ""
        if method != "to" or (call.args and literal(call.args[0]) == "cpu"):
            yield call


@rule(
    "UDL203",
    "printed-each-step",
    "values are printed in each step, which waits for the device; print every N steps",
)
def printed_each_step(facts: SourceFacts) -> Iterator[ast.AST]:
    for call in facts.walk.calls:
        if isinstance(call.func, ast.Name) and call.func.id in PRINTS and facts.training(call) and call.args:
            shown = [one for part in call.args for one in ast.walk(part) if isinstance(one, ast.expr)]
            if any(_shows_tensor(facts, one) for one in shown):
                yield call


def _shows_tensor(facts: SourceFacts, node: ast.expr) -> bool:
    if isinstance(node, ast.Call) and isinstance(node.func, ast.Attribute) and node.func.attr == "item":
        return True
    if not isinstance(node, ast.Name) or not facts.on_device(node):
        return False
    up = facts.walk.parent.get(node)
    return not (isinstance(up, ast.Attribute) and up.attr in tables.TENSOR_FACTS | tables.TENSOR_TO_NUMBER)


@rule(
    "UDL204",
    "synchronised-each-step",
    "synchronize() waits for all work of the device in each step",
)
def synchronised(facts: SourceFacts) -> Iterator[ast.AST]:
    for call in facts.calls(
        "torch.cuda.synchronize",
        "torch.mps.synchronize",
        "torch.xpu.synchronize",
        "torch.accelerator.synchronize",
    ):
        if facts.hot(call) and not _timed(facts, call):
            yield call


def _timed(facts: SourceFacts, call: ast.Call) -> bool:
    """Next to a clock: a measurement, which has to wait."""
    statement = facts.statement(call)
    parent = facts.walk.parent.get(statement)
    body = getattr(parent, "body", [])
    if statement not in body:
        return False
    place = body.index(statement)
    near = body[max(0, place - 1) : place + 2]
    return any(
        isinstance(one, ast.Call) and facts.plain_name(one.func) in ("time", "perf_counter", "monotonic", "perf_counter_ns", "record", "process_time")
        for each in near if not isinstance(each, ast.For | ast.While) for one in ast.walk(each)
    )  # fmt: skip


@rule(
    "UDL205",
    "cache-emptied-each-step",
    "empty_cache() in each step frees memory that the next step allocates again",
    severity="error",
)
def cache_emptied(facts: SourceFacts) -> Iterator[ast.AST]:
    for call in facts.calls("torch.cuda.empty_cache", "torch.mps.empty_cache", "torch.xpu.empty_cache"):
        if facts.hot(call):
            yield call


@rule("UDL206", "collected-each-step", "gc.collect() walks all objects in each step")
def collected(facts: SourceFacts) -> Iterator[ast.AST]:
    yield from (call for call in facts.calls("gc.collect") if facts.hot(call))


@rule(
    "UDL208",
    "branch-on-tensor",
    "the branch waits for a value of the device in each step; use torch.where, or check every N steps",
)
def branch_on_tensor(facts: SourceFacts) -> Iterator[ast.AST]:
    if not facts.accelerated:
        return
    for statement in facts.walk.statements:
        test = statement.test if isinstance(statement, ast.If | ast.While | ast.Assert) else None
        if test is None or not facts.hot(statement) or isinstance(statement, ast.Assert):
            continue
        if any(
            facts.plain_name(one.func) in ("isinstance", "is_tensor")
            for one in ast.walk(test)
            if isinstance(one, ast.Call)
        ):
            continue
        if any(_decides(facts, part) for part in _parts(test)):
            yield test


def _parts(test: ast.expr) -> Iterator[ast.expr]:
    """The operands of ``and``, ``or`` and ``not``."""
    if isinstance(test, ast.BoolOp):
        for value in test.values:
            yield from _parts(value)
    elif isinstance(test, ast.UnaryOp) and isinstance(test.op, ast.Not):
        yield from _parts(test.operand)
    else:
        yield test


def _decides(facts: SourceFacts, part: ast.expr) -> bool:
    if isinstance(part, ast.Compare):
        if isinstance(part.ops[0], ast.Eq | ast.NotEq) and not isinstance(
            literal(part.comparators[0]), int | float
        ):
            return False
        return facts.on_device(part) and not any(
            isinstance(one, ast.Constant) and one.value is None for one in part.comparators
        )
    asked = facts.plain_name(part.func) if isinstance(part, ast.Call) else ""
    return (
        asked in ("any", "all", "isnan", "isinf", "isfinite", "equal", "allclose")
        and isinstance(part, ast.Call)
        and _reads(facts, part)
    )


def _reads(facts: SourceFacts, call: ast.Call) -> bool:
    given = call.args[0] if facts.name_of(call.func) and call.args else _receiver(call)
    return facts.on_device(given) if given is not call else False


@rule(
    "UDL209",
    "size-from-values",
    "the size of the result depends on values, so the host waits; use torch.where or a mask",
    severity="note",
)
def size_from_values(facts: SourceFacts) -> Iterator[ast.AST]:
    if not facts.accelerated:
        return
    for call in (
        *facts.calls("torch.nonzero", "torch.masked_select", "torch.where"),
        *facts.method_calls("nonzero", "masked_select"),
    ):
        if not facts.hot(call):
            continue
        name = facts.name_of(call.func)
        if name == "torch.where" and (len(call.args) != 1 or call.keywords):
            continue
        if facts.on_device(call.args[0] if name and call.args else _receiver(call)):
            yield call


@rule(
    "UDL210",
    "made-on-host-then-moved",
    "the tensor is made on the host and copied in each step; pass device= where it is made",
)
def made_on_host(facts: SourceFacts) -> Iterator[ast.AST]:
    if not facts.accelerated:
        return
    for call in facts.method_calls("to", "cuda"):
        made = _receiver(call)
        while (
            isinstance(made, ast.Call)
            and isinstance(made.func, ast.Attribute)
            and made.func.attr in ("float", "long", "unsqueeze", "view", "expand", "bool", "repeat")
        ):
            if facts.name_of(made.func):
                break
            made = made.func.value
        if not isinstance(made, ast.Call) or not facts.hot(call) or facts.role(call) == "host":
            continue
        first, _, last = facts.name_of(made.func).rpartition(".")
        if (
            first == "torch"
            and last in tables.FACTORIES
            and not has_keyword(made, "device", "generator")
            and _names_device(facts, call)
        ):
            yield call


def _names_device(facts: SourceFacts, call: ast.Call) -> bool:
    """Whether ``to`` has a device, not only a type."""
    if isinstance(call.func, ast.Attribute) and call.func.attr == "cuda":
        return True
    where = call.args[0] if call.args else None
    if where is None:
        return has_keyword(call, "device")
    return not facts.name_of(where).startswith("torch.") or facts.role(where) == "device"


@rule(
    "UDL211",
    "module-moved-each-step",
    "the module is moved in each step; move it once before the loop",
)
def module_moved(facts: SourceFacts) -> Iterator[ast.AST]:
    for call in facts.method_calls("to", "cuda"):
        receiver = _receiver(call)
        if (
            facts.training(call)
            and facts.role(receiver) == "module"
            and isinstance(receiver, ast.Name | ast.Attribute)
        ) and _names_device(facts, call):
            yield call


@rule(
    "UDL212",
    "same-tensor-moved-each-step",
    "the same tensor is copied to the device in each step; copy it once before the loop",
)
def same_tensor_moved(facts: SourceFacts) -> Iterator[ast.AST]:
    for call in facts.method_calls("to", "cuda"):
        receiver = _receiver(call)
        loop = facts.hot_code.step_loop(call)
        if (
            loop is None
            or not isinstance(receiver, ast.Name)
            or facts.role(receiver) not in ("host", "batch")
        ):
            continue
        inside = set().union(
            *(assigned_in(one) for one in facts.loops(call)[facts.loops(call).index(loop) :])
        )
        if not names_in(receiver) & inside and _names_device(facts, call):
            yield call
