"""Files of one run together: which imported function is hot, takes a step, or makes a module."""

from __future__ import annotations

import ast
from collections.abc import Iterable, Iterator
from pathlib import PurePath

from unidle.tune.analysis.source import SourceFacts
from unidle.tune.analysis.walk import FunctionFacts

_ROUNDS = 4


class Project:
    """The files of a run by the names under which others import them."""

    def __init__(self, files: Iterable[SourceFacts]) -> None:
        self._files = list(files)
        self._modules: dict[str, SourceFacts | None] = {}
        for facts in self._files:
            for name in _module_names(facts.path):
                # the same name twice: unclear, so none
                self._modules[name] = None if name in self._modules else facts

    def link(self) -> None:
        """Tell each file what others show of the functions and classes that it imports and defines."""
        for facts in self._files:
            self._classes(facts)
        calls = [(facts, call, *target) for facts in self._files for call, target in self._calls(facts)]
        for _ in range(_ROUNDS):
            changed = False
            for facts, call, other, function in calls:
                if function in other.hot_code.step_functions and call not in facts.hot_code.step_calls:
                    facts.hot_code.add_step_calls([call], [])
                    changed = True
                if not function.hot and facts.hot(call):
                    other.hot_code.add_step_calls([], [function])
                    changed = True
            if not changed:
                return

    def _classes(self, facts: SourceFacts) -> None:
        for node in facts.walk.imports:
            if not isinstance(node, ast.ImportFrom):
                continue
            for alias in node.names:
                full = facts.names.imported(alias.asname or alias.name)
                other, name = self._found(full)
                owner = other.walk.classes.get(name) if other is not None else None
                if owner is not None and other is not None and (role := other.role_of_class(owner)):
                    facts.foreign[full] = role
        if facts.foreign:
            facts.roles.forget()

    def _calls(self, facts: SourceFacts) -> Iterator[tuple[ast.Call, tuple[SourceFacts, FunctionFacts]]]:
        for full, calls in facts.named.items():
            other, name = self._found(full)
            if other is None or other is facts or name not in other.walk.top.functions:
                continue
            for call in calls:
                yield call, (other, other.walk.top.functions[name])

    def _found(self, full: str) -> tuple[SourceFacts | None, str]:
        """The file and the name in it that a full name means."""
        module, _, name = full.lstrip(".").rpartition(".")
        return self._modules.get(module), name


def _module_names(path: str) -> Iterator[str]:
    """``a/b/c.py``: ``c``, ``b.c``, ``a.b.c``."""
    parts = list(PurePath(path).with_suffix("").parts)
    if parts and parts[-1] == "__init__":
        parts.pop()
    for start in range(len(parts) - 1, max(-1, len(parts) - 5), -1):
        yield ".".join(parts[start:])
