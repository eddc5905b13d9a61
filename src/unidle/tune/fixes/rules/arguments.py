"""Arguments of a call that are added, changed or taken out."""

from __future__ import annotations

import ast

from unidle.tune.analysis.source import SourceFacts
from unidle.tune.fixes.operations import FixPlan, SetKeyword
from unidle.tune.fixes.registry import fix
from unidle.tune.rules.common import function_given, has_keyword
from unidle.tune.rules.data import LOADER, _trained_on

WORKERS = 4
LOG_EVERY = 50


def _with(node: ast.AST, name: str, value: str | None, why: str) -> FixPlan | None:
    if not isinstance(node, ast.Call) or (value is not None and _spreads(node, name)):
        return None
    return FixPlan((SetKeyword(node, name, value),), why)


def _spreads(call: ast.Call, name: str) -> bool:
    """``**options`` may have the argument already."""
    return any(one.arg is None for one in call.keywords) and not any(one.arg == name for one in call.keywords)


@fix("UDL101", kind="order")
def workers(_facts: SourceFacts, node: ast.AST) -> FixPlan | None:
    if not isinstance(node, ast.Call) or len(node.args) > 5:
        return None
    return _with(node, "num_workers", str(WORKERS), "samples are read while the step computes")


@fix("UDL105")
def pinned(facts: SourceFacts, _node: ast.AST) -> FixPlan | None:
    """All loaders of training get ``pin_memory``: which one made the batch is not known."""
    loaders = [call for call in facts.calls(LOADER) if _trained_on(facts, call)]
    if any(len(call.args) > 7 or _spreads(call, "pin_memory") for call in loaders):
        return None
    changed = tuple(SetKeyword(call, "pin_memory", "True") for call in loaders)
    return FixPlan(changed, "copies from pinned memory do not make the host wait")


@fix("UDL106")
def non_blocking(_facts: SourceFacts, node: ast.AST) -> FixPlan | None:
    return _with(node, "non_blocking", "True", "the batch is in pinned memory")


@fix("UDL107", kind="order")
def persistent(_facts: SourceFacts, node: ast.AST) -> FixPlan | None:
    return _with(node, "persistent_workers", "True", "workers stay between epochs")


@fix("UDL109", kind="precision")
def padded(facts: SourceFacts, node: ast.AST) -> FixPlan | None:
    """In a collator, to the longest of the batch; in a map, not at all where a collator pads."""
    if not isinstance(node, ast.Call):
        return None
    collates = "DataCollatorWithPadding" in facts.text or "DataCollatorForSeq2Seq" in facts.text
    sample = facts.function_of(node)
    if sample.sample and sample.name not in ("__getitem__", "__iter__"):
        return _with(node, "padding", "True", "each batch is padded to its longest sample")
    if collates and not has_keyword(node, "return_tensors"):
        return _with(node, "padding", "False", "the collator pads each batch to its longest sample")
    return None


@fix("UDL113")
def batched(facts: SourceFacts, node: ast.AST) -> FixPlan | None:
    if not isinstance(node, ast.Call):
        return None
    function = function_given(facts, node.args[0])
    body: ast.expr | None = None
    if isinstance(function, ast.Lambda):
        body = function.body
    elif isinstance(function, ast.FunctionDef) and len(function.body) == 1:
        only = function.body[0]
        body = only.value if isinstance(only, ast.Return) else None
    if not isinstance(body, ast.Call) or facts.role(body.func) != "tokenizer":
        return None  # only the call of a tokenizer is the same for a list of texts
    fields = all(isinstance(one, ast.Subscript) for one in body.args)
    if not fields or has_keyword(body, "padding", "return_tensors"):
        return None
    return _with(node, "batched", "True", "the tokenizer gets many texts in one call")


@fix("UDL214", kind="output")
def logged(facts: SourceFacts, node: ast.AST) -> FixPlan | None:
    if not isinstance(node, ast.Call):
        return None
    option = "log_every_n_steps" if facts.name_of(node.func) == "lightning.Trainer" else "logging_steps"
    return _with(node, option, str(LOG_EVERY), f"the log has every {LOG_EVERY}th step")


@fix("UDL501", kind="precision")
def fused(_facts: SourceFacts, node: ast.AST) -> FixPlan | None:
    return _with(node, "fused", "True", "one kernel updates many parameters")


@fix("UDL504")
def foreach(_facts: SourceFacts, node: ast.AST) -> FixPlan | None:
    return _with(node, "foreach", None, "PyTorch chooses kernels for many parameters")


@fix("UDL507", kind="precision")
def scaler(_facts: SourceFacts, node: ast.AST) -> FixPlan | None:
    return _with(node, "enabled", "False", "bfloat16 has the range of float32")


@fix("UDL606", kind="order")
def unused_searched(_facts: SourceFacts, node: ast.AST) -> FixPlan | None:
    return _with(node, "find_unused_parameters", None, "forward has no branch, so it uses all parameters")


@fix("UDL609", kind="output")
def metric_synchronised(_facts: SourceFacts, node: ast.AST) -> FixPlan | None:
    return _with(node, "sync_dist", None, "the log has the value of one rank")


@fix("UDL707", kind="precision")
def slow_tokenizer(_facts: SourceFacts, node: ast.AST) -> FixPlan | None:
    return _with(node, "use_fast", None, "the fast tokenizer is written in Rust")
