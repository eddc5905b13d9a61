"""What a value is, as far as the file shows it: a module, an optimizer, a loader, a tensor on the host or a device.

Roles are plain words. ``module``, ``loss_fn``, ``optimizer``, ``scaler``, ``loader``, ``dataset``, ``tokenizer``,
``pipeline``, ``parameters``; ``batch`` (from a loader, on the host), ``host`` (a tensor on the host), ``tensor`` (a
tensor that may be on a device), ``loss`` (one with a graph); ``array`` (NumPy), ``random`` (a generator of those), ``image``, ``number``, ``arrays`` and
``tensors`` (lists of them). Nothing is unknown.
"""

from __future__ import annotations

import ast
import re
from typing import TYPE_CHECKING, Final

from unidle.tune.analysis import tables
from unidle.tune.analysis.call_roles import TENSORS, CallRoles
from unidle.tune.analysis.walk import Binding, ClassFacts, FunctionFacts

if TYPE_CHECKING:
    from unidle.tune.analysis.source import SourceFacts

_BY_NAME: Final = (
    (re.compile(r"^(?:.*_)?(?:model|net|network|encoder|decoder|backbone|discriminator|critic|actor|policy_net)$|^(?:net|model)_?[GD]$"), "module"),
    (re.compile(r"^(?:.*_)?(?:optimizer|optim|opt)(?:_\w+|[GD])?$"), "optimizer"),
    (re.compile(r"^(?:criterion|loss_fn|loss_func|loss_function|criterion_\w+)$"), "loss_fn"),
    (re.compile(r"^(?:.*_)?(?:loader|dataloader|dl|data_loader)$|^(?:loader|dataloader)_\w+$"), "loader"),
    (re.compile(r"^(?:.*_)?tokenizer$"), "tokenizer"),
    (re.compile(r"^(?:grad_)?scaler$"), "scaler"),
)  # fmt: skip
_PLAIN_ANNOTATION: Final = frozenset({"int", "float", "bool", "str", "dict", "list", "tuple", "None"})


_DEEPEST: Final = 60


