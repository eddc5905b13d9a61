"""Full names of what a file imports: ``nn.Linear`` is ``torch.nn.Linear`` after ``from torch import nn``."""

from __future__ import annotations

import ast
import re
from collections.abc import Iterable
from typing import Final

_CANONICAL: Final = (
    (re.compile(r"^(?:pytorch_lightning|lightning\.pytorch|lightning\.fabric)\b"), "lightning"),
    (re.compile(r"^lightning\.(?:core|trainer)(?:\.\w+)*\.(?=[A-Z])"), "lightning."),
    (re.compile(r"^torch\.utils\.data\.(?:dataloader|dataset|distributed|sampler)\.(?=[A-Z])"), "torch.utils.data."),
    (re.compile(r"^torch\.optim\.(?!lr_scheduler|swa_utils)[a-z_0-9]+\.(?=[A-Z])"), "torch.optim."),
    (re.compile(r"^torch\.nn\.(?:modules\.)?(?:modules|parallel)(?:\.\w+)*\.(?=[A-Z])"), "torch.nn."),
    (re.compile(r"^torch\.nn\.modules\.\w+\.(?=[A-Z])"), "torch.nn."),
    (re.compile(r"^torch\.(?:special|linalg)\.(?=softmax$|log_softmax$)"), "torch."),
    (re.compile(r"^torch\.distributed\.distributed_c10d\."), "torch.distributed."),
    (re.compile(r"^transformers\.(?:trainer|training_args|models(?:\.\w+)*|pipelines)\.(?=[A-Z])"), "transformers."),
    (re.compile(r"^tqdm\.(?:auto|notebook|autonotebook|std|rich)\."), "tqdm."),
    (re.compile(r"^torch\.(?:cuda\.amp|amp\.grad_scaler|amp\.autocast_mode)\."), "torch.amp."),
    (re.compile(r"^numpy\b"), "np"),
)  # fmt: skip


def canonical(name: str) -> str:
    """One name for what a library exports under several."""
    for pattern, instead in _CANONICAL:
        name = pattern.sub(instead, name)
    return name


class ImportedNames:
    """The imports of a file, and names that are bound once to something imported (``DL = torch.utils.data.DataLoader``)."""

    def __init__(
        self, imports: Iterable[ast.Import | ast.ImportFrom], assigned: dict[str, list[ast.expr]]
    ) -> None:
        self.modules: set[str] = set()
        """First words of all imported modules."""
        self._by_name: dict[str, str] = {}
        self._cache: dict[ast.AST, str] = {}
        for node in imports:
            self._add(node)
        for name, values in assigned.items():
            if (
                len(values) == 1
                and name not in self._by_name
                and isinstance(values[0], ast.Name | ast.Attribute)
            ):
                full = self.of(values[0])
                if full and "." in full:
                    self._by_name[name] = full
        self._cache.clear()

    def _add(self, node: ast.Import | ast.ImportFrom) -> None:
        if isinstance(node, ast.Import):
            for alias in node.names:
                self.modules.add(alias.name.partition(".")[0])
                if alias.asname:
                    self._by_name[alias.asname] = alias.name
                else:
                    first = alias.name.partition(".")[0]
                    self._by_name[first] = first
            return
        base = "." * node.level + (node.module or "")
        self.modules.add(base.partition(".")[0])
        for alias in node.names:
            joint = "" if base.endswith(".") or not base else "."
            self._by_name[alias.asname or alias.name] = f"{base}{joint}{alias.name}"

    def imported(self, name: str) -> str:
        """The full name of a plain name that is imported, else nothing."""
        return self._by_name.get(name, "")

    def of(self, node: ast.AST) -> str:
        """The full name of ``a.b.c``; nothing if ``a`` is not imported."""
        known = self._cache.get(node)
        if known is None:
            known = self._cache[node] = self._resolved(node)
        return known

    def _resolved(self, node: ast.AST) -> str:
        parts: list[str] = []
        while isinstance(node, ast.Attribute):
            parts.append(node.attr)
            node = node.value
        if not isinstance(node, ast.Name) or node.id not in self._by_name:
            return ""
        return canonical(".".join([self._by_name[node.id], *reversed(parts)]))
