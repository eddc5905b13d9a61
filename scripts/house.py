"""Counts what makes the code hard to read, and fails where a count rises above scripts/house.txt.

    python scripts/house.py            every new entry, with what to do; exit code 1 where there is one
    python scripts/house.py --count    how many entries of each kind
    python scripts/house.py --write    write house.txt again; refused while the count of a kind is higher than there

The kinds and their limits are the table ``KINDS``. Which room may import which is checked by import-linter.

A circle is made of imports that run when a module is imported, without those for type checkers. An import also runs
``__init__`` of each package above the module, unless the importer is in that package.
"""

from __future__ import annotations

import argparse
import ast
import gc
import sys
from collections import Counter, defaultdict
from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import NamedTuple

ROOT = Path(__file__).resolve().parent.parent
LIST = Path("scripts") / "house.txt"
SOURCE = "src"
PACKAGE = "unidle"
READ = (f"{SOURCE}/{PACKAGE}", "bench", "scripts", "tests")
NOT_READ = ("tests/programs",)  # as other people write them
QUALIFIED = ("unidle.hub.frames",)  # the others write `frames.Start`, which says what sets the class apart
LONGEST_FUNCTION = 40
MOST_PARAMETERS = 8
LONGEST_FILE = 400

Function = ast.FunctionDef | ast.AsyncFunctionDef


class File(NamedTuple):
    path: str
    lines: int
    tree: ast.Module

    @property
    def module(self) -> str:
        """Its dotted name, or nothing outside of the package."""
        if not self.path.startswith(f"{SOURCE}/"):
            return ""
        name = self.path.removeprefix(f"{SOURCE}/").removesuffix(".py").replace("/", ".")
        return name.removesuffix(".__init__")


class Kind(NamedTuple):
    name: str
    remedy: str


LONG_FUNCTION = Kind(f"functions over {LONGEST_FUNCTION} lines", "split it")
PARAMETERS = Kind(
    f"functions with more than {MOST_PARAMETERS} parameters", "pass a dataclass that holds them"
)
LONG_FILE = Kind(f"files over {LONGEST_FILE} lines", "move one of its subjects to a file of its own")
CIRCLE = Kind("modules in an import circle", "move what both need to a module below them")
CLASS_NAME = Kind("public class names used more than once", "name what sets it apart")
KINDS = (LONG_FUNCTION, PARAMETERS, LONG_FILE, CIRCLE, CLASS_NAME)

Entries = dict[Kind, set[str]]


def read(root: Path = ROOT) -> list[File]:
    gc.disable()  # all trees are kept: looking for garbage between them is two thirds of the time
    files = []
    for folder in READ:
        for path in sorted((root / folder).rglob("*.py")):
            name = path.relative_to(root).as_posix()
            if not name.startswith(NOT_READ):
                text = path.read_text(encoding="utf-8")
                files.append(File(name, len(text.splitlines()), ast.parse(text)))
    gc.enable()
    return files


def found(files: list[File]) -> Entries:
    entries: Entries = {kind: set() for kind in KINDS}
    for file in files:
        if file.lines > LONGEST_FILE:
            entries[LONG_FILE].add(file.path)
        for name, function in _functions(file.tree):
            entry = f"{file.path} {name}"
            if (function.end_lineno or 0) - function.lineno + 1 > LONGEST_FUNCTION:
                entries[LONG_FUNCTION].add(entry)
            if _parameters(function) > MOST_PARAMETERS and not _only_annotates(function):
                entries[PARAMETERS].add(entry)
    entries[CIRCLE] = _in_circles(_imports(files))
    entries[CLASS_NAME] = _repeated_classes(files)
    return entries


def _functions(tree: ast.AST, prefix: str = "") -> Iterator[tuple[str, Function]]:
    for node in ast.iter_child_nodes(tree):
        if isinstance(node, Function | ast.ClassDef):
            name = f"{prefix}{node.name}"
            if isinstance(node, Function):
                yield name, node
            yield from _functions(node, f"{name}.")
        else:
            yield from _functions(node, prefix)


def _parameters(function: Function) -> int:
    arguments = function.args
    named = [*arguments.posonlyargs, *arguments.args, *arguments.kwonlyargs]
    return sum(each.arg not in ("self", "cls") for each in named)


def _only_annotates(function: Function) -> bool:
    """An overload repeats the parameters of the function that it describes."""
    return any(isinstance(each, ast.Name) and each.id == "overload" for each in function.decorator_list)