class Roles(CallRoles):
    """Roles of the expressions of a file, found when they are asked for."""

    def __init__(self, facts: SourceFacts) -> None:
        self.facts = facts
        self._known: dict[ast.AST, str] = {}
        self._open: set[object] = set()
        self._tried: dict[
            ast.AST, str
        ] = {}  # unknown within the present question, where a circle may have cut it short
        self._cut = False
        self._given: dict[tuple[FunctionFacts, str], str] = {}

    def forget(self) -> None:
        """Find all roles again: more is known of other files now."""
        self._known.clear()
        self._given.clear()

    def of(self, node: ast.AST) -> str:
        """The role of an expression."""
        known = self._known.get(node)
        if known is None:
            known = self._tried.get(node)
        if known is not None:
            return known
        if node in self._open or len(self._open) > _DEEPEST:
            self._cut = True
            return ""
        self._open.add(node)
        found = self._found(node)
        self._open.discard(node)
        if found:
            self._known[node] = found
        else:
            self._tried[node] = found
        if not self._open:
            if not self._cut:
                self._known |= self._tried
            self._known[node] = found
            self._tried.clear()
            self._cut = False
        return found

    def _found(self, node: ast.AST) -> str:
        if isinstance(node, ast.Call):
            return self._call(node)
        if isinstance(node, ast.Name):
            return self._name(node)
        if isinstance(node, ast.Attribute):
            return self._attribute(node)
        if isinstance(node, ast.Subscript):
            return self._item(self.of(node.value))
        if isinstance(node, ast.BinOp):
            return self._of_both(node.left, node.right)
        if isinstance(node, ast.Compare):
            return (
                ""
                if isinstance(node.ops[0], ast.Is | ast.IsNot | ast.In | ast.NotIn)
                else self._of_both(node.left, *node.comparators)
            )
        if isinstance(node, ast.UnaryOp):
            return "" if isinstance(node.op, ast.Not) else self.of(node.operand)
        if isinstance(node, ast.IfExp):
            return self.of(node.body) or self.of(node.orelse)
        if isinstance(node, ast.Await | ast.Starred | ast.NamedExpr):
            return self.of(node.value)
        if isinstance(node, ast.List | ast.Tuple):
            return self._several(self.of(node.elts[0])) if node.elts else ""
        if isinstance(node, ast.ListComp | ast.GeneratorExp):
            return self._several(self.of(node.elt))
        return "number" if isinstance(node, ast.Constant) and isinstance(node.value, int | float) else ""

    @staticmethod
    def _several(role: str) -> str:
        if role in TENSORS:
            return "tensors"
        return {"array": "arrays", "image": "images"}.get(role, "module" if role == "module" else "")

    @staticmethod
    def _item(role: str) -> str:
        if role in TENSORS or role in ("array", "module", "dataset"):
            return "" if role == "dataset" else role
        return {"tensors": "tensor", "arrays": "array", "loader": ""}.get(role, "")

    def _of_both(self, *nodes: ast.expr) -> str:
        roles = [self.of(node) for node in nodes]
        for wanted in ("loss", "tensor", "batch", "host", "array"):
            if wanted in roles:
                return wanted
        return "number" if roles and all(role == "number" for role in roles) else ""

    # ---- names

    def _name(self, node: ast.Name) -> str:
        facts = self.facts
        function = facts.function_of(node)
        comprehension = self._of_comprehension(node)
        if comprehension:
            return comprehension
        for scope in function.chain():
            if node.id == "self" and "self" in scope.params and scope.owner is not None:
                return "module" if facts.is_module(scope.owner) else ""
            bindings = scope.bindings.get(node.id)
            if bindings:
                before = [b for b in bindings if b.line < node.lineno] if scope is function else []
                for binding in [*reversed(before), *bindings]:
                    if found := self._bound(binding):
                        return found
            if node.id in scope.params:
                return self._parameter(scope, node.id)
            if node.id in scope.functions:
                return ""
        if facts.names.imported(node.id) or node.id in facts.walk.classes:
            return ""
        return self._conventional(node.id)

    def _of_comprehension(self, node: ast.Name) -> str:
        up: ast.AST | None = node
        while up is not None and not isinstance(up, ast.stmt):
            if isinstance(up, ast.ListComp | ast.GeneratorExp | ast.SetComp):
                for one in up.generators:
                    if (
                        isinstance(one.target, ast.Name)
                        and one.target.id == node.id
                        and node not in ast.walk(one.iter)
                    ):
                        return self._bound(Binding(one.iter, "for", node.lineno))
            up = self.facts.walk.parent.get(up)
        return ""

    @staticmethod
    def _conventional(name: str) -> str:
        return next((role for pattern, role in _BY_NAME if pattern.match(name)), "")

    def _bound(self, binding: Binding) -> str:
        if binding.how == "for":
            return self._looped(binding.value, list(binding.index))
        value = binding.value
        index = list(binding.index)
        while index and isinstance(value, ast.Tuple | ast.List) and index[0] < len(value.elts):
            value = value.elts[index.pop(0)]
        if index and isinstance(value, ast.Call):
            function = self.facts.called(value)
            if function is not None:
                for returned in function.returns:
                    if isinstance(returned, ast.Tuple) and index[0] < len(returned.elts):
                        return self.of(returned.elts[index[0]])
                return ""
            if self.facts.name_of(value.func) in tables.SEVERAL_MODULES:
                return self.of(value.args[index[0]]) if index[0] < len(value.args) else ""
        role = self.of(value)
        if not index:
            return role
        return role if role in TENSORS or role in ("array", "dataset") else self._item(role)

    def _looped(self, iterated: ast.expr, index: list[int]) -> str:
        """The role of an item of what a loop goes over."""
        while isinstance(iterated, ast.Call):
            name = self.facts.name_of(iterated.func) or self.facts.plain_name(iterated.func)
            last = name.rpartition(".")[2]
            if last == "enumerate" and iterated.args:
                if index and index.pop(0) == 0:
                    return "number"
            elif last == "range":
                return "number"
            elif last == "zip" and index and index[0] < len(iterated.args):
                iterated = iterated.args[index.pop(0)]
                continue
            elif last not in tables.PASSED_THROUGH:
                break
            if not iterated.args:
                break
            iterated = iterated.args[0]
        role = self.of(iterated)
        if role == "loader":
            return "batch"
        if role in TENSORS:
            return role
        return {"parameters": "tensor"}.get(role) or self._item(role)

    def _parameter(self, scope: FunctionFacts, name: str) -> str:
        argument = scope.params[name]
        annotation = argument.annotation
        if annotation is not None and (found := self._annotated(annotation)):
            return "" if found == "plain" else found
        given = self._from_callers(scope, name)
        if given:
            return given
        by_name = self._conventional(name)
        if by_name:
            return by_name
        default = scope.defaults.get(name)
        if isinstance(default, ast.Constant) and default.value is not None:
            return ""
        owner = scope.owner
        if owner is not None and self.facts.is_module(owner) and scope.name == "forward" and name != "self":
            return (
                "tensor"
                if not re.search(
                    r"mask|cache|state|hidden|cfg|config|return|use_|size|len|idx|step|num|list", name
                )
                else ""
            )
        if owner is not None and scope.name in tables.STEP_METHODS and name in ("batch", "inputs"):
            return "tensor"
        return ""

    def _annotated(self, annotation: ast.expr) -> str:
        if isinstance(annotation, ast.Constant) and isinstance(annotation.value, str):
            return "tensor" if annotation.value.endswith("Tensor") else ""
        if isinstance(annotation, ast.BinOp):  # Tensor | None
            return self._annotated(annotation.left) or self._annotated(annotation.right)
        if isinstance(annotation, ast.Subscript):
            head = self.facts.plain_name(annotation.value)
            inner = self._annotated(annotation.slice) if head in ("Optional", "Annotated") else ""
            return inner or (
                "plain" if head not in ("DataLoader", "Dataset") else self._annotated(annotation.value)
            )
        name = self.facts.name_of(annotation)
        if isinstance(annotation, ast.Name) and annotation.id in _PLAIN_ANNOTATION:
            return "plain"
        if isinstance(annotation, ast.Name) and annotation.id in self.facts.walk.classes:
            return "module" if self.facts.is_module(self.facts.walk.classes[annotation.id]) else "plain"
        return tables.ANNOTATIONS.get(name, "module" if name.startswith("torch.nn.") else "")

    def _from_callers(self, scope: FunctionFacts, name: str) -> str:
        key = (scope, name)
        if key in self._given:
            return self._given[key]
        if key in self._open or len(self._open) > _DEEPEST // 2:
            self._cut = True
            return ""
        self._open.add(key)
        names = [one for one in scope.params if one != "self"]
        found = ""
        for call in self.facts.callers(scope):
            value = next((k.value for k in call.keywords if k.arg == name), None)
            place = names.index(name) if name in names else -1
            if value is None and 0 <= place < len(call.args):
                value = call.args[place]
            if value is not None and (found := self.of(value)):
                break
        self._open.discard(key)
        if found or not self._cut:
            self._given[key] = found
        return found

    # ---- attributes and calls

    def _attribute(self, node: ast.Attribute) -> str:
        owner = (
            self.facts.owner_of(node)
            if isinstance(node.value, ast.Name) and node.value.id == "self"
            else None
        )
        if owner is not None:
            found = self._class_attribute(owner, node.attr)
            return found or self._conventional(node.attr)
        role = self.of(node.value)
        if role in TENSORS:
            if node.attr in tables.TENSOR_FACTS:
                return "number"
            return "loss" if node.attr == "loss" else role
        if role == "module" and node.attr in ("weight", "bias"):
            return "tensor"
        if role == "array":
            return "number" if node.attr in ("shape", "size", "ndim", "dtype") else "array"
        return (
            self._conventional(node.attr)
            if not role
            else "module"
            if role == "module" and node.attr == "module"
            else ""
        )

    def _class_attribute(self, owner: ClassFacts, name: str) -> str:
        for binding in owner.attributes.get(name, ()):
            if found := self._bound(binding):
                return found
        return ""
