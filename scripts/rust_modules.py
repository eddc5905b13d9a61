"""Prints circles between the modules of the crate in `native/src`, and public types of one name; exit code 1 where there
are any.

    python scripts/rust_modules.py [FOLDER]

A module needs another where it names an item of it, by `use` or by a path; what a module passes on by `use` counts for
the module that defines it. Where the methods of a type stand in several files, a file also needs those whose methods it
calls by `self`. Tests inside a file do not count.
"""

from __future__ import annotations

import re
import sys
from collections import defaultdict
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Final

ROOT: Final = Path(__file__).resolve().parent.parent
CRATE: Final = ROOT / "native" / "src"
_NO_CODE: Final = re.compile(
    r'//[^\n]*|r(#*)".*?"\1|b?"(?:\\.|[^"\\])*"|b?\'(?:\\[^\']+|[^\'\\])\'', re.DOTALL
)
_TESTS: Final = re.compile(r"#\[cfg\(test\)\]\s*(?:pub(?:\(\w+\))?\s+)?mod\s+\w+\s*\{")
_CHILD: Final = re.compile(r"^(?:pub(?:\([^)]*\))?\s+)?mod\s+(\w+)\s*;", re.MULTILINE)
_USE: Final = re.compile(r"^\s*(?:pub(?:\([^)]*\))?\s+)?use\s+([^;]+);", re.MULTILINE)
_INNER: Final = re.compile(r"^(?:pub(?:\([^)]*\))?\s+)?mod\s+\w+\s*\{", re.MULTILINE)
_TYPE: Final = re.compile(r"^\s*pub(?:\([^)]*\))?\s+(?:struct|enum|trait|type|union)\s+(\w+)", re.MULTILINE)
_IMPL: Final = re.compile(r"^impl(?:<[^>]*>)?\s+(\w+)(?:<[^>]*>)?\s*\{", re.MULTILINE)
_METHOD: Final = re.compile(r"\bfn\s+(\w+)")
_CALLED: Final = re.compile(r"\b(?:self\.|Self::)(\w+)\(")
_PATH: Final = re.compile(r"(?<![\w:])(\w+(?:::\w+)+)")

Names = tuple[str, ...]


@dataclass(slots=True)
class Module:
    """A file of the crate: its children, what it brings into scope, and the paths that it names."""

    children: set[str] = field(default_factory=set)
    brought: dict[str, Names] = field(default_factory=dict)
    paths: list[Names] = field(default_factory=list)
    types: list[str] = field(default_factory=list)  # public ones
    methods: dict[str, set[str]] = field(default_factory=dict)  # by type, of those that belong to no trait
    called: dict[str, set[str]] = field(default_factory=dict)  # by type, on `self`


def block(text: str, start: int) -> int:
    """Where the braces end that begin right before `start`."""
    depth = 1
    while depth and start < len(text):
        depth += {"{": 1, "}": -1}.get(text[start], 0)
        start += 1
    return start


def without_tests(text: str) -> str:
    """The code of a file without comments, strings and its `cfg(test)` modules."""
    text = _NO_CODE.sub("", text)
    while found := _TESTS.search(text):
        text = text[: found.start()] + text[block(text, found.end()) :]
    for found in reversed([*_INNER.finditer(text)]):  # what stands there is this file's
        end = block(text, found.end())
        text = text[: found.start()] + text[found.end() : end - 1].replace("super::", "self::") + text[end:]
    return text


def split_list(text: str) -> Iterator[str]:
    """The parts of `text` between commas that stand in no braces."""
    depth, start = 0, 0
    for at, char in enumerate(text):
        depth += {"{": 1, "}": -1}.get(char, 0)
        if char == "," and depth == 0:
            yield text[start:at].strip()
            start = at + 1
    yield text[start:].strip()


def leaves(tree: str) -> Iterator[tuple[Names, str]]:
    """Each path of a `use`, with the name that it gets (`*`: all names)."""
    head, brace, inner = tree.partition("{")
    if brace:
        before = tuple(part for part in head.strip().split("::") if part)
        for part in split_list(inner.rstrip()[:-1]):
            for path, name in leaves(part) if part else ():
                yield (
                    (before, name if name != "self" else before[-1])
                    if path == ("self",)
                    else ((*before, *path), name)
                )
        return
    whole, _, name = (part.strip() for part in tree.partition(" as "))
    parts = tuple(whole.split("::"))
    yield (parts[:-1], "*") if parts[-1] == "*" else (parts, name or parts[-1])


