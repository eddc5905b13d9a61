"""UDL4xx: work for one sample, or one row, at a time."""

from __future__ import annotations

import ast
from collections.abc import Iterator

from unidle.tune.analysis.source import SourceFacts
from unidle.tune.registry import rule
from unidle.tune.rules.common import (
    argument,
    calls_in,
    has_keyword,
    is_true,
    keyword,
    literal,
    names_in,
    targets,
)
from unidle.tune.rules.data import LOADER
from unidle.tune.rules.kernels import CELLS, _built_from


@rule(
    "UDL401",
    "sample-by-sample",
    "the model runs once for each sample of a batch; run it once on the whole batch",
    severity="error",
)
def sample_by_sample(facts: SourceFacts) -> Iterator[ast.AST]:
    for call in facts.walk.calls:
        loops = facts.loops(call)
        if (
            not loops
            or not isinstance(loops[-1], ast.For)
            or not call.args
            or not _is_model(facts, call.func)
        ):
            continue
        loop = loops[-1]
        if loop in facts.hot_code.loops or not (facts.hot(call) or facts.in_sample(call)):
            continue
        items = _items(facts, loop)
        if items and _on_one(call.args[0], items) and not _carries(loop, call):
            yield call
    for comprehension in facts.walk.comprehensions:
        yield from _in_comprehension(facts, comprehension)


def _is_model(facts: SourceFacts, function: ast.expr) -> bool:
    return (
        facts.role(function) == "module"
        and _built_from(facts, function) not in CELLS
        and isinstance(function, ast.Name | ast.Attribute)
    )


def _items(facts: SourceFacts, loop: ast.For | ast.comprehension) -> set[str]:
    """The names of the loop that are one sample, or its index, where the loop goes over the samples of a tensor."""
    over = loop.iter
    if isinstance(over, ast.Call) and isinstance(over.func, ast.Name):
        if over.func.id == "range" and len(over.args) == 1:
            return targets(loop) if _is_batch_size(facts, over.args[0]) else set()
        if over.func.id in ("zip", "enumerate") and over.args:
            return targets(loop) if _is_whole(facts, over.args[0]) else set()
    return targets(loop) if _is_whole(facts, over) else set()


def _is_whole(facts: SourceFacts, over: ast.expr) -> bool:
    """Whether a loop over this goes over the samples of one tensor; arguments of forward may be lists of tensors."""
    if isinstance(over, ast.Call) or not facts.is_tensor(over):
        return False
    return facts.role(over) == "batch" or facts.function_of(over).name != "forward"


def _is_batch_size(facts: SourceFacts, node: ast.expr) -> bool:
    """``len(x)``, ``x.size(0)``, ``x.shape[0]``, ``batch_size``."""
    if isinstance(node, ast.Call):
        if isinstance(node.func, ast.Name) and node.func.id == "len":
            return bool(node.args) and facts.is_tensor(node.args[0])
        return (
            isinstance(node.func, ast.Attribute)
            and node.func.attr == "size"
            and len(node.args) == 1
            and literal(node.args[0]) == 0
        )
    if isinstance(node, ast.Subscript) and isinstance(node.value, ast.Attribute):
        return node.value.attr == "shape" and literal(node.slice) == 0
    return isinstance(node, ast.Name) and node.id in ("batch_size", "bsz", "bs", "B")


def _on_one(given: ast.expr, items: set[str]) -> bool:
    """Whether an argument is one sample: the item itself, or the batch at its index in the first place."""
    while isinstance(given, ast.Call) and isinstance(given.func, ast.Attribute):
        given = given.func.value
    if isinstance(given, ast.Name):
        return given.id in items
    if isinstance(given, ast.Subscript):
        place = (
            given.slice.elts[0] if isinstance(given.slice, ast.Tuple) and given.slice.elts else given.slice
        )
        if isinstance(place, ast.Constant) and place.value is None:
            return _on_one(given.value, items)  # x[None]
        if isinstance(place, ast.Slice):
            plain = place.lower is not None and place.upper is not None and isinstance(place.lower, ast.Name)
            return plain and names_in(place) == names_in(place) & items
        return (isinstance(place, ast.Name) and place.id in items) or (
            _on_one(given.value, items) and place is not given.slice
        )
    return False


