"""Two syntax trees of one file, compared: what is gone, what is new, and which rule that breaks."""

from __future__ import annotations

import ast
from collections import defaultdict
from collections.abc import Iterator
from typing import Final

from unidle.tune.analysis.source import SourceFacts
from unidle.tune.cheats import words
from unidle.tune.cheats.caching import cached
from unidle.tune.cheats.timed import moved_out
from unidle.tune.cheats.words import CheatRefusal

_Place = dict[tuple[str, str, str], list[int]]
_USUAL_METHODS: Final = frozenset({"__init__", "__len__", "__getitem__", "__call__", "__iter__"})
_READERS: Final = frozenset({
    "open", "load", "read_csv", "read_parquet", "load_dataset", "ImageFolder", "memmap", "imread", "fromfile", "listdir", "glob", "DataLoader",
})  # fmt: skip
_TRANSFORMS: Final = ("transform", "transforms", "augment", "collate_fn")


def refused_in(file: str, before: SourceFacts, after: SourceFacts) -> list[CheatRefusal]:
    """All refusals of one file."""
    gone, new = _difference(_noted(before), _noted(after))
    found = [
        CheatRefusal(rule, file, line, f"`{text[:80]}` is gone or changed")
        for (rule, kind, text), lines in gone.items() if kind in ("both", "gone") for line in lines
    ]  # fmt: skip
    found += [
        CheatRefusal(rule, file, line, f"`{text[:80]}` is new or changed")
        for (rule, kind, text), lines in new.items() if kind in ("both", "new") for line in lines
    ]  # fmt: skip
    found += [CheatRefusal("timed", file, line, message) for line, message in moved_out(before, after)]
    found += [CheatRefusal("cached", file, line, message) for line, message in cached(before, after)]
    return found


def _difference(before: _Place, after: _Place) -> tuple[_Place, _Place]:
    def less(one: _Place, other: _Place) -> _Place:
        return {
            key: lines[len(other.get(key, ())) :]
            for key, lines in one.items()
            if len(lines) > len(other.get(key, ()))
        }

    return less(before, after), less(after, before)


def _noted(facts: SourceFacts) -> _Place:
    """What is compared: (rule, whether it may go or come, text), with its lines."""
    found: _Place = defaultdict(list)
    for node in ast.walk(facts.tree):
        for rule, kind, text in _notes(facts, node):
            found[rule, kind, text].append(getattr(node, "lineno", 1))
    return found


def _notes(facts: SourceFacts, node: ast.AST) -> Iterator[tuple[str, str, str]]:
    if isinstance(node, ast.Call):
        yield from _call(facts, node)
    elif isinstance(node, ast.Name | ast.Attribute):
        yield from _reference(facts, node)
    elif isinstance(node, ast.Lambda):
        yield "deferred", "new", ast.unparse(node)
    elif isinstance(node, ast.Yield | ast.YieldFrom | ast.Await | ast.AsyncFunctionDef):
        yield "deferred", "both", type(node).__name__.lower()
    elif isinstance(node, ast.Compare) and facts.in_sample(node):
        yield "data", "both", ast.unparse(node)
    elif isinstance(node, ast.stmt | ast.ExceptHandler):
        yield from _statement(facts, node)


def _statement(facts: SourceFacts, node: ast.stmt | ast.ExceptHandler) -> Iterator[tuple[str, str, str]]:
    if isinstance(node, ast.Assert):
        yield "tests", "gone", ast.unparse(node.test)
    elif isinstance(node, ast.Break | ast.Continue) or (isinstance(node, ast.Return) and facts.loops(node)):
        yield "steps", "new", type(node).__name__.lower()
    elif isinstance(node, ast.ExceptHandler):
        yield "work", "new", "except"
    elif isinstance(node, ast.Assign | ast.AnnAssign | ast.AugAssign):
        yield from _assigned(facts, node)
    elif isinstance(node, ast.For | ast.While | ast.If):
        yield from _flow(facts, node)
    elif isinstance(node, ast.FunctionDef):
        yield from _function(node)


def _function(node: ast.FunctionDef) -> Iterator[tuple[str, str, str]]:
    if node.name.startswith("__") and node.name not in _USUAL_METHODS:
        yield "deferred", "new", f"def {node.name}"
    named = [*node.args.posonlyargs, *node.args.args]
    for name, value in zip(reversed(named), reversed(node.args.defaults), strict=False):
        if name.arg not in words.FREE_KEYWORDS:
            yield "steps", "both", f"{name.arg}={ast.unparse(value)}"
    if node.name == "__len__":
        yield "data", "both", ast.unparse(node.body[-1])


