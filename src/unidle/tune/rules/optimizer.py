"""UDL5xx: optimizers, and what is done with all parameters in each step."""

from __future__ import annotations

import ast
from collections.abc import Iterator

from unidle.tune.analysis.source import SourceFacts
from unidle.tune.registry import rule
from unidle.tune.rules.common import has_keyword, is_false, keyword, literal, parameter_loop

MANY_PARAMETERS = ("torch.nn.Embedding", "torch.nn.TransformerEncoder", "torch.nn.TransformerEncoderLayer", "torch.nn.Transformer", "torch.nn.MultiheadAttention", "torch.nn.TransformerDecoderLayer")  # fmt: skip


@rule(
    "UDL501",
    "optimizer-not-fused",
    "Adam updates a model with an embedding or attention in many kernels; pass fused=True",
    severity="note",
)
def optimizer_not_fused(facts: SourceFacts) -> Iterator[ast.AST]:
    large = any(name in facts.named for name in MANY_PARAMETERS)
    if not large or not facts.hot_code.has_loop:
        return
    for call in facts.calls("torch.optim.AdamW", "torch.optim.Adam"):
        if not has_keyword(call, "fused", "foreach", "capturable", "differentiable"):
            yield call


@rule(
    "UDL502",
    "optimizer-made-each-step",
    "the optimizer is made again in each step, and its state is lost; make it once",
    severity="error",
)
def optimizer_each_step(facts: SourceFacts) -> Iterator[ast.AST]:
    for name, calls in facts.named.items():
        if name.startswith("torch.optim.") and name.rpartition(".")[2][:1].isupper():
            for call in calls:
                if (
                    facts.training(call)
                    and facts.hot_code.step_loop(call) is not None
                    and "lr_scheduler" not in name
                ):
                    yield call


def _loop_over_parameters(facts: SourceFacts, node: ast.AST) -> bool:
    return facts.hot(node) and parameter_loop(facts, node) is not None


@rule(
    "UDL503",
    "updated-by-hand",
    "each parameter is updated in a kernel of its own; an optimizer of torch.optim groups them",
)
def updated_by_hand(facts: SourceFacts) -> Iterator[ast.AST]:
    for call in facts.method_calls("add_", "sub_", "addcmul_", "addcdiv_"):
        if _loop_over_parameters(facts, call) and ".grad" in "".join(ast.unparse(one) for one in call.args):
            yield call
    for statement in facts.walk.statements:
        if isinstance(statement, ast.AugAssign) and isinstance(statement.op, ast.Sub | ast.Add):
            target_is_grad = ".grad" in ast.unparse(statement.target)
            if (
                (
                    not target_is_grad
                    and ".grad" in ast.unparse(statement.value)
                    and _loop_over_parameters(facts, statement)
                )
                and isinstance(statement.target, ast.Name | ast.Attribute)
                and facts.is_tensor(statement.target)
            ):
                yield statement


@rule("UDL504", "foreach-off", "foreach=False runs one kernel for each parameter")
def foreach_off(facts: SourceFacts) -> Iterator[ast.AST]:
    for call in facts.walk.calls:
        if is_false(call, "foreach"):
            name = facts.name_of(call.func)
            if (
                name.startswith(("torch.optim.", "torch.nn.utils.clip_grad"))
                and literal(keyword(call, "fused")) is not True
            ):
                yield call


@rule(
    "UDL505",
    "average-one-by-one",
    "the moving average updates one parameter at a time; use torch._foreach_lerp_ or AveragedModel",
)
def average_one_by_one(facts: SourceFacts) -> Iterator[ast.AST]:
    for call in facts.method_calls("mul_", "lerp_", "copy_"):
        loop = parameter_loop(facts, call)
        if loop is None or not facts.hot(call) or not isinstance(loop.iter, ast.Call):  # type: ignore[union-attr]
            continue
        over = loop.iter  # type: ignore[union-attr]
        pairs = isinstance(over.func, ast.Name) and over.func.id == "zip" and len(over.args) > 1
        text = ast.unparse(call)
        if pairs and ".grad" not in text and _averages(call):
            yield call


def _averages(call: ast.Call) -> bool:
    method = call.func.attr if isinstance(call.func, ast.Attribute) else ""
    if method == "copy_":  # p.copy_(d * a + (1 - d) * b)
        return (
            bool(call.args) and isinstance(call.args[0], ast.BinOp) and isinstance(call.args[0].op, ast.Add)
        )
    return True


@rule(
    "UDL506",
    "clipped-one-by-one",
    "gradients are clipped for one parameter at a time; pass all parameters in one call",
)
def clipped_one_by_one(facts: SourceFacts) -> Iterator[ast.AST]:
    for call in facts.calls("torch.nn.utils.clip_grad_norm_", "torch.nn.utils.clip_grad_value_"):
        if _loop_over_parameters(facts, call):
            yield call


@rule(
    "UDL507",
    "scaler-with-bfloat16",
    "bfloat16 needs no GradScaler, and its check for infinities waits in each step",
)
def scaler_with_bfloat16(facts: SourceFacts) -> Iterator[ast.AST]:
    contexts = [*facts.calls("torch.autocast", "torch.amp.autocast", "torch.cpu.amp.autocast")]
    wide = [
        call for call in contexts if facts.name_of(keyword(call, "dtype") or call.func) == "torch.bfloat16"
    ]
    if not wide or len(wide) != len(contexts):
        return
    for call in facts.calls("torch.amp.GradScaler"):
        if not has_keyword(call, "enabled"):
            yield call


@rule(
    "UDL508",
    "gradients-read-as-data",
    "the norm of each gradient is computed in a kernel of its own; clip_grad_norm_ returns the norm of all",
    severity="note",
)
def norm_one_by_one(facts: SourceFacts) -> Iterator[ast.AST]:
    for call in facts.method_calls("norm"):
        if (
            _loop_over_parameters(facts, call)
            and isinstance(call.func, ast.Attribute)
            and ".grad" in ast.unparse(call.func.value)
        ):
            up = facts.walk.parent.get(facts.walk.parent.get(call, call), call)
            if not (
                isinstance(up, ast.Call) and isinstance(up.func, ast.Attribute) and up.func.attr == "item"
            ):
                yield call
