"""UDL7xx: models behind a request."""

from __future__ import annotations

import ast
from collections.abc import Iterator

from unidle.tune.analysis.source import SourceFacts
from unidle.tune.analysis.walk import FunctionFacts
from unidle.tune.registry import rule
from unidle.tune.rules.common import functions, names_in, without_gradient

ROUTES = frozenset({"get", "post", "put", "route", "websocket", "api_route"})
LOADS = frozenset({
    "torch.load", "torch.jit.load", "torch.hub.load", "transformers.pipeline", "sentence_transformers.SentenceTransformer",
    "safetensors.torch.load_file",
})  # fmt: skip


def handlers(facts: SourceFacts) -> Iterator[FunctionFacts]:
    """The functions of a file that answer requests: ``@app.post(...)``, ``@router.get(...)``."""
    web = {"fastapi", "flask", "starlette", "sanic", "quart", "litestar", "robyn"} & facts.names.modules
    for function in functions(facts) if web else ():
        for decorator in function.node.decorator_list if function.node else ():
            if (
                isinstance(decorator, ast.Call)
                and isinstance(decorator.func, ast.Attribute)
                and decorator.func.attr in ROUTES
            ):
                yield function
                break


def _with_inner(facts: SourceFacts, function: FunctionFacts, deep: int = 0) -> Iterator[ast.Call]:
    """The calls of a function, and of the functions of this file that it calls."""
    for call in function.calls:
        yield call
        inner = facts.called(call)
        cached = (
            inner is not None
            and inner.node is not None
            and any("cache" in ast.unparse(one) for one in inner.node.decorator_list)
        )
        if inner is not None and deep < 3 and not cached and inner.name != "forward":
            yield from _with_inner(facts, inner, deep + 1)


@rule(
    "UDL703",
    "loaded-per-request",
    "the model is loaded for each request; load it once when the server starts",
    severity="error",
)
def loaded_per_request(facts: SourceFacts) -> Iterator[ast.AST]:
    for function in handlers(facts):
        for call in _with_inner(facts, function):
            loads = facts.name_of(call.func) in LOADS or facts.plain_name(call.func) == "from_pretrained"
            if loads and not any(mark.kind == "if" for mark in facts.path_of(call)):
                yield call


def _runs(facts: SourceFacts, call: ast.Call) -> bool:
    function = call.func
    if isinstance(function, ast.Attribute) and function.attr in ("generate", "encode"):
        return facts.role(function.value) == "module"
    return (
        facts.role(function) in ("module", "pipeline")
        and bool(call.args or call.keywords)
        and isinstance(function, ast.Name | ast.Attribute)
    )


@rule(
    "UDL704",
    "served-with-graph",
    "the answer is computed with a graph for backward; use torch.inference_mode()",
)
def served_with_graph(facts: SourceFacts) -> Iterator[ast.AST]:
    if "torch" not in facts.names.modules or any(name.endswith("set_grad_enabled") for name in facts.named):
        return
    for function in handlers(facts):
        for call in _with_inner(facts, function):
            plain = facts.role(call.func) == "module" and _runs(facts, call)
            if plain and not without_gradient(facts, call):
                yield call
                break


@rule(
    "UDL708",
    "event-loop-blocked",
    "the model runs on the event loop, and no other request is served meanwhile; use a thread or a plain def",
    severity="error",
)
def event_loop_blocked(facts: SourceFacts) -> Iterator[ast.AST]:
    for function in handlers(facts):
        if not isinstance(function.node, ast.AsyncFunctionDef):
            continue
        for call in function.calls:
            inner = facts.called(call)
            deep = (
                inner is not None
                and isinstance(inner.node, ast.FunctionDef)
                and any(_runs(facts, one) for one in inner.calls)
            )
            waited = isinstance(facts.walk.parent.get(call), ast.Await | ast.Lambda)
            if (_runs(facts, call) or deep) and not waited:
                yield call
                break


@rule(
    "UDL713",
    "warm-up-missing",
    "the first request compiles the model; run it once on an input of the usual size when the server starts",
)
def warm_up_missing(facts: SourceFacts) -> Iterator[ast.AST]:
    served = {call for function in handlers(facts) for call in _with_inner(facts, function)}
    runs = [call for call in facts.walk.calls if _runs(facts, call)]
    methods = [call for call in facts.method_calls("compile") if facts.role(call.func.value) == "module"]  # type: ignore[attr-defined]
    for call in (*facts.calls("torch.compile"), *methods):
        name = _compiled_name(facts, call)
        of_it = [one for one in runs if name in names_in(one.func)]
        if (
            name
            and served & {*of_it}
            and not any(_at_start(facts, one) for one in of_it if one not in served)
        ):
            yield call


def _compiled_name(facts: SourceFacts, call: ast.Call) -> str:
    """What runs the compiled model: ``fast`` of ``fast = torch.compile(model)``, ``model`` of ``model.compile()``."""
    statement = facts.statement(call)
    if isinstance(statement, ast.Assign) and isinstance(statement.targets[0], ast.Name):
        return statement.targets[0].id
    owner = call.func.value if isinstance(call.func, ast.Attribute) else None
    return owner.id if isinstance(owner, ast.Name) and isinstance(statement, ast.Expr) else ""


def _at_start(facts: SourceFacts, call: ast.Call, deep: int = 0) -> bool:
    """Whether it runs when the file is loaded or the server starts: outside of functions, in one that is called there, or in a hook."""
    function = facts.function_of(call)
    if function.node is None or function.node.decorator_list or function.owner is not None:
        return True
    return deep < 4 and any(_at_start(facts, one, deep + 1) for one in facts.callers(function))