def _call(facts: SourceFacts, call: ast.Call) -> Iterator[tuple[str, str, str]]:
    name = facts.name_of(call.func) or facts.plain_name(call.func)
    plain = name.rpartition(".")[2]
    text = ast.unparse(call)
    if words.SEEDS.match(name):
        yield "seed", "both", text
    if plain in words.WORK and not _waits_twice(facts, call, plain):
        receiver = ast.unparse(call.func.value) if isinstance(call.func, ast.Attribute) else ""
        # saves and updates of the same thing, wherever they are in the file
        yield (
            "work",
            "gone",
            f"{receiver}.{plain}({', '.join(sorted(k.arg or '' for k in call.keywords if k.arg not in words.FREE_KEYWORDS) if plain == 'clip_grad_norm_' else [])})",
        )
        if plain in ("save", "clip_grad_norm_", "clip_grad_value_", "dropout", "all_reduce", "write"):
            yield "work", "gone", _without_free(call)
    if plain in words.LESS_DATA:
        yield "data", "new", text
    elif plain in words.LESS and _leaves_out(facts, call, plain):
        yield "work", "new", text
    if plain in _READERS or plain.endswith("Dataset") or name.startswith("torch.utils.data."):
        yield "data", "both", _loader(call)
    elif (
        name.startswith(("torch.nn.", "torch.optim.", "transformers.", "lightning."))
        or plain in ("add_argument", "autocast")
    ) and plain[:1].isupper() | (plain == "add_argument"):
        settings = _settings(call)
        if settings:
            yield "work", "both", settings
    if plain == "range":
        up = facts.walk.parent.get(call)
        loop = facts.walk.parent.get(up) if isinstance(up, ast.Call) else up
        if isinstance(loop, ast.For) and not _fills_rows(loop):
            yield "steps", "gone", text


def _fills_rows(loop: ast.For) -> bool:
    """Whether all that a loop does is to write the row of its number: one call for all rows may take its place."""
    number = loop.target.id if isinstance(loop.target, ast.Name) else ""
    return bool(number) and all(
        isinstance(one, ast.Assign)
        and all(
            isinstance(target, ast.Subscript)
            and any(isinstance(part, ast.Name) and part.id == number for part in ast.walk(target.slice))
            for target in one.targets
        )
        for one in loop.body
    )


def _leaves_out(facts: SourceFacts, call: ast.Call, plain: str) -> bool:
    """Whether gradients are left out of training, not of what is only printed, added up or evaluated."""
    if plain == "set_grad_enabled":
        return True
    if not facts.training(call):
        return False
    statement = facts.statement(call)
    if plain in ("no_grad", "inference_mode"):
        return any(
            isinstance(one, ast.Call) and facts.role(one.func) in ("module", "loss_fn")
            for one in ast.walk(statement)
        )
    if not plain.startswith("detach"):
        return True
    if isinstance(statement, ast.Expr):
        return facts.plain_name(getattr(statement.value, "func", call)) == "backward"
    return not isinstance(statement, ast.AugAssign)


def _loader(call: ast.Call) -> str:
    kept = [ast.unparse(one) for one in call.args]
    kept += sorted(
        f"{k.arg}={ast.unparse(k.value)}" for k in call.keywords if k.arg not in words.FREE_KEYWORDS
    )
    return f"{ast.unparse(call.func).rpartition('.')[2]}({', '.join(kept)})"


_without_free = _loader


def _settings(call: ast.Call) -> str:
    """Constants of a module or an optimizer, without its name: a codemod may put another in its place."""
    constants = [ast.unparse(one) for one in call.args if isinstance(one, ast.Constant)]
    constants += sorted(
        f"{k.arg}={ast.unparse(k.value)}"
        for k in call.keywords
        if isinstance(k.value, ast.Constant)
        and k.arg not in words.FREE_KEYWORDS
        and not _only_logged(call, k.arg)
    )
    return ", ".join(constants)


def _only_logged(call: ast.Call, option: str | None) -> bool:
    """Whether a setting decides only how often a trainer logs. Evaluation of Hugging Face follows it unless ``eval_steps`` is there."""
    given = {one.arg for one in call.keywords}
    if option == "logging_steps":
        return "eval_steps" in given or not given & {"eval_strategy", "evaluation_strategy", None}
    return option == "log_every_n_steps"


def _waits_twice(facts: SourceFacts, call: ast.Call, plain: str) -> bool:
    """Whether a barrier of a step waits for ranks that gradients synchronise anyway."""
    averaged = {
        "torch.nn.parallel.DistributedDataParallel",
        "torch.distributed.fsdp.FullyShardedDataParallel",
    }
    return plain == "barrier" and bool(averaged & {*facts.named}) and facts.hot(call)


