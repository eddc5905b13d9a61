"""Roles of what calls return: of libraries, of modules, and of methods of tensors."""

from __future__ import annotations

import ast
import re
from abc import ABC, abstractmethod
from typing import TYPE_CHECKING, Final

from unidle.tune.analysis import tables

if TYPE_CHECKING:
    from unidle.tune.analysis.source import SourceFacts

TENSORS: Final = frozenset({"tensor", "batch", "host", "loss"})
ON_DEVICE: Final = frozenset({"tensor", "loss"})


class CallRoles(ABC):
    """The part of :class:`unidle.tune.analysis.roles.Roles` that is for calls."""

    facts: SourceFacts

    @abstractmethod
    def of(self, node: ast.AST) -> str:
        """The role of an expression."""

    @staticmethod
    @abstractmethod
    def _conventional(name: str) -> str:
        """The role that a name usually has."""

    def _call(self, node: ast.Call) -> str:
        name = self.facts.name_of(node.func)
        if name and (found := self._imported_call(name, node)):
            return found
        function = self.facts.called(node)
        if function is not None and function.name != "forward":
            for returned in function.returns:
                if found := self.of(returned):
                    return found
            return ""
        local = self.facts.constructed(node)
        if local is not None:
            return self.facts.role_of_class(local)
        if isinstance(node.func, ast.Attribute) and not name:
            return self._method(node, node.func)
        if (
            isinstance(node.func, ast.Name)
            and node.func.id in ("iter", "next", "list", "sorted", "reversed")
            and node.args
        ):
            inner = self.of(node.args[0])
            return "batch" if inner == "loader" and node.func.id == "next" else inner
        if isinstance(node.func, ast.Name) and node.func.id in ("float", "int", "len", "round", "bool"):
            return "number"
        return self._applied(self.of(node.func))

    @staticmethod
    def _applied(role: str) -> str:
        return {"module": "tensor", "loss_fn": "loss"}.get(role, "")

    def _imported_call(self, name: str, node: ast.Call) -> str:
        if name in tables.RETURNS:
            return tables.RETURNS[name]
        if name in self.facts.foreign:
            return self.facts.foreign[name]
        first, _, last = name.rpartition(".")
        if name in tables.WRAPS and node.args:
            return self.of(node.args[0])
        if last in ("Parameter", "Buffer") and first.startswith("torch.nn"):
            return "tensor"
        if first == "torch.nn" and last[:1].isupper():
            return "loss_fn" if last.endswith("Loss") else "module"
        if first == "torch.optim" and last[:1].isupper():
            return "optimizer"
        if first == "torch.nn.functional":
            return "loss" if last.endswith("_loss") or last == "cross_entropy" else "tensor"
        if last == "from_pretrained":
            return (
                "tokenizer"
                if re.search(r"Tokenizer|Processor", first)
                else ""
                if "Config" in first
                else "module"
            )
        if first in ("torchvision.models", "timm"):
            return "module"
        if first.startswith("torchvision.datasets") or first == "torchvision.datasets":
            return "dataset"
        if first == "torch":
            return self._torch(last, node)
        return self._array(first, last, node)

    @staticmethod
    def _array(first: str, last: str, node: ast.Call) -> str:
        if first == "np" and last == "load" and node.args and isinstance(node.args[0], ast.Constant):
            return "array" if str(node.args[0].value).endswith(".npy") else ""
        is_plain = last not in ("default_rng", "RandomState", "seed", "load", "save")
        return "array" if first in ("np", "np.random", "cv2") and is_plain else ""

    def _torch(self, last: str, node: ast.Call) -> str:
        if last in tables.NO_TENSOR:
            return ""
        if last in tables.FACTORIES:
            return "tensor" if any(k.arg == "device" for k in node.keywords) else "host"
        if last[:1].isupper():
            return "host" if last.endswith("Tensor") else ""
        if not node.args:
            return "tensor"
        roles = [self.of(argument) for argument in node.args[:3]]
        if roles[0] == "tensors" and isinstance(node.args[0], ast.List | ast.Tuple):
            roles = [self.of(one) for one in node.args[0].elts]
        if "host" in roles and not ON_DEVICE.intersection(roles):
            return "host"
        return "loss" if "loss" in roles else "batch" if roles[0] == "batch" else "tensor"

    def _method(self, node: ast.Call, function: ast.Attribute) -> str:
        role, method = self.of(function.value), function.attr
        if role in TENSORS:
            return self._tensor_method(node, role, method)
        if role == "module":
            if method in tables.MODULE_TO_MODULE:
                return "module"
            if method in tables.MODULE_TO_PARAMETERS:
                return "parameters"
            if method in ("forward", "generate", "encode", "decode"):
                return "tensor"
            return (
                self._applied(self.of(function))
                if self._conventional(method) == "module"
                else self._submodule(function)
            )
        if role in ("loss_fn", "parameters") and method in ("to", "cuda"):
            return role
        if role == "array":
            return "number" if method in ("item", "tolist") else "array"
        if role == "random":
            several = (method in tables.DRAWN and node.args) or any(
                one.arg == "size" for one in node.keywords
            )
            return "array" if several else "number"
        if method == "item":
            return "number"
        if method == "numpy":
            return "array"
        return self._applied(self.of(function))

    def _submodule(self, function: ast.Attribute) -> str:
        if isinstance(function.value, ast.Name) and function.value.id == "self":
            return self._applied(self.of(function))
        return ""

    def _tensor_method(self, node: ast.Call, role: str, method: str) -> str:
        if method in ("to", "cuda"):
            where = (
                node.args[0]
                if node.args
                else next((k.value for k in node.keywords if k.arg == "device"), None)
            )
            if isinstance(where, ast.Constant) and where.value == "cpu":
                return "host"
            if where is not None and self.facts.name_of(where).startswith("torch."):
                return role  # a dtype
            return "loss" if role == "loss" else "tensor"
        if method == "cpu":
            return "host"
        if method == "numpy":
            return "array"
        if method == "detach" and role == "loss":
            return "tensor"
        if method in tables.TENSOR_TO_NUMBER:
            return "number"
        return "tensors" if method in ("split", "chunk", "unbind") else role
