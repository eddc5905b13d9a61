"""One walk over a file: functions, loops, calls and bindings, and where each statement is."""

from __future__ import annotations

import ast
from collections.abc import Iterator
from dataclasses import dataclass, field
from typing import Final, Literal

FunctionNode = ast.FunctionDef | ast.AsyncFunctionDef
LoopNode = ast.For | ast.AsyncFor | ast.While
Kind = Literal["loop", "if", "with", "try", "handler"]

BODIES: Final = ("body", "orelse", "finalbody", "handlers", "cases")


@dataclass(frozen=True, slots=True)
class BranchMark:
    """Something around a statement, in the same function. ``first``: it is in the first branch of an ``if``."""

    kind: Kind
    node: ast.AST
    first: bool = True


Path = tuple[BranchMark, ...]


@dataclass(frozen=True, slots=True)
class Binding:
    """A name gets ``value``; ``how``: ``for`` means an item of it. ``index``: the places within a tuple, outermost first."""

    value: ast.expr
    how: Literal["assign", "for", "with"]
    line: int
    index: tuple[int, ...] = ()


@dataclass(slots=True, eq=False)
class FunctionFacts:
    """A function of the file; the file itself is the one without ``node``."""

    node: FunctionNode | None
    name: str
    owner: ClassFacts | None = None
    parent: FunctionFacts | None = None
    params: dict[str, ast.arg] = field(default_factory=dict)
    defaults: dict[str, ast.expr] = field(default_factory=dict)
    bindings: dict[str, list[Binding]] = field(default_factory=dict)
    functions: dict[str, FunctionFacts] = field(default_factory=dict)
    calls: list[ast.Call] = field(default_factory=list)
    returns: list[ast.expr] = field(default_factory=list)
    loops: list[LoopNode] = field(default_factory=list)
    hot: bool = False
    sample: bool = False

    def chain(self) -> Iterator[FunctionFacts]:
        """Itself and the functions around it."""
        one: FunctionFacts | None = self
        while one is not None:
            yield one
            one = one.parent


@dataclass(slots=True, eq=False)
class ClassFacts:
    """A class of the file."""

    node: ast.ClassDef
    scope: FunctionFacts
    methods: dict[str, FunctionFacts] = field(default_factory=dict)
    attributes: dict[str, list[Binding]] = field(default_factory=dict)