def read(folder: Path) -> dict[Names, Module]:
    """Every file of the crate, by its path of modules; the root has the empty one."""
    modules: dict[Names, Module] = {}
    for file in sorted(folder.rglob("*.rs")):
        names = file.relative_to(folder).with_suffix("").parts
        here = () if names == ("lib",) else names[:-1] if names[-1] == "mod" else names
        text = without_tests(file.read_text(encoding="utf-8"))
        module = modules[here] = Module(children=set(_CHILD.findall(text)), types=_TYPE.findall(text))
        for use in _USE.findall(text):
            for path, name in leaves(use):
                module.paths.append(path)
                if name != "*":
                    module.brought[name] = path
        for start in _IMPL.finditer(text):
            body, kind = text[start.end() : block(text, start.end())], start[1]
            module.methods.setdefault(kind, set()).update(_METHOD.findall(body))
            module.called.setdefault(kind, set()).update(_CALLED.findall(body))
        module.paths += [tuple(found.split("::")) for found in _PATH.findall(_USE.sub("", text))]
    return modules


def defining(
    modules: Mapping[Names, Module],
    here: Names,
    path: Names,
    seen: frozenset[tuple[Names, Names]] = frozenset(),
) -> Names | None:
    """The module that defines what `path` names inside `here`; None for another crate's."""
    if (here, path) in seen:
        return None
    seen |= {(here, path)}
    at, rest = here, path
    if path[0] == "crate":
        at, rest = (), path[1:]
    elif path[0] in {"self", "super"}:
        while rest and rest[0] in {"self", "super"}:
            at, rest = (at[:-1] if rest[0] == "super" else at), rest[1:]
    elif path[0] not in modules[here].children:
        brought = modules[here].brought.get(path[0])
        return defining(modules, here, (*brought, *path[1:]), seen) if brought and brought != path else None
    while rest and (*at, rest[0]) in modules:
        at, rest = (*at, rest[0]), rest[1:]
    if not rest:
        return at
    if passed_on := modules[at].brought.get(rest[0]):
        return defining(modules, at, (*passed_on, *rest[1:]), seen)
    return at


def needs(modules: Mapping[Names, Module]) -> dict[Names, set[Names]]:
    """For each module those whose items it names, or whose methods it calls."""
    found: dict[Names, set[Names]] = {}
    owners: dict[tuple[Names, str], dict[str, Names]] = defaultdict(dict)
    for here, module in modules.items():
        for kind, methods in module.methods.items():
            owners[owner(modules, here, kind)].update(dict.fromkeys(methods, here))
    for here, module in modules.items():
        named = {defining(modules, here, path) for path in module.paths}
        for kind, called in module.called.items():
            named |= {owners[owner(modules, here, kind)].get(method) for method in called}
        found[here] = {to for to in named if to is not None and to != here}
    return found


def owner(modules: Mapping[Names, Module], here: Names, kind: str) -> tuple[Names, str]:
    """The module that defines a type, and its name there."""
    path = modules[here].brought.get(kind)
    to = defining(modules, here, path) if path else None
    return (here, kind) if to is None or path is None else (to, path[-1])


def circles(graph: Mapping[Names, Iterable[Names]]) -> list[list[Names]]:
    """Groups of modules that need each other, each sorted (Tarjan's strongly connected components)."""
    order: dict[Names, int] = {}
    low: dict[Names, int] = {}
    stack: list[Names] = []
    found: list[list[Names]] = []

    def visit(node: Names) -> None:
        order[node] = low[node] = len(order)
        stack.append(node)
        for to in graph[node]:
            if to not in order:
                visit(to)
                low[node] = min(low[node], low[to])
            elif to in stack:
                low[node] = min(low[node], order[to])
        if low[node] == order[node]:
            group = stack[stack.index(node) :]
            del stack[-len(group) :]
            if len(group) > 1:
                found.append(sorted(group))

    for node in graph:
        if node not in order:
            visit(node)
    return found


def used_twice(modules: Mapping[Names, Module]) -> dict[str, list[Names]]:
    """Names of public types that several modules define, and those modules."""
    found: dict[str, list[Names]] = defaultdict(list)
    for here, module in modules.items():
        for name in module.types:
            found[name].append(here)
    return {name: places for name, places in sorted(found.items()) if len(places) > 1}


def faults(folder: Path) -> list[str]:
    """One line for each circle and for each name that is used twice."""

    def names(modules: Iterable[Names]) -> str:
        return ", ".join("::".join(module) or "crate" for module in modules)

    modules = read(folder)
    lines = [f"circle: {names(group)}" for group in circles(needs(modules))]
    return lines + [f"{name} is defined in {names(places)}" for name, places in used_twice(modules).items()]


def main() -> int:
    found = faults(Path(sys.argv[1]) if len(sys.argv) > 1 else CRATE)
    for line in found:
        print(line)
    return 1 if found else 0


if __name__ == "__main__":
    sys.exit(main())
