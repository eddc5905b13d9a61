"""UDL7xx: prefill, decode and tokens of models that generate."""

from __future__ import annotations

import ast
from collections.abc import Iterator

from unidle.tune.analysis.source import SourceFacts
from unidle.tune.registry import rule
from unidle.tune.rules.common import literal, names_in, targets
from unidle.tune.rules.serving import handlers

_CACHES = ("cache", "past", "kv")
_CHOOSE = frozenset({"argmax", "multinomial", "topk", "sample", "max", "sort", "categorical"})
_ITEMS = frozenset({"unbind", "tolist", "enumerate", "iter", "list"})
_TOKENS = frozenset({"prompt", "tokens", "ids", "input_ids", "prompt_ids", "prompt_tokens", "token_ids"})


def _has_cache(call: ast.Call) -> bool:
    """Whether one of the arguments is a cache by its name."""
    words = [one.arg or "" for one in call.keywords]
    for argument in (*call.args[1:], *(one.value for one in call.keywords)):
        for one in ast.walk(argument):
            words += [one.id] if isinstance(one, ast.Name) else [one.attr] if isinstance(one, ast.Attribute) else []  # fmt: skip
    return any(part in word.lower() for word in words for part in _CACHES)


def _with_cache(facts: SourceFacts) -> Iterator[ast.Call]:
    """Calls of modules with a cache that are in a loop, and in no training step."""
    for call in facts.walk.calls:
        if call.args and facts.role(call.func) == "module" and _has_cache(call) and facts.loops(call) and not facts.hot(call):  # fmt: skip
            yield call


def generates(facts: SourceFacts) -> Iterator[ast.Call]:
    """Calls of a model that generate text: ``generate()``, and those in loops that choose a token."""
    for call in facts.walk.calls:
        if facts.hot(call):
            continue
        if isinstance(call.func, ast.Attribute) and call.func.attr == "generate":
            if facts.role(call.func.value) == "module":
                yield call
        elif facts.role(call.func) == "module" and call.args and facts.loops(call) and _chooses(facts, facts.loops(call)[-1]):  # fmt: skip
            yield call


@rule(
    "UDL710",
    "prefill-token-by-token",
    "the prompt goes through the model one token at a time; pass all of it at once, and keep its keys and values",
)
def prefill_token_by_token(facts: SourceFacts) -> Iterator[ast.AST]:
    for call in _with_cache(facts):
        loop = facts.loops(call)[-1]
        if isinstance(loop, ast.While) or not targets(loop) & names_in(call.args[0]) or _chooses(facts, loop):
            continue
        if _is_counted(facts, loop.iter):
            if any(isinstance(one, ast.Subscript) and names_in(one.slice) & targets(loop) for one in ast.walk(call.args[0])):  # fmt: skip
                yield call
        elif _is_over_tokens(facts, loop.iter):
            yield call


def _is_counted(facts: SourceFacts, over: ast.expr) -> bool:
    """``range(ids.size(1))``, ``range(ids.shape[1])``, ``range(len(ids))``."""
    if not (isinstance(over, ast.Call) and facts.plain_name(over.func) == "range"):
        return False
    names = {facts.plain_name(one) for one in ast.walk(over) if isinstance(one, ast.Name | ast.Attribute)}
    return bool(names & {"size", "shape", "len", "numel"})


def _is_over_tokens(facts: SourceFacts, over: ast.expr) -> bool:
    """The tokens of one prompt: parts of length 1 of a tensor, or a name that is one for them."""
    if isinstance(over, ast.Name | ast.Attribute):
        return facts.plain_name(over) in _TOKENS
    if not isinstance(over, ast.Call):
        return isinstance(over, ast.Subscript) and _is_over_tokens(facts, over.value)
    name = facts.plain_name(over.func)
    if name == "split":
        return any(literal(one) == 1 for one in over.args[:2])
    if name in _ITEMS:
        parts = [*over.args[:1], *([over.func.value] if isinstance(over.func, ast.Attribute) else [])]
        return any(_is_over_tokens(facts, one) for one in parts)
    return False


def _chooses(facts: SourceFacts, loop: ast.AST) -> bool:
    return any(isinstance(one, ast.Call) and facts.plain_name(one.func) in _CHOOSE for one in ast.walk(loop))


@rule(
    "UDL711",
    "decoded-one-by-one",
    "each sequence has a pass of its own for its next token; decode all that are open in one batch",
)
def decoded_one_by_one(facts: SourceFacts) -> Iterator[ast.AST]:
    for call in _with_cache(facts):
        loops = facts.loops(call)
        if len(loops) < 2 or not isinstance(loops[-1], ast.For):
            continue
        over = loops[-1].iter
        if isinstance(over, ast.Call) and facts.plain_name(over.func) in ("range", "batched"):
            continue
        words = " ".join(targets(loops[-1])).lower()
        item = any(
            isinstance(one, ast.Attribute | ast.Subscript) and names_in(one.value) & targets(loops[-1])
            for one in ast.walk(call.args[0])
        )
        if item and not any(word in words for word in ("batch", "chunk", "group", "layer", "block")):
            yield call


@rule(
    "UDL712",
    "tokenised-again",
    "the tokenizer runs again on what it had before: all text so far for each new token, or a constant for each request",
)
def tokenised_again(facts: SourceFacts) -> Iterator[ast.AST]:
    for call in facts.walk.calls:
        if _is_tokenizer(facts, call) and facts.loops(call) and not facts.hot(call):
            loop = facts.loops(call)[-1]
            if _chooses(facts, loop) and names_in(*call.args[:1]) & _grown(facts, loop):
                yield call
    for function in handlers(facts):
        for call in function.calls:
            if _is_tokenizer(facts, call) and call.args and _is_constant(facts, call.args[0]):
                yield call


def _is_tokenizer(facts: SourceFacts, call: ast.Call) -> bool:
    function = call.func
    if isinstance(function, ast.Attribute):
        return function.attr in ("decode", "encode", "batch_decode", "apply_chat_template") and facts.role(function.value) == "tokenizer"  # fmt: skip
    return facts.role(function) == "tokenizer"


def _grown(facts: SourceFacts, loop: ast.AST) -> set[str]:
    """Names that get longer in each round: by ``append``, ``+=`` or ``cat``."""
    found = set()
    for one in ast.walk(loop):
        if isinstance(one, ast.Call) and isinstance(one.func, ast.Attribute) and one.func.attr in ("append", "extend"):  # fmt: skip
            found |= names_in(one.func.value)
        elif isinstance(one, ast.AugAssign) and isinstance(one.op, ast.Add):
            found |= names_in(one.target)
        elif isinstance(one, ast.Assign) and isinstance(one.value, ast.Call) and facts.plain_name(one.value.func) in ("cat", "concat"):  # fmt: skip
            found |= names_in(*one.targets) & names_in(one.value)
    return found


def _is_constant(facts: SourceFacts, node: ast.expr) -> bool:
    """A text in the code, or a name of the file that is bound to one only."""
    if isinstance(node, ast.Constant):
        return isinstance(node.value, str)
    if not isinstance(node, ast.Name) or node.id in facts.function_of(node).params:
        return False
    if node.id in facts.function_of(node).bindings:
        return False
    bound = facts.walk.top.bindings.get(node.id, [])
    return len(bound) == 1 and isinstance(bound[0].value, ast.Constant) and isinstance(bound[0].value.value, str)  # fmt: skip
