"""Which code runs in each training step.

A *step loop* is the innermost loop around a call of ``backward()`` or of an optimizer's ``step()``. A function that has such
a call in no loop of its own is a *step function*: the loops around its calls are step loops. What a step loop calls is hot,
apart from branches that run in few rounds. So are forward passes, and steps of Lightning modules and trainers.
"""

from __future__ import annotations

import ast
import re
from typing import TYPE_CHECKING, Final

from unidle.tune.analysis import tables
from unidle.tune.analysis.rare import is_rare
from unidle.tune.analysis.walk import BranchMark, FunctionFacts, LoopNode

if TYPE_CHECKING:
    from unidle.tune.analysis.source import SourceFacts

_ONCE: Final = re.compile(
    r"^(?:main|run|cli|fit|warm_?up|setup|overfit\w*|sanity\w*|smoke\w*|test_\w+|check_\w+|profile\w*|benchmark\w*)$"
)


class HotCode:
    """Step loops and hot functions of a file."""

    def __init__(self, facts: SourceFacts, hot_names: tuple[str, ...] = ()) -> None:
        self._facts = facts
        self._rare: dict[BranchMark, bool] = {}
        self._known: dict[ast.stmt, bool] = {}
        self.loops: set[LoopNode] = set()
        self.step_functions: set[FunctionFacts] = set()
        self.step_calls: set[ast.Call] = set()
        """Calls of step functions of other files."""
        self.train_functions: set[FunctionFacts] = set()
        """Functions with a step loop, or that are called in one; forward passes are not among them."""
        self._declare(hot_names)
        self._find_loops()
        self._propagate()

    @property
    def has_loop(self) -> bool:
        """Whether this file trains: it has a step loop or a step function."""
        return bool(self.loops or self.step_functions)

    def add_step_calls(self, calls: list[ast.Call], hot: list[FunctionFacts]) -> None:
        """From other files: calls that take a step, and functions that are hot."""
        for call in calls:
            self.step_calls.add(call)
            self._mark(call)
        for function in hot:
            function.hot = True
        self._close_steps()
        self._propagate()

    # ---- what is hot

    def is_hot(self, node: ast.AST) -> bool:
        """Whether a node runs in each training step or forward pass."""
        statement = self._facts.statement(node)
        known = self._known.get(statement)
        if known is None:
            known = self._known[statement] = self._is_hot(statement)
        return known

    def step_loop(self, node: ast.AST) -> LoopNode | None:
        """The innermost step loop around a node, with no rare branch between."""
        for mark in reversed(self._facts.path_of(node)):
            if mark.kind == "loop" and mark.node in self.loops:
                return mark.node
            if self.rare(mark):
                return None
        return None

    def rare(self, mark: BranchMark) -> bool:
        """Whether what is in this branch runs in few rounds."""
        known = self._rare.get(mark)
        if known is None:
            known = self._rare[mark] = is_rare(mark)
        return known

    def _is_hot(self, statement: ast.stmt) -> bool:
        if isinstance(statement, ast.FunctionDef | ast.AsyncFunctionDef | ast.ClassDef):
            return False
        for mark in reversed(self._facts.walk.path.get(statement, ())):
            if mark.kind == "loop" and mark.node in self.loops:
                return True
            if self.rare(mark):
                return False
        return self._facts.walk.function[statement].hot

    # ---- finding it

    def _declare(self, hot_names: tuple[str, ...]) -> None:
        facts = self._facts
        for function in facts.walk.functions:
            function.hot = function.name in hot_names
        for owner in facts.walk.classes.values():
            for name, method in owner.methods.items():
                if name == "forward" and facts.is_module(owner):
                    method.hot = True
                elif name in tables.STEP_METHODS and owner.node.bases:
                    method.hot = True
                    self.train_functions.add(method)
        self._samples()

    def _samples(self) -> None:
        facts = self._facts
        found: list[FunctionFacts] = []
        for owner in facts.walk.classes.values():
            wanted: tuple[str, ...] = (
                ("__getitem__", "__getitems__", "__iter__") if facts.is_dataset(owner) else ()
            )
            if "collat" in owner.node.name.lower():
                wanted = ("__call__", "torch_call")
            found += [owner.methods[name] for name in wanted if name in owner.methods]
        for call in facts.walk.calls:
            for keyword in call.keywords:
                if keyword.arg == "collate_fn":
                    found += self._referred(keyword.value)
        for function in found:
            self._mark_sample(function, 0)

    def _referred(self, node: ast.expr) -> list[FunctionFacts]:
        for scope in self._facts.function_of(node).chain():
            if isinstance(node, ast.Name) and node.id in scope.functions:
                return [scope.functions[node.id]]
        return []

    def _mark_sample(self, function: FunctionFacts, deep: int) -> None:
        if function.sample or deep > 5:
            return
        function.sample = True
        for call in function.calls:
            inner = self._facts.called(call)
            if inner is not None:
                self._mark_sample(inner, deep + 1)

    def _find_loops(self) -> None:
        facts = self._facts
        for call in facts.walk.calls:
            if self._takes_step(call):
                self._mark(call)
        self._close_steps()

    def _takes_step(self, call: ast.Call) -> bool:
        function = call.func
        if not isinstance(function, ast.Attribute):
            return False
        if function.attr in ("backward", "manual_backward"):
            name = self._facts.name_of(function)
            return name in ("", "torch.autograd.backward")
        if function.attr != "step":
            return False
        role = self._facts.role(function.value)
        return role in ("optimizer", "scaler")

    def _mark(self, call: ast.Call) -> None:
        """A call takes a training step: its loop is a step loop, or its function is a step function."""
        facts = self._facts
        loops = facts.loops(call)
        receiver = call.func.value if isinstance(call.func, ast.Attribute) else None
        while loops:
            loop = loops.pop()
            self.loops.add(loop)
            names = (
                {one.id for one in ast.walk(loop.target) if isinstance(one, ast.Name)}
                if not isinstance(loop, ast.While)
                else set()
            )
            if not (isinstance(receiver, ast.Name) and receiver.id in names):
                self.train_functions.add(facts.function_of(call))
                return
        function = facts.function_of(call)
        if function.node is not None:
            self.step_functions.add(function)

    def _close_steps(self) -> None:
        """Until nothing changes: calls of step functions take steps."""
        facts = self._facts
        done: set[FunctionFacts] = set()
        while waiting := self.step_functions - done:
            for function in waiting:
                done.add(function)
                calls = facts.callers(function)
                for call in calls:
                    self._mark(call)
                if not calls and not _ONCE.match(function.name):
                    function.hot = True
                self.train_functions.add(function)

    def _propagate(self) -> None:
        """What hot code calls is hot."""
        facts = self._facts
        self._known.clear()
        waiting = [call for call in facts.walk.calls if self.is_hot(call)]
        while waiting:
            function = facts.called(waiting.pop())
            if function is None or function.hot or function.node is None:
                continue
            function.hot = True
            self._known.clear()
            waiting += [call for call in function.calls if self.is_hot(call)]
