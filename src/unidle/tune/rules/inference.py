"""UDL7xx: what is left on from debugging, and generation."""

from __future__ import annotations

import ast
from collections.abc import Iterator

from unidle.tune.analysis.source import SourceFacts
from unidle.tune.registry import rule
from unidle.tune.rules.common import has_keyword, is_false, is_true, literal, names_in, targets

DEBUG = {"CUDA_LAUNCH_BLOCKING": ("1",), "TORCH_DISTRIBUTED_DEBUG": ("DETAIL", "INFO"), "HIP_LAUNCH_BLOCKING": ("1",), "AMD_SERIALIZE_KERNEL": ("3", "1"), "NCCL_P2P_DISABLE": ("1",)}  # fmt: skip


@rule(
    "UDL701",
    "debug-environment",
    "a variable for debugging is set, and slows each kernel or message",
    severity="error",
)
def debug_environment(facts: SourceFacts) -> Iterator[ast.AST]:
    for statement in facts.walk.statements:
        if isinstance(statement, ast.Assign) and isinstance(statement.targets[0], ast.Subscript):
            target = statement.targets[0]
            name = literal(target.slice)
            if (
                facts.name_of(target.value) == "os.environ"
                and _is_debug(name, literal(statement.value))
                and not _rare(facts, statement)
            ):
                yield statement
    for call in facts.calls("os.environ.setdefault", "os.putenv"):
        if (
            len(call.args) == 2
            and _is_debug(literal(call.args[0]), literal(call.args[1]))
            and not _rare(facts, call)
        ):
            yield call


def _is_debug(name: object, value: object) -> bool:
    return isinstance(name, str) and str(value) in DEBUG.get(name, ())


def _rare(facts: SourceFacts, node: ast.AST) -> bool:
    return any(mark.kind == "if" for mark in facts.path_of(node))


@rule(
    "UDL702",
    "profiler-left-on",
    "the profiler records all steps; give it a schedule, or take it out",
)
def profiler_left_on(facts: SourceFacts) -> Iterator[ast.AST]:
    for call in facts.calls(
        "torch.profiler.profile", "torch.autograd.profiler.profile", "torch.autograd.profiler.emit_nvtx"
    ):
        if has_keyword(call, "schedule", "enabled") or (
            call.args
            and literal(call.args[0]) is None
            and facts.name_of(call.func) != "torch.profiler.profile"
        ):
            continue
        statement = facts.statement(call)
        if (
            isinstance(statement, ast.With)
            and facts.hot_code.has_loop
            and _trains(facts, statement)
            and not _rare(facts, statement)
        ):
            yield call
    for call in facts.calls("lightning.Trainer"):
        if isinstance(
            profiler := next((k.value for k in call.keywords if k.arg == "profiler"), None), ast.Constant
        ) and profiler.value in ("advanced", "pytorch"):
            yield call


def _trains(facts: SourceFacts, block: ast.With) -> bool:
    """Whether a step loop is in the block, or in what it calls."""
    inside = list(ast.walk(block))
    if any(one in facts.hot_code.loops for one in inside):
        return not any(isinstance(one, ast.Break) for one in inside)
    called = [facts.called(one) for one in inside if isinstance(one, ast.Call)]
    return any(one is not None and set(one.loops) & facts.hot_code.loops for one in called)


@rule(
    "UDL705",
    "generated-without-cache",
    "each new token runs the model on all tokens before it; keep keys and values in a cache",
)
def generated_without_cache(facts: SourceFacts) -> Iterator[ast.AST]:
    for call in facts.calls("torch.cat", "torch.concat"):
        statement = facts.statement(call)
        loops = facts.loops(call)
        if (
            not loops
            or loops[-1] in facts.hot_code.loops
            or not isinstance(statement, ast.Assign)
            or not call.args
        ):
            continue
        if not isinstance(statement.targets[0], ast.Name) or not isinstance(
            call.args[0], ast.List | ast.Tuple
        ):
            continue
        name = statement.targets[0].id
        if _comes_from_a_layer(loops[-1], name, statement):
            continue
        if (
            name in names_in(*call.args[0].elts[:1])
            and (found := _runs_on(facts, loops[-1], name)) is not None
        ):
            yield found
    for call in facts.method_calls("generate"):
        if is_false(call, "use_cache"):
            yield call