def _carries(loop: ast.For, call: ast.Call) -> bool:
    """Whether the result of a round goes into the next one: a recurrence over time."""
    made = set()
    for one in ast.walk(loop):
        if isinstance(one, ast.Assign) and call in ast.walk(one.value):
            made |= names_in(*one.targets)
    used = names_in(*call.args, *(k.value for k in call.keywords))
    return bool(made & used) or (
        len(call.args) > 1 and any(isinstance(a, ast.Name) and "hid" in a.id for a in call.args[1:])
    )


def _in_comprehension(
    facts: SourceFacts, node: ast.ListComp | ast.GeneratorExp | ast.SetComp | ast.DictComp
) -> Iterator[ast.AST]:
    if (
        not isinstance(node, ast.ListComp | ast.GeneratorExp)
        or len(node.generators) != 1
        or not facts.hot(node)
    ):
        return
    items = _items(facts, node.generators[0])
    for call in calls_in(node.elt) if items else ():
        if call.args and _is_model(facts, call.func) and _on_one(call.args[0], items):
            yield call


@rule(
    "UDL405",
    "row-by-row",
    "tensors are computed row by row in Python; one operation on the whole tensor does it in one kernel",
)
def row_by_row(facts: SourceFacts) -> Iterator[ast.AST]:
    for statement in facts.walk.statements:
        if not isinstance(statement, ast.Assign | ast.AugAssign) or not facts.hot(statement):
            continue
        loops = facts.loops(statement)
        target = statement.targets[0] if isinstance(statement, ast.Assign) else statement.target
        if (
            not loops
            or loops[-1] in facts.hot_code.loops
            or not isinstance(target, ast.Subscript)
            or not isinstance(loops[-1], ast.For)
        ):
            continue
        items = targets(loops[-1])
        over = loops[-1].iter
        if not (isinstance(over, ast.Call) and isinstance(over.func, ast.Name) and over.func.id == "range"):
            continue
        if (
            len(loops[-1].body) <= 2
            and facts.is_tensor(target.value)
            and names_in(target.slice) & items
            and _is_plain(facts, statement.value, items)
        ):
            yield statement


def _is_plain(facts: SourceFacts, value: ast.expr, items: set[str]) -> bool:
    """Arithmetic of tensors at the loop's index, without calls of modules or functions of the file."""
    indexed = False
    for one in ast.walk(value):
        if isinstance(one, ast.Call):
            name = facts.name_of(one.func)
            method = isinstance(one.func, ast.Attribute) and facts.is_tensor(one.func.value)
            if not name.startswith("torch.") and not method:
                return False
        if isinstance(one, ast.Subscript) and facts.is_tensor(one.value):
            if any(isinstance(part, ast.BinOp) for part in ast.walk(one.slice)):
                return False  # a recurrence: x[i - 1]
            indexed = indexed or bool(names_in(one.slice) & items)
    return indexed


@rule("UDL410", "batch-of-one", "the training batch has one sample; a device needs many to be busy")
def batch_of_one(facts: SourceFacts) -> Iterator[ast.AST]:
    for call in facts.calls(LOADER):
        if has_keyword(call, "batch_sampler"):
            continue
        size = argument(call, "batch_size", 1)
        given = literal(size) == 1 and literal(size) is not True
        absent = size is None and not has_keyword(call, "batch_size")
        if (given or absent) and (is_true(call, "shuffle") or _feeds_training(facts, call)):
            yield call
    for call in facts.calls("transformers.TrainingArguments", "transformers.Seq2SeqTrainingArguments"):
        if literal(keyword(call, "per_device_train_batch_size")) == 1 and not has_keyword(
            call, "gradient_accumulation_steps", "gradient_checkpointing"
        ):
            yield call


def _feeds_training(facts: SourceFacts, call: ast.Call) -> bool:
    """Whether a step loop goes over the loader, and its name is of training."""
    statement = facts.statement(call)
    names = names_in(*statement.targets) if isinstance(statement, ast.Assign) else set()
    if not any("train" in name.lower() for name in names):
        return False
    return any(names & names_in(loop.iter) for loop in facts.hot_code.loops if isinstance(loop, ast.For))
