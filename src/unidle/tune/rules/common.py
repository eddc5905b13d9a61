"""What several rules ask of a file."""

from __future__ import annotations

import ast
from collections.abc import Iterator

from unidle.tune.analysis import tables
from unidle.tune.analysis.source import SourceFacts
from unidle.tune.analysis.walk import FunctionFacts, LoopNode


def keyword(call: ast.Call, name: str) -> ast.expr | None:
    """The value of a keyword argument."""
    return next((one.value for one in call.keywords if one.arg == name), None)


def has_keyword(call: ast.Call, *names: str) -> bool:
    """Whether one of these is given, or may be by ``**``."""
    return any(one.arg is None or one.arg in names for one in call.keywords)


def argument(call: ast.Call, name: str, place: int) -> ast.expr | None:
    """An argument by name, or by its place."""
    found = keyword(call, name)
    return found if found is not None else call.args[place] if place < len(call.args) else None


def literal(node: ast.expr | None) -> object:
    """The value of a constant; None for anything else."""
    return node.value if isinstance(node, ast.Constant) else None


def is_true(call: ast.Call, name: str) -> bool:
    """Whether a keyword is the constant True."""
    return literal(keyword(call, name)) is True


def is_false(call: ast.Call, name: str) -> bool:
    """Whether a keyword is the constant False."""
    return literal(keyword(call, name)) is False


def names_in(*nodes: ast.AST) -> set[str]:
    """The plain names that are in expressions."""
    return {one.id for node in nodes for one in ast.walk(node) if isinstance(one, ast.Name)}


def targets(loop: ast.AST) -> set[str]:
    """The names that a loop binds in each round."""
    return names_in(loop.target) if isinstance(loop, ast.For | ast.AsyncFor | ast.comprehension) else set()


def calls_in(node: ast.AST) -> Iterator[ast.Call]:
    """Calls anywhere below a node."""
    return (one for one in ast.walk(node) if isinstance(one, ast.Call))


def assigned_in(loop: LoopNode) -> set[str]:
    """All names that a loop binds, those of its body too."""
    found = targets(loop)
    for one in ast.walk(loop):
        if isinstance(one, ast.Name) and isinstance(one.ctx, ast.Store):
            found.add(one.id)
    return found


def without_gradient(facts: SourceFacts, node: ast.AST, deep: int = 0) -> bool:
    """Whether a node runs without a graph: in ``no_grad``, here or where its function is called."""
    for mark in facts.path_of(node):
        if isinstance(mark.node, ast.With | ast.AsyncWith):
            for item in mark.node.items:
                context = item.context_expr
                head = context.func if isinstance(context, ast.Call) else context
                if facts.name_of(head) in tables.NO_GRAD:
                    return True
    function = facts.function_of(node)
    for scope in function.chain():
        for decorator in scope.node.decorator_list if scope.node else ():
            head = decorator.func if isinstance(decorator, ast.Call) else decorator
            if facts.name_of(head) in tables.NO_GRAD:
                return True
    calls = facts.callers(function)
    return deep < 4 and bool(calls) and all(without_gradient(facts, call, deep + 1) for call in calls)


def source_of(facts: SourceFacts, node: ast.expr) -> ast.expr:
    """What a plain name was last bound to, else the node itself."""
    if isinstance(node, ast.Name):
        for scope in facts.function_of(node).chain():
            bindings = [b for b in scope.bindings.get(node.id, ()) if b.how == "assign" and not b.index]
            if len(bindings) == 1:
                return bindings[0].value
            if bindings or node.id in scope.params:
                break
    return node


def function_given(facts: SourceFacts, node: ast.expr) -> ast.AST | None:
    """The lambda, or the function of this file, that an expression names."""
    if isinstance(node, ast.Lambda):
        return node
    if isinstance(node, ast.Name):
        for scope in facts.function_of(node).chain():
            if node.id in scope.functions:
                return scope.functions[node.id].node
    if isinstance(node, ast.Attribute) and isinstance(node.value, ast.Name) and node.value.id == "self":
        owner = facts.owner_of(node)
        if owner is not None and node.attr in owner.methods:
            return owner.methods[node.attr].node
    return None


def parameter_loop(facts: SourceFacts, node: ast.AST) -> LoopNode | None:
    """The innermost loop around a node if it goes over the parameters of a module."""
    loops = facts.loops(node)
    if not loops or isinstance(loops[-1], ast.While):
        return None
    over = loops[-1].iter
    if any(facts.role(one) == "parameters" for one in ast.walk(over) if isinstance(one, ast.expr)):
        return loops[-1]
    return None


def functions(facts: SourceFacts) -> Iterator[FunctionFacts]:
    """The functions of a file, without the file itself."""
    return (one for one in facts.walk.functions if one.node is not None)
