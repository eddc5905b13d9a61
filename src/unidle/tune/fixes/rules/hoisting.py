"""Work that a loop repeats and that can be done once before it, or in every N-th round."""

from __future__ import annotations

import ast

from unidle.tune.analysis.source import SourceFacts
from unidle.tune.analysis.walk import LoopNode
from unidle.tune.fixes.common import is_constant_in, is_loop_body, own_statement, reads, source
from unidle.tune.fixes.operations import FixPlan, Insert, Remove, Wrap
from unidle.tune.fixes.registry import fix
from unidle.tune.rules.common import is_true, names_in

EVERY = 100


def _hoisted(facts: SourceFacts, statement: ast.stmt, loop: LoopNode, why: str) -> FixPlan:
    end = statement.end_lineno or statement.lineno
    behind = facts.line(end)[facts.column(end, statement.end_col_offset or 0) - 1 :].strip()
    text = f"{source(facts, statement)}  {behind}".rstrip()
    return FixPlan((Insert("before", loop, text + "\n"), Remove(statement)), why)


def _binds_once(loop: LoopNode, name: str) -> bool:
    """Whether a loop binds a name in one place only."""
    stores = [
        one for one in ast.walk(loop) if isinstance(one, ast.Name) and one.id == name and not isinstance(one.ctx, ast.Load)
    ]  # fmt: skip
    return len(stores) == 1


def _first_read(facts: SourceFacts, loop: LoopNode, statement: ast.stmt, name: str) -> bool:
    """Whether no earlier statement of the loop reads the name that it binds."""
    assert isinstance(loop, ast.For | ast.While)
    earlier = loop.body[: loop.body.index(statement)]
    return not any(reads(facts, name, one) for one in earlier)


def _made_once(facts: SourceFacts, node: ast.AST, why: str) -> FixPlan | None:
    """An assignment in a loop's body whose value is the same in each round."""
    statement = facts.statement(node)
    loop = is_loop_body(facts, statement)
    if not isinstance(statement, ast.Assign) or len(statement.targets) != 1 or not isinstance(loop, ast.For):
        return None
    target = statement.targets[0]
    if not isinstance(target, ast.Name) or not _binds_once(loop, target.id):
        return None
    names = names_in(statement.value)
    if target.id in names or not is_constant_in(loop, *_parts(statement.value)):
        return None
    if not _first_read(facts, loop, statement, target.id):
        return None
    return _hoisted(facts, statement, loop, why)


def _parts(node: ast.expr) -> list[ast.AST]:
    return [one for one in ast.walk(node) if isinstance(one, ast.Name)]


@fix("UDL108")
def loader_once(facts: SourceFacts, node: ast.AST) -> FixPlan | None:
    if isinstance(node, ast.Call) and is_true(node, "persistent_workers"):
        return None
    return _made_once(facts, node, "the loader is made once; each epoch still has an order of its own")


@fix("UDL408")
def compiled_once(facts: SourceFacts, node: ast.AST) -> FixPlan | None:
    if not isinstance(node, ast.Call) or facts.name_of(node.func) not in (
        "torch.compile",
        "torch.jit.script",
    ):
        return None
    return _made_once(facts, node, "the function is compiled once")


@fix("UDL212")
def moved_once(facts: SourceFacts, node: ast.AST) -> FixPlan | None:
    statement = facts.statement(node)
    loop = is_loop_body(facts, statement)
    if loop is None or not isinstance(statement, ast.Assign) or statement.value is not node:
        return None
    targets = statement.targets[0]
    if not isinstance(targets, ast.Name) or _touched(loop, targets.id):
        return None
    return _made_once(facts, node, "the tensor is copied to the device once")


def _touched(loop: LoopNode, name: str) -> bool:
    """Whether a loop changes a value in place."""
    for one in ast.walk(loop):
        if isinstance(one, ast.AugAssign) and name in names_in(one.target):
            return True
        if isinstance(one, ast.Subscript) and isinstance(one.ctx, ast.Store) and name in names_in(one.value):
            return True
        if (
            isinstance(one, ast.Call)
            and isinstance(one.func, ast.Attribute)
            and one.func.attr.endswith("_")
            and name in names_in(one.func.value)
        ):
            return True
    return False


@fix("UDL211")
def module_once(facts: SourceFacts, node: ast.AST) -> FixPlan | None:
    """``model.to(device)`` and ``model = model.to(device)``; the move of a module is in place."""
    statement = facts.statement(node)
    loop = is_loop_body(facts, statement)
    if not isinstance(node, ast.Call) or not isinstance(node.func, ast.Attribute) or loop is None:
        return None
    receiver = source(facts, node.func.value)
    alone = own_statement(facts, node) is not None
    again = (
        isinstance(statement, ast.Assign)
        and statement.value is node
        and [source(facts, one) for one in statement.targets] == [receiver]
    )
    given = [*node.args, *(one.value for one in node.keywords)]
    if not (alone or again) or not is_constant_in(loop, *given):
        return None
    name = node.func.value
    moves = [
        one for one in ast.walk(loop)
        if isinstance(one, ast.Call) and isinstance(one.func, ast.Attribute) and one.func.attr in ("to", "cuda", "cpu")
        and source(facts, one.func.value) == receiver
    ]  # fmt: skip
    stores = [
        one
        for one in ast.walk(loop)
        if isinstance(one, ast.Name | ast.Attribute)
        and isinstance(one.ctx, ast.Store)
        and source(facts, one) == source(facts, name)
    ]
    if len(moves) != 1 or len(stores) > int(again):
        return None
    return _hoisted(facts, statement, loop, "the module is moved once")


@fix("UDL203", kind="output")
def printed_seldom(facts: SourceFacts, node: ast.AST) -> FixPlan | None:
    """In rounds 0, N, 2 N and so on, where the loop counts its rounds."""
    statement = own_statement(facts, node)
    loop = facts.hot_code.step_loop(node)
    if (
        statement is None
        or not isinstance(loop, ast.For)
        or any(one.kind == "if" for one in facts.path_of(node))
    ):
        return None
    counter = _counter(loop)
    if counter is None or not _binds_once(loop, counter):
        return None
    return FixPlan((Wrap(statement, f"if {counter} % {EVERY} == 0:"),), f"printed in every {EVERY}th step")


def _counter(loop: ast.For) -> str | None:
    """The name that counts the rounds: of ``enumerate`` or ``range``, also within a progress bar."""
    over, target = loop.iter, loop.target
    while (
        isinstance(over, ast.Call)
        and isinstance(over.func, ast.Name)
        and over.func.id == "tqdm"
        and over.args
    ):
        over = over.args[0]
    if not isinstance(over, ast.Call) or not isinstance(over.func, ast.Name):
        return None
    if over.func.id in ("range", "trange") and isinstance(target, ast.Name):
        return target.id
    if over.func.id == "enumerate" and isinstance(target, ast.Tuple) and isinstance(target.elts[0], ast.Name):
        return target.elts[0].id
    return None