class SourceWalk:
    """The facts of a tree that need no names. Errors: RecursionError for code that is nested too deeply."""

    def __init__(self, tree: ast.Module) -> None:
        self.parent: dict[ast.AST, ast.AST] = {}
        self.path: dict[ast.AST, Path] = {}
        self.function: dict[ast.AST, FunctionFacts] = {}
        self.functions: list[FunctionFacts] = []
        self.classes: dict[str, ClassFacts] = {}
        self.imports: list[ast.Import | ast.ImportFrom] = []
        self.calls: list[ast.Call] = []
        self.statements: list[ast.stmt] = []
        self.comprehensions: list[ast.ListComp | ast.GeneratorExp | ast.SetComp | ast.DictComp] = []
        self.strings: set[str] = set()
        self.top = FunctionFacts(None, "")
        self.functions.append(self.top)
        self._body(tree.body, self.top, (), None, tree)

    def _body(
        self,
        body: list[ast.stmt],
        function: FunctionFacts,
        path: Path,
        owner: ClassFacts | None,
        parent: ast.AST,
    ) -> None:
        for statement in body:
            self.parent[statement] = parent
            self.path[statement] = path
            self.function[statement] = function
            self.statements.append(statement)
            if isinstance(statement, ast.FunctionDef | ast.AsyncFunctionDef):
                self._function(statement, function, owner)
            elif isinstance(statement, ast.ClassDef):
                self._class(statement, function, path)
            else:
                self._statement(statement, function, path, owner)
            if isinstance(statement, ast.If) and skips_rest(statement):
                # what follows runs only where the test is false
                path = (*path, BranchMark("if", statement, first=False))

    def _function(self, node: FunctionNode, around: FunctionFacts, owner: ClassFacts | None) -> None:
        arguments = node.args
        named = [*arguments.posonlyargs, *arguments.args]
        facts = FunctionFacts(node, node.name, owner, around)
        for argument in [*named, *arguments.kwonlyargs, arguments.vararg, arguments.kwarg]:
            if argument is not None:
                facts.params[argument.arg] = argument
        for argument, default in zip(named[::-1], arguments.defaults[::-1], strict=False):
            facts.defaults[argument.arg] = default
        for argument, given in zip(arguments.kwonlyargs, arguments.kw_defaults, strict=True):
            if given is not None:
                facts.defaults[argument.arg] = given
        for expression in [*node.decorator_list, *arguments.defaults]:
            self._expression(expression, around, node)
        self.functions.append(facts)
        (owner.methods if owner else around.functions)[node.name] = facts
        self._body(node.body, facts, (), None, node)

    def _class(self, node: ast.ClassDef, around: FunctionFacts, path: Path) -> None:
        facts = ClassFacts(node, around)
        self.classes[node.name] = facts
        for expression in [*node.bases, *node.decorator_list, *(k.value for k in node.keywords)]:
            self._expression(expression, around, node)
        self._body(node.body, around, path, facts, node)

    def _statement(
        self, node: ast.stmt, function: FunctionFacts, path: Path, owner: ClassFacts | None
    ) -> None:
        if isinstance(node, ast.Import | ast.ImportFrom):
            self.imports.append(node)
            return
        for name, value in ast.iter_fields(node):
            if name in BODIES:
                continue
            for each in value if isinstance(value, list) else [value]:
                if isinstance(each, ast.expr):
                    self._expression(each, function, node)
                elif isinstance(each, ast.withitem):
                    self._expression(each.context_expr, function, node)
                    if each.optional_vars is not None:
                        self._expression(each.optional_vars, function, node)
                        self._bind(
                            each.optional_vars, Binding(each.context_expr, "with", node.lineno), function
                        )
        self._binds(node, function, owner)
        self._bodies(node, function, path, owner)

    def _bodies(self, node: ast.stmt, function: FunctionFacts, path: Path, owner: ClassFacts | None) -> None:
        if isinstance(node, LoopNode):
            function.loops.append(node)
            self._body(node.body, function, (*path, BranchMark("loop", node)), owner, node)
            self._body(node.orelse, function, path, owner, node)
        elif isinstance(node, ast.If):
            self._body(node.body, function, (*path, BranchMark("if", node)), owner, node)
            self._body(node.orelse, function, (*path, BranchMark("if", node, first=False)), owner, node)
        elif isinstance(node, ast.With | ast.AsyncWith):
            self._body(node.body, function, (*path, BranchMark("with", node)), owner, node)
        elif isinstance(node, ast.Try | ast.TryStar):
            inside = (*path, BranchMark("try", node))
            for body in (node.body, node.orelse, node.finalbody):
                self._body(body, function, inside, owner, node)
            for handler in node.handlers:
                self._body(handler.body, function, (*path, BranchMark("handler", handler)), owner, node)
        elif isinstance(node, ast.Match):
            for case in node.cases:
                self._body(case.body, function, (*path, BranchMark("if", case)), owner, node)

    def _binds(self, node: ast.stmt, function: FunctionFacts, owner: ClassFacts | None) -> None:
        if isinstance(node, ast.Assign):
            for target in node.targets:
                self._bind(target, Binding(node.value, "assign", node.lineno), function, owner)
        elif isinstance(node, ast.AnnAssign) and node.value is not None:
            self._bind(node.target, Binding(node.value, "assign", node.lineno), function, owner)
        elif isinstance(node, ast.For | ast.AsyncFor):
            self._bind(node.target, Binding(node.iter, "for", node.lineno), function, owner)
        elif isinstance(node, ast.Return) and node.value is not None:
            function.returns.append(node.value)

    def _bind(
        self, target: ast.expr, binding: Binding, function: FunctionFacts, owner: ClassFacts | None = None
    ) -> None:
        if isinstance(target, ast.Name):
            if owner is not None:
                owner.attributes.setdefault(target.id, []).append(binding)
            else:
                function.bindings.setdefault(target.id, []).append(binding)
        elif isinstance(target, ast.Tuple | ast.List):
            for place, each in enumerate(target.elts):
                inner = each.value if isinstance(each, ast.Starred) else each
                more = Binding(binding.value, binding.how, binding.line, (*binding.index, place))
                self._bind(inner, more, function, owner)
        elif (
            isinstance(target, ast.Attribute)
            and isinstance(target.value, ast.Name)
            and target.value.id == "self"
        ):
            for one in function.chain():
                if one.owner is not None:
                    one.owner.attributes.setdefault(target.attr, []).append(binding)
                    break

    def _expression(self, top: ast.expr, function: FunctionFacts, parent: ast.AST) -> None:
        self.parent[top] = parent
        stack: list[ast.AST] = [top]
        while stack:
            node = stack.pop()
            if isinstance(node, ast.Call):
                self.calls.append(node)
                function.calls.append(node)
            elif isinstance(node, ast.Constant):
                if isinstance(node.value, str) and len(node.value) < 40:
                    self.strings.add(node.value)
                continue
            elif isinstance(node, ast.ListComp | ast.GeneratorExp | ast.SetComp | ast.DictComp):
                self.comprehensions.append(node)
            elif isinstance(node, ast.comprehension):
                self._bind(node.target, Binding(node.iter, "for", node.iter.lineno), function)
            elif isinstance(node, ast.NamedExpr):
                self._bind(node.target, Binding(node.value, "assign", node.lineno), function)
            for child in ast.iter_child_nodes(node):
                self.parent[child] = node
                stack.append(child)


def skips_rest(node: ast.If) -> bool:
    """Whether the body ends this round of the loop, or the function."""
    return isinstance(node.body[-1], ast.Continue | ast.Return) and not node.orelse
