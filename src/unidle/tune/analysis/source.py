"""The facts of one file, as rules read them."""

from __future__ import annotations

import ast
from collections.abc import Iterator
from functools import cached_property

from unidle.tune.analysis import tables
from unidle.tune.analysis.call_roles import ON_DEVICE, TENSORS
from unidle.tune.analysis.hot import HotCode
from unidle.tune.analysis.names import ImportedNames
from unidle.tune.analysis.roles import Roles
from unidle.tune.analysis.walk import Binding, ClassFacts, FunctionFacts, LoopNode, Path, SourceWalk


class SourceFacts:
    """One file: its tree, names, roles and hot code. ``hot_names``: functions that the user declares hot.

    Errors: RecursionError for code that is nested too deeply.
    """

    def __init__(self, path: str, text: str, tree: ast.Module, hot_names: tuple[str, ...] = ()) -> None:
        self.path = path
        self.text = text
        self.tree = tree
        self.walk = SourceWalk(tree)
        top = {
            name: [b.value for b in found if b.how == "assign" and not b.index]
            for name, found in self.walk.top.bindings.items()
        }
        self.names = ImportedNames(
            self.walk.imports, {name: values for name, values in top.items() if values}
        )
        self.roles = Roles(self)
        self.named: dict[str, list[ast.Call]] = {}
        self.methods: dict[str, list[ast.Call]] = {}
        self._function: dict[ast.AST, FunctionFacts] = {}
        self._class_of: dict[ast.AST, ClassFacts | None] = {}
        self._module: dict[ClassFacts, bool] = {}
        self.foreign: dict[str, str] = {}
        """Roles of classes that other files of the run define, by the full names under which this file imports them."""
        for call in self.walk.calls:
            name = self.name_of(call.func)
            if name:
                self.named.setdefault(name, []).append(call)
            if isinstance(call.func, ast.Attribute):
                self.methods.setdefault(call.func.attr, []).append(call)
        self._callers: dict[FunctionFacts, list[ast.Call]] = {}
        for call in self.walk.calls:
            function = self.called(call)
            if function is not None:
                self._callers.setdefault(function, []).append(call)
        self.hot_code = HotCode(self, hot_names)

    # ---- text

    @cached_property
    def lines(self) -> list[str]:
        """The lines of the file."""
        return self.text.split("\n")

    def line(self, number: int) -> str:
        """A line by its number, from 1."""
        return self.lines[number - 1] if 0 < number <= len(self.lines) else ""

    def column(self, number: int, offset: int) -> int:
        """The column in characters, from 1; ``offset`` is in bytes, as ``ast`` has it."""
        return len(self.line(number).encode("utf-8", "surrogatepass")[:offset].decode("utf-8", "ignore")) + 1

    # ---- places

    def statement(self, node: ast.AST) -> ast.stmt:
        """The statement of an expression."""
        while not isinstance(node, ast.stmt):
            up = self.walk.parent.get(node)
            if up is None:
                return self.tree.body[0]
            node = up
        return node

    def function_of(self, node: ast.AST) -> FunctionFacts:
        """The function that a node is in."""
        found = self._function.get(node)
        if found is None:
            statement = self.statement(node)
            found = self._function[node] = self.walk.function.get(statement, self.walk.top)
        return found

    def owner_of(self, node: ast.AST) -> ClassFacts | None:
        """The class whose method a node is in."""
        return next((one.owner for one in self.function_of(node).chain() if one.owner is not None), None)

    def path_of(self, node: ast.AST) -> Path:
        """What is around a node, in its function."""
        return self.walk.path.get(self.statement(node), ())

    def loops(self, node: ast.AST) -> list[LoopNode]:
        """The loops around a node in its function, outermost first."""
        return [
            mark.node
            for mark in self.path_of(node)
            if isinstance(mark.node, LoopNode) and mark.kind == "loop"
        ]

    def parents(self, node: ast.AST) -> Iterator[ast.AST]:
        """What an expression is part of, up to its statement."""
        up = self.walk.parent.get(node)
        while up is not None and not isinstance(node, ast.stmt):
            yield up
            node, up = up, self.walk.parent.get(up)

    def hot(self, node: ast.AST) -> bool:
        """Whether it runs in each training step, or each forward pass."""
        return self.hot_code.is_hot(node)

    def training(self, node: ast.AST) -> bool:
        """Whether it runs in each training step, and is in no forward pass of a module."""
        return self.hot_code.is_hot(node) and self.function_of(node).name != "forward"

    def in_sample(self, node: ast.AST) -> bool:
        """Whether it runs for each sample or batch of a dataset."""
        return self.function_of(node).sample

    def in_test(self, node: ast.AST) -> bool:
        """Whether it is in a test function: what a test does once is no cost."""
        return any(one.name.startswith("test_") for one in self.function_of(node).chain())

    # ---- names and roles

    def name_of(self, node: ast.AST) -> str:
        """The full name of what is imported, or nothing; parameters and locals hide imports."""
        full = self.names.of(node)
        if full:
            base = node
            while isinstance(base, ast.Attribute):
                base = base.value
            if isinstance(base, ast.Name) and base.id in self.function_of(base).params:
                return ""
        return full

    @staticmethod
    def plain_name(node: ast.AST) -> str:
        """The last word of a name: ``b`` of ``a.b``."""
        if isinstance(node, ast.Attribute):
            return node.attr
        return node.id if isinstance(node, ast.Name) else ""

    def role(self, node: ast.AST) -> str:
        """See :mod:`unidle.tune.analysis.roles`."""
        return self.roles.of(node)

    def is_tensor(self, node: ast.AST) -> bool:
        """Whether it is a tensor, wherever it is."""
        return self.roles.of(node) in TENSORS

    def on_device(self, node: ast.AST) -> bool:
        """Whether it is a tensor that may be on a device."""
        return self.roles.of(node) in ON_DEVICE

    def bases(self, owner: ClassFacts) -> list[str]:
        """Full names of the bases of a class; plain names for those that are not imported."""
        heads = [base.value if isinstance(base, ast.Subscript) else base for base in owner.node.bases]
        return [self.names.of(head) or self.plain_name(head) for head in heads]

    def derives(
        self, owner: ClassFacts, full: tuple[str, ...], endings: tuple[str, ...] = (), deep: int = 0
    ) -> bool:
        """Whether a class, or a base of it in this file, has one of these bases."""
        for base in self.bases(owner):
            if base in full or base.endswith(endings or ("\0",)):
                return True
            local = self.walk.classes.get(base)
            if (
                local is not None
                and local is not owner
                and deep < 8
                and self.derives(local, full, endings, deep + 1)
            ):
                return True
        return False

    def is_module(self, owner: ClassFacts) -> bool:
        """Whether a class of this file is an ``nn.Module``."""
        known = self._module.get(owner)
        if known is None:
            local = "forward" in owner.methods and bool(owner.node.bases)
            known = self._module[owner] = local or self.derives(
                owner, tables.MODULES, ("Module", "PreTrainedModel")
            )
        return known

    def is_dataset(self, owner: ClassFacts) -> bool:
        """Whether a class of this file is a dataset of PyTorch."""
        return self.derives(owner, tables.DATASETS, ("Dataset",)) or {"__getitem__", "__len__"} <= set(
            owner.methods
        )

    def role_of_class(self, owner: ClassFacts) -> str:
        """The role of an instance."""
        if self.is_module(owner):
            return "loss_fn" if owner.node.name.endswith("Loss") else "module"
        return "dataset" if self.is_dataset(owner) else ""

    # ---- calls

    def calls(self, *names: str) -> Iterator[ast.Call]:
        """Calls by the full names of what is called."""
        for name in names:
            yield from self.named.get(name, ())

    def method_calls(self, *names: str) -> Iterator[ast.Call]:
        """Calls of methods by their plain names."""
        for name in names:
            yield from self.methods.get(name, ())

    def constructed(self, call: ast.Call) -> ClassFacts | None:
        """The class of this file whose instance a call makes."""
        return self.walk.classes.get(call.func.id) if isinstance(call.func, ast.Name) else None

    def class_of(self, node: ast.AST) -> ClassFacts | None:
        """The class of this file of which a value is an instance, where a name is bound to its construction."""
        if isinstance(node, ast.Call):
            found = self.constructed(node)
            if (
                found is None
                and isinstance(node.func, ast.Attribute)
                and node.func.attr in tables.MODULE_TO_MODULE
            ):
                found = self.class_of(node.func.value)
            elif found is None and node.args and self.name_of(node.func) in tables.WRAPS:
                found = self.class_of(node.args[0])
            return found
        if node in self._class_of:
            return self._class_of[node]
        self._class_of[node] = None
        for binding in self._plain_bindings(node):
            found = self.class_of(binding.value)
            if found is not None:
                self._class_of[node] = found
                return found
        return None

    def _plain_bindings(self, node: ast.AST) -> Iterator[Binding]:
        """What a name, or an attribute of ``self``, is assigned."""
        several: list[list[Binding]] = []
        if isinstance(node, ast.Name):
            several = [scope.bindings.get(node.id, []) for scope in self.function_of(node).chain()]
        elif isinstance(node, ast.Attribute) and isinstance(node.value, ast.Name) and node.value.id == "self":
            owner = self.owner_of(node)
            several = [owner.attributes.get(node.attr, [])] if owner is not None else []
        for bindings in several:
            yield from (one for one in bindings if one.how == "assign" and not one.index)

    def called(self, call: ast.Call) -> FunctionFacts | None:
        """The function of this file that a call runs, where that is clear."""
        function = call.func
        if isinstance(function, ast.Name):
            return self._called_name(call, function)
        if not isinstance(function, ast.Attribute):
            return None
        if isinstance(function.value, ast.Name) and function.value.id == "self":
            own = self.owner_of(call)
            if own is not None and function.attr in own.methods:
                return own.methods[function.attr]
            return self._applied(self.class_of(function))
        other = self.class_of(function.value)
        return other.methods.get(function.attr) if other is not None else None

    def _called_name(self, call: ast.Call, name: ast.Name) -> FunctionFacts | None:
        for scope in self.function_of(call).chain():
            if name.id in scope.functions:
                return scope.functions[name.id]
            if name.id in scope.params:
                return None
        return self._applied(self.class_of(name)) if name.id not in self.walk.classes else None

    @staticmethod
    def _applied(owner: ClassFacts | None) -> FunctionFacts | None:
        """What runs when an instance is called."""
        return (owner.methods.get("forward") or owner.methods.get("__call__")) if owner is not None else None

    def callers(self, function: FunctionFacts) -> list[ast.Call]:
        """The calls of a function in this file."""
        return self._callers.get(function, [])

    # ---- the file as a whole

    @cached_property
    def accelerated(self) -> bool:
        """Whether tensors of this file may be on an accelerator; a training script that names none runs on the CPU."""
        walk = self.walk
        if (
            any(text.partition(":")[0] in tables.ACCELERATORS for text in walk.strings)
            or "cuda" in self.methods
        ):
            return True
        if any(
            name.startswith(
                ("torch.cuda.", "accelerate.", "transformers.Trainer", "lightning.", "deepspeed.")
            )
            for name in self.named
        ):
            return True
        if any("device" in one.params for one in walk.functions):
            return True
        if any(self.derives(one, (), tables.TRAINERS) for one in walk.classes.values()):
            return True
        return not self.hot_code.has_loop