def _reference(facts: SourceFacts, node: ast.Name | ast.Attribute) -> Iterator[tuple[str, str, str]]:
    if isinstance(facts.walk.parent.get(node), ast.Attribute):
        return  # a part of a longer name
    name = facts.name_of(node) or (node.id if isinstance(node, ast.Name) else "")
    if not name:
        if isinstance(node, ast.Attribute) and node.attr in (
            "__dict__",
            "__globals__",
            "__code__",
            "__class__",
            "__builtins__",
            "f_back",
            "isatty",
        ):
            yield "harness", "new", node.attr
        return
    if name in ("__file__", "__debug__", "__builtins__", "__loader__", "__spec__"):
        yield "observed", "new", name
    if words.TIMERS.match(name):
        yield "timer", "both", name
    for rule, pattern in (
        ("deferred", words.THREADS),
        ("observed", words.OBSERVERS),
        ("harness", words.HIDDEN),
    ):
        if pattern.match(name) and not (rule == "observed" and _sets_threads(facts, node)):
            yield rule, "new", name


def _sets_threads(facts: SourceFacts, node: ast.AST) -> bool:
    """``os.environ["OMP_NUM_THREADS"] = ...`` and ``os.environ.setdefault("OMP_NUM_THREADS", ...)``."""
    up = facts.walk.parent.get(node)
    key: ast.AST | None = None
    if isinstance(up, ast.Subscript) and isinstance(up.ctx, ast.Store):
        key = up.slice
    elif (
        isinstance(up, ast.Call)
        and isinstance(node, ast.Attribute)
        and node.attr == "setdefault"
        and up.func is node
        and up.args
    ):
        key = up.args[0]
    return (
        isinstance(key, ast.Constant)
        and isinstance(key.value, str)
        and bool(words.ENVIRONMENT_OK.match(key.value))
    )


def _assigned(
    facts: SourceFacts, node: ast.Assign | ast.AnnAssign | ast.AugAssign
) -> Iterator[tuple[str, str, str]]:
    targets = node.targets if isinstance(node, ast.Assign) else [node.target]
    for target in targets:
        name = facts.plain_name(target)
        full = facts.name_of(target) if isinstance(target, ast.Attribute) else ""
        if full and not full.startswith("torch.backends."):
            yield "harness", "both", f"{full} ="
        if isinstance(target, ast.Attribute) and name in (
            "forward",
            "step",
            "backward",
            "__class__",
            "requires_grad",
        ):
            yield "work", "new", f".{name} ="
        if isinstance(node.value, ast.Constant) and words.AMOUNTS.search(name):
            yield "steps", "both", f"{name} = {ast.unparse(node.value)}"
        elif name and isinstance(node.value, ast.Constant) and isinstance(node.value.value, str):
            yield "data", "both", f"{name} = {node.value.value!r}"
        if isinstance(target, ast.Tuple) and isinstance(node.value, ast.Tuple):
            for one, value in zip(target.elts, node.value.elts, strict=False):
                if isinstance(value, ast.Constant) and words.AMOUNTS.search(facts.plain_name(one)):
                    yield "steps", "both", f"{facts.plain_name(one)} = {ast.unparse(value)}"
        if any(part in name for part in _TRANSFORMS):
            yield "data", "gone", f"{name} = {ast.unparse(node.value)}" if node.value else name
        if (
            isinstance(node.value, ast.Subscript)
            and isinstance(node.value.slice, ast.Slice)
            and not facts.hot(node)
        ):
            yield "data", "new", ast.unparse(node.value)


def _flow(facts: SourceFacts, node: ast.For | ast.While | ast.If) -> Iterator[tuple[str, str, str]]:
    """Loops over less, and conditions around training work."""
    if isinstance(node, ast.For):
        for part in ast.walk(node.iter):
            if isinstance(part, ast.Subscript) and isinstance(part.slice, ast.Slice):
                yield "steps", "new", ast.unparse(node.iter)
    elif isinstance(node, ast.While):
        yield "steps", "both", f"while {ast.unparse(node.test)}"
    elif _works(facts, node):
        yield "work", "new", f"if {ast.unparse(node.test)}"


def _works(facts: SourceFacts, node: ast.If) -> bool:
    """Whether a branch has a part of the update, or a forward pass in training."""
    for part in (inner for one in (*node.body, *node.orelse) for inner in ast.walk(one)):
        if isinstance(part, ast.Call):
            plain = facts.plain_name(part.func)
            if plain in words.WORK - {"write", "wait", "update", "join", "flush"} or (
                facts.training(part) and facts.role(part.func) == "module"
            ):
                return True
    return False
