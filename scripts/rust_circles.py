"""Prints the circles between the modules of the crate in `native/src`; exit code 1 where there is one.

    python scripts/rust_circles.py [FOLDER]

A module needs another where it names an item of it, by `use` or by a path; what a module passes on by `use` counts for
the module that defines it. Tests inside a file do not count.
"""

from __future__ import annotations

import re
import sys
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Final

ROOT: Final = Path(__file__).resolve().parent.parent
CRATE: Final = ROOT / "native" / "src"
_LINE_COMMENT: Final = re.compile(r"//[^\n]*")
_STRING: Final = re.compile(r'b?"(?:\\.|[^"\\])*"', re.DOTALL)
_TESTS: Final = re.compile(r"#\[cfg\(test\)\]\s*(?:pub(?:\(\w+\))?\s+)?mod\s+\w+\s*\{")
_CHILD: Final = re.compile(r"^(?:pub(?:\([^)]*\))?\s+)?mod\s+(\w+)\s*;", re.MULTILINE)
_USE: Final = re.compile(r"^\s*(?:pub(?:\([^)]*\))?\s+)?use\s+([^;]+);", re.MULTILINE)
_PATH: Final = re.compile(r"(?<![\w:])(\w+(?:::\w+)+)")

Names = tuple[str, ...]


@dataclass(slots=True)
class Module:
    """A file of the crate: its children, what it brings into scope, and the paths that it names."""

    children: set[str] = field(default_factory=set)
    brought: dict[str, Names] = field(default_factory=dict)
    everything_of: list[Names] = field(default_factory=list)
    paths: list[Names] = field(default_factory=list)


def without_tests(text: str) -> str:
    """The code of a file without comments, strings and its `cfg(test)` modules."""
    text = _LINE_COMMENT.sub("", _STRING.sub('""', text))
    while found := _TESTS.search(text):
        depth, end = 1, found.end()
        while depth and end < len(text):
            depth += {"{": 1, "}": -1}.get(text[end], 0)
            end += 1
        text = text[: found.start()] + text[end:]
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
        module = modules[here] = Module(children=set(_CHILD.findall(text)))
        for tree in _USE.findall(text):
            for path, name in leaves(tree):
                module.paths.append(path)
                if name == "*":
                    module.everything_of.append(path)
                else:
                    module.brought[name] = path
        module.paths += [tuple(path.split("::")) for path in _PATH.findall(_USE.sub("", text))]
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
    """For each module those whose items it names."""
    return {
        here: {
            to for path in module.paths if (to := defining(modules, here, path)) is not None and to != here
        }
        for here, module in modules.items()
    }


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


def main() -> int:
    folder = Path(sys.argv[1]) if len(sys.argv) > 1 else CRATE
    graph = needs(read(folder))
    found = circles(graph)
    for group in found:
        print(f"{len(group)} modules need each other:")
        for name in group:
            inside = sorted("::".join(to) or "crate" for to in graph[name] if to in group)
            print(f"  {'::'.join(name) or 'crate'} -> {' '.join(inside)}")
    return 1 if found else 0


if __name__ == "__main__":
    sys.exit(main())