def _repeated_classes(files: list[File]) -> set[str]:
    modules = defaultdict(list)
    by_name = {name.rpartition(".")[0] for file in files for name in _named(file)}
    qualified = set(QUALIFIED) - by_name
    for file in files:
        for node in file.tree.body:
            if (
                file.module
                and file.module not in qualified
                and isinstance(node, ast.ClassDef)
                and not node.name.startswith("_")
            ):
                modules[node.name].append(file.path)
    return {f"{path} {name}" for name, paths in modules.items() if len(paths) > 1 for path in paths}


def _imports(files: list[File]) -> dict[str, set[str]]:
    """The modules whose code each module runs when it is imported."""
    paths = {file.module: file for file in files if file.module}
    return {module: set(_imported(file, paths)) - {module} for module, file in paths.items()}


def _imported(file: File, modules: Iterable[str]) -> Iterator[str]:
    packages = _above(file.module) | {file.module}
    for name in _named(file):
        target = name if name in modules else name.rpartition(".")[0]
        if target in modules:
            yield target
            yield from _above(target) - packages


def _above(module: str) -> set[str]:
    parts = module.split(".")
    return {".".join(parts[:end]) for end in range(1, len(parts))}


def _named(file: File) -> Iterator[str]:
    """The dotted names that the imports of a module name: of modules, or of what is in them."""
    for node in _run_on_import(file.tree):
        if isinstance(node, ast.Import):
            yield from (alias.name for alias in node.names)
        elif isinstance(node, ast.ImportFrom):
            base = node.module or ""
            if node.level:
                package = file.module if file.path.endswith("__init__.py") else file.module.rpartition(".")[0]
                parts = package.split(".")
                base = ".".join([*parts[: len(parts) + 1 - node.level], *([base] if base else [])])
            yield from (f"{base}.{alias.name}" for alias in node.names)


def _run_on_import(node: ast.AST) -> Iterator[ast.AST]:
    if isinstance(node, Function | ast.Lambda):
        return
    yield node
    children = list(ast.iter_child_nodes(node))
    if isinstance(node, ast.If) and "TYPE_CHECKING" in ast.unparse(node.test):
        children = list(node.orelse)
    for child in children:
        yield from _run_on_import(child)


def _in_circles(imports: dict[str, set[str]]) -> set[str]:
    """The modules that import themselves, through others."""
    reached = {module: set(targets) for module, targets in imports.items()}
    for middle, onward in reached.items():
        for targets in reached.values():
            if middle in targets:
                targets |= onward
    return {module for module, targets in reached.items() if module in targets}


def stored(text: str) -> Entries:
    kinds = {kind.name: kind for kind in KINDS}
    entries: Entries = {kind: set() for kind in KINDS}
    into: set[str] = set()
    for line in text.splitlines():
        if line.startswith("# "):
            into = entries[kinds[line.removeprefix("# ")]]
        elif line:
            into.add(line)
    return entries


def written(entries: Entries) -> str:
    parts = ["\n".join([f"# {kind.name}", *sorted(entries[kind])]) for kind in KINDS]
    return "\n\n".join(parts) + "\n"


def complaints(now: Entries, before: Entries) -> Iterator[str]:
    """What to do about each kind: the entry, the counts and the remedy."""
    for kind in KINDS:
        new, gone = sorted(now[kind] - before[kind]), sorted(before[kind] - now[kind])
        counts = f"{kind.name}: {len(now[kind])}, {len(before[kind])} in {LIST}"
        if len(now[kind]) > len(before[kind]):
            yield from (f"{counts}; new: {entry}; {kind.remedy}" for entry in new)
        elif new or gone:
            changed = f"new name: {new[0]}" if new else f"no longer one: {gone[0]}"
            yield f"{counts}; {changed}; run python scripts/house.py --write"


def main(arguments: list[str] | None = None, root: Path = ROOT) -> int:
    parser = argparse.ArgumentParser(description="Fail where the code becomes harder to read.")
    parser.add_argument("--count", action="store_true", help="print the number of entries of each kind")
    parser.add_argument(
        "--write", action="store_true", help="write house.txt again, with no count higher than before"
    )
    options = parser.parse_args(arguments)
    now = found(read(root))
    file = root / LIST
    before = stored(file.read_text(encoding="utf-8"))
    if options.count:
        for kind in KINDS:
            names = len(Counter(entry.split()[-1] for entry in now[CLASS_NAME]))
            more = f", {names} names" if kind is CLASS_NAME else ""
            print(f"{len(now[kind]):5}  {kind.name}{more}")
        return 0
    if options.write and all(len(now[kind]) <= len(before[kind]) for kind in KINDS):
        file.write_text(written(now), encoding="utf-8")
        return 0
    lines = list(complaints(now, before))
    print("\n".join(lines), end="\n" * bool(lines))
    return 1 if lines else 0


if __name__ == "__main__":
    sys.exit(main())