def _comes_from_a_layer(loop: ast.AST, name: str, joined: ast.stmt) -> bool:
    """Whether a call in the loop makes the tensor again, as ``x = block(x)`` of layers that join skips: it does not grow by tokens."""
    return any(
        isinstance(one, ast.Assign)
        and one is not joined
        and isinstance(one.value, ast.Call)
        and name in names_in(*one.targets)
        for one in ast.walk(loop)
    )


def _runs_on(facts: SourceFacts, loop: ast.AST, name: str) -> ast.Call | None:
    """A call of a module, in the loop, on all of a tensor that grows; None where it has a cache."""
    grown = {name}
    for one in ast.walk(loop):
        if (
            isinstance(one, ast.Assign)
            and names_in(one.value) & grown
            and not isinstance(one.value, ast.Call)
        ) and not _is_last(one.value):
            grown |= names_in(*one.targets)
    for one in ast.walk(loop):
        if (
            isinstance(one, ast.Call)
            and one.args
            and facts.role(one.func) == "module"
            and names_in(one.args[0]) & grown
        ):
            words = {k.arg or "" for k in one.keywords} | names_in(*one.args[1:])
            if not any(
                "cache" in word or "past" in word or "state" in word or "memory" in word for word in words
            ) and not _is_last(one.args[0]):
                return one
    return None


def _is_last(node: ast.expr) -> bool:
    """``x[:, -1:]`` and ``x[:, -1]``: the last token alone."""
    return "-1" in ast.unparse(node)


@rule("UDL706", "prompts-one-by-one", "the model generates for one prompt at a time; pass a batch of prompts")
def prompts_one_by_one(facts: SourceFacts) -> Iterator[ast.AST]:
    for call in facts.walk.calls:
        loops = facts.loops(call)
        if (
            not loops
            or not isinstance(loops[-1], ast.For)
            or facts.hot_code.has_loop
            or not (call.args or call.keywords)
        ):
            continue
        if not _generates(facts, call) or _is_batch(facts, loops[-1]):
            continue
        items = targets(loops[-1])
        for one in ast.walk(loops[-1]):
            if isinstance(one, ast.Assign) and names_in(one.value) & items:
                items |= names_in(*one.targets)
        if names_in(*call.args, *(k.value for k in call.keywords)) & items:
            yield call


def _generates(facts: SourceFacts, call: ast.Call) -> bool:
    if isinstance(call.func, ast.Attribute) and call.func.attr in ("generate", "encode"):
        return facts.role(call.func.value) == "module"
    return facts.role(call.func) == "pipeline"


def _is_batch(facts: SourceFacts, loop: ast.For) -> bool:
    """Whether a round of the loop has several prompts, or the loop only repeats."""
    over = loop.iter
    if facts.role(over) == "loader" or (
        isinstance(over, ast.Call) and facts.plain_name(over.func) in ("range", "count", "repeat", "batched")
    ):
        return True
    words = " ".join(targets(loop)).lower()
    return "batch" in words or "chunk" in words or any(isinstance(one, ast.Slice) for one in ast.walk(over))


@rule("UDL707", "slow-tokenizer", "use_fast=False takes the tokenizer that is written in Python")
def slow_tokenizer(facts: SourceFacts) -> Iterator[ast.AST]:
    for call in facts.method_calls("from_pretrained"):
        if is_false(call, "use_fast") and facts.role(call) == "tokenizer":
            yield call


@rule(
    "UDL709",
    "cache-turned-off",
    "use_cache=False makes each new token run the model on all tokens before it",
)
def cache_turned_off(facts: SourceFacts) -> Iterator[ast.AST]:
    if (
        facts.hot_code.has_loop
        or "gradient_checkpointing" in facts.text
        or any("Trainer" in name for name in facts.named)
    ):
        return
    for statement in facts.walk.statements:
        if (
            isinstance(statement, ast.Assign)
            and literal(statement.value) is False
            and "generate" in facts.methods
        ):
            target = statement.targets[0]
            if (
                isinstance(target, ast.Attribute)
                and target.attr == "use_cache"
                and not is_true(ast.Call(target, [], []), "")
            ):
                yield statement
