"""UDL6xx: communication between ranks."""

from __future__ import annotations

import ast
from collections.abc import Iterator

from unidle.tune.analysis.source import SourceFacts
from unidle.tune.registry import rule
from unidle.tune.rules.common import argument, has_keyword, is_true, keyword, literal, parameter_loop
from unidle.tune.rules.data import LOADER

DDP = "torch.nn.DistributedDataParallel"
COLLECTIVES = tuple(
    f"torch.distributed.{name}"
    for name in ("all_reduce", "reduce", "all_gather", "all_gather_into_tensor", "gather", "broadcast")
)


@rule(
    "UDL601",
    "data-parallel",
    "DataParallel copies the model in each step, in one process; use DistributedDataParallel",
    severity="error",
)
def data_parallel(facts: SourceFacts) -> Iterator[ast.AST]:
    yield from facts.calls("torch.nn.DataParallel")
    for call in facts.calls("lightning.Trainer"):
        if literal(keyword(call, "strategy")) == "dp":
            yield call


@rule(
    "UDL602",
    "reduced-each-step",
    "a metric is reduced over all ranks in each step; do it every N steps, or once per epoch",
)
def reduced_each_step(facts: SourceFacts) -> Iterator[ast.AST]:
    for call in facts.calls(*COLLECTIVES):
        if (
            facts.training(call) and not _of_gradient(call) and not is_true(call, "async_op") and call.args
        ) and _is_metric(facts, call.args[0]):
            yield call


def _is_metric(facts: SourceFacts, node: ast.expr) -> bool:
    """A loss, or a value made of one for the log: nothing that the step needs."""
    if facts.role(node) == "loss":
        return True
    names = ("loss", "metric", "acc", "correct", "total", "count", "stat")
    return isinstance(node, ast.Name) and any(word in node.id.lower() for word in names)


def _of_gradient(call: ast.Call) -> bool:
    return any(
        isinstance(one, ast.Attribute) and one.attr == "grad" for arg in call.args for one in ast.walk(arg)
    )


@rule(
    "UDL603",
    "gradients-reduced-one-by-one",
    "each gradient is reduced in a message of its own, after backward; DistributedDataParallel overlaps and groups them",
    severity="error",
)
def gradients_one_by_one(facts: SourceFacts) -> Iterator[ast.AST]:
    for call in facts.calls("torch.distributed.all_reduce", "torch.distributed.reduce"):
        if _of_gradient(call) and parameter_loop(facts, call) is not None and facts.hot(call):
            yield call


@rule(
    "UDL604",
    "barrier-each-step",
    "a barrier makes all ranks wait for the slowest in each step; gradients synchronise them already",
)
def barrier_each_step(facts: SourceFacts) -> Iterator[ast.AST]:
    yield from (call for call in facts.calls("torch.distributed.barrier") if facts.hot(call))
    for call in facts.method_calls("wait_for_everyone"):
        if facts.training(call):
            yield call


@rule(
    "UDL605",
    "gradients-reduced-while-accumulating",
    "gradients are reduced in each micro step; wrap all but the last in model.no_sync()",
)
def reduced_while_accumulating(facts: SourceFacts) -> Iterator[ast.AST]:
    if DDP not in facts.named or "no_sync" in facts.methods or "require_backward_grad_sync" in facts.text:
        return
    for call in facts.method_calls("step"):
        if not isinstance(call.func, ast.Attribute) or facts.role(call.func.value) not in (
            "optimizer",
            "scaler",
        ):
            continue
        rare = [
            mark
            for mark in facts.path_of(call)
            if facts.hot_code.rare(mark) and isinstance(mark.node, ast.If)
        ]
        if rare and any(isinstance(one, ast.Mod) for mark in rare for one in ast.walk(mark.node.test)):  # type: ignore[attr-defined]
            for backward in facts.method_calls("backward"):
                if facts.function_of(backward) is facts.function_of(call) and facts.hot(backward):
                    yield backward
                    break


@rule(
    "UDL606",
    "unused-parameters-searched",
    "the graph is searched for unused parameters in each step, and forward has no branch",
)
def unused_searched(facts: SourceFacts) -> Iterator[ast.AST]:
    for call in facts.calls(DDP):
        owner = (
            facts.class_of(call.args[0]) if is_true(call, "find_unused_parameters") and call.args else None
        )
        if owner is not None and "forward" in owner.methods:
            node = owner.methods["forward"].node
            if node is not None and not any(
                isinstance(one, ast.If | ast.IfExp | ast.While) for one in ast.walk(node)
            ):
                yield call


@rule(
    "UDL607",
    "objects-sent-each-step",
    "objects are pickled and sent in each step; send tensors, or send less often",
)
def objects_each_step(facts: SourceFacts) -> Iterator[ast.AST]:
    names = (
        "all_gather_object",
        "gather_object",
        "broadcast_object_list",
        "scatter_object_list",
        "send_object_list",
    )
    for call in facts.calls(*(f"torch.distributed.{name}" for name in names)):
        if facts.hot(call):
            yield call


@rule(
    "UDL608",
    "same-data-on-all-ranks",
    "each rank trains on all of the data; give the loader a DistributedSampler",
    severity="error",
)
def same_data(facts: SourceFacts) -> Iterator[ast.AST]:
    if (
        DDP not in facts.named
        or "Sampler" in facts.text
        or "shard" in facts.text
        or "IterableDataset" in facts.text
    ):
        return
    for call in facts.calls(LOADER):
        data = argument(call, "dataset", 0)
        if (
            is_true(call, "shuffle")
            and not has_keyword(call, "sampler", "batch_sampler")
            and data is not None
        ) and not _split_by_rank(facts, data):
            yield call


def _split_by_rank(facts: SourceFacts, data: ast.expr) -> bool:
    """Whether the dataset depends on the rank."""
    if not isinstance(data, ast.Name):
        return "rank" in ast.unparse(data)
    bindings = [b for scope in facts.function_of(data).chain() for b in scope.bindings.get(data.id, ())]
    return any("rank" in ast.unparse(binding.value) for binding in bindings)


@rule(
    "UDL609",
    "metric-synchronised-each-step",
    "sync_dist=True reduces the metric over all ranks in each training step",
)
def metric_synchronised(facts: SourceFacts) -> Iterator[ast.AST]:
    for call in facts.method_calls("log", "log_dict"):
        if (
            is_true(call, "sync_dist")
            and facts.function_of(call).name == "training_step"
            and facts.hot(call)
            and literal(keyword(call, "on_step")) is not False
        ):
            yield call
