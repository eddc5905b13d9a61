"""Do the tests of the policies notice a changed line? A sample of small changes, each with the tests that run its line.

    python scripts/mutants.py --count 200 --seed 1

The rooms' tests run once under `coverage`, which records the tests of each line. Then one operator, constant or branch is
changed at a time, in a copy of the tree. A change is noticed if one of these tests fails or runs out of time. A line that
no test runs counts as not noticed. Exit code 1 below ``--least``.
"""

from __future__ import annotations

import argparse
import ast
import os
import random
import shutil
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import NamedTuple

ROOT = Path(__file__).resolve().parent.parent
ROOMS = {
    "place": ("place", "pack"),
    "guard": ("guard",),
    "ledger": ("ledger",),
    "span": ("span",),
}
"""The folders of ``tests`` for each room."""
PURE_SPAN = ("model", "simulate", "plan", "replan")
COPIED = ("src", "tests", "examples", "bench", "scripts", "pyproject.toml", "docs", "deploy", "packaging")
MOST_TESTS = 40  # of a line: the shortest of them
LEAST_S = 20.0

SWAPS: dict[type[ast.AST], tuple[str, ...]] = {
    ast.Lt: ("<=",), ast.LtE: ("<",), ast.Gt: (">=",), ast.GtE: (">",), ast.Eq: ("!=",), ast.NotEq: ("==",),
    ast.In: ("not in",), ast.NotIn: ("in",), ast.Is: ("is not",), ast.IsNot: ("is",),
    ast.Add: ("-",), ast.Sub: ("+",), ast.Mult: ("+",), ast.Div: ("*",), ast.FloorDiv: ("*",), ast.Mod: ("*",),
    ast.And: ("or",), ast.Or: ("and",),
}  # fmt: skip


class Mutant(NamedTuple):
    path: str
    line: int
    before: str
    after: str
    start: int  # bytes of the file
    end: int

    def __str__(self) -> str:
        return f"{self.path}:{self.line}: {self.before}  ->  {self.after}"


class Outcome(NamedTuple):
    mutant: Mutant
    noticed: bool
    how: str


def mutants(path: Path, root: Path) -> Iterator[Mutant]:
    """Every change of the file."""
    text = path.read_bytes()
    starts = [0]
    for line in text.splitlines(keepends=True):
        starts.append(starts[-1] + len(line))
    for node in _policy(ast.parse(text)):
        for whole, changed in _changes(node):
            assert whole.end_lineno is not None
            assert whole.end_col_offset is not None
            start = starts[whole.lineno - 1] + whole.col_offset
            end = starts[whole.end_lineno - 1] + whole.end_col_offset
            before = text[start:end].decode()
            name = path.relative_to(root).as_posix()
            yield Mutant(name, whole.lineno, " ".join(before.split()), changed, start, end)


def _policy(node: ast.AST) -> Iterator[ast.AST]:
    """Nodes whose change can change a decision: no annotations, default texts, imports, messages or assertions."""
    skipped = (ast.Import, ast.ImportFrom, ast.Raise, ast.Assert, ast.JoinedStr)
    for name, value in ast.iter_fields(node):
        if name in ("annotation", "returns", "decorator_list", "bases", "msg"):
            continue
        for child in value if isinstance(value, list) else [value]:
            if isinstance(child, ast.If) and "TYPE_CHECKING" in ast.unparse(child.test):
                continue
            if isinstance(child, ast.AST) and not isinstance(child, skipped):
                yield child
                yield from _policy(child)


def _changes(node: ast.AST) -> Iterator[tuple[ast.expr | ast.stmt, str]]:
    """What is replaced, and by what."""
    if isinstance(node, ast.Compare) and len(node.ops) == 1:
        for other in SWAPS.get(type(node.ops[0]), ()):
            yield node, f"({ast.unparse(node.left)} {other} {ast.unparse(node.comparators[0])})"
    elif isinstance(node, ast.BinOp):
        for other in SWAPS.get(type(node.op), ()):
            yield node, f"({ast.unparse(node.left)} {other} {ast.unparse(node.right)})"
    elif isinstance(node, ast.BoolOp):
        word = f" {SWAPS[type(node.op)][0]} "
        yield node, f"({word.join(f'({ast.unparse(value)})' for value in node.values)})"
    elif isinstance(node, ast.UnaryOp) and isinstance(node.op, ast.Not | ast.USub):
        yield node, f"({ast.unparse(node.operand)})"
    elif isinstance(node, ast.Constant) and type(node.value) is int:
        yield node, f"{node.value + 1}"
    elif isinstance(node, ast.Constant) and type(node.value) is bool:
        yield node, f"{not node.value}"
    elif isinstance(node, ast.IfExp):
        yield node, f"({ast.unparse(node.orelse)} if {ast.unparse(node.test)} else {ast.unparse(node.body)})"
    elif isinstance(node, ast.Call) and isinstance(node.func, ast.Name) and node.func.id in ("min", "max"):
        yield node.func, "max" if node.func.id == "min" else "min"
    elif isinstance(node, ast.Continue):
        yield node, "break"
    elif isinstance(node, ast.Return) and node.value is not None and not isinstance(node.value, ast.Constant):
        yield node, "return None"
    elif isinstance(node, ast.Expr) and isinstance(node.value, ast.Call):
        yield node, "pass"


def files_of(rooms: Sequence[str], root: Path) -> list[Path]:
    found: list[Path] = []
    for room in rooms:
        folder = root / "src" / "unidle" / room
        parts = [folder / part for part in PURE_SPAN] if room == "span" else [folder]
        found += [path for part in parts for path in sorted(part.rglob("*.py"))]
    return found


def traced(copy: Path, rooms: Sequence[str]) -> dict[str, dict[int, list[str]]]:
    """By file and line, the tests that run it. Errors: SystemExit if the tests fail as they are."""
    (copy / ".coveragerc").write_text(
        "[run]\ndynamic_context = test_function\nsource = src/unidle\ncore = ctrace\nrelative_files = true\n"
    )
    folders = [f"tests/{folder}" for room in rooms for folder in ROOMS[room]]
    done = _python(copy, "-m", "coverage", "run", "-m", "pytest", *_PYTEST, *folders, limit_s=3600)
    if done != 0:
        raise SystemExit(f"the tests of {', '.join(rooms)} fail before anything is changed: exit code {done}")
    from coverage import CoverageData

    data = CoverageData(str(copy / ".coverage"))
    data.read()
    return {
        Path(name).as_posix(): data.contexts_by_lineno(name)
        for name in data.measured_files()
    }  # fmt: skip


_PYTEST = ("-n", "0", "-q", "-x", "-p", "no:cacheprovider", "-m", "not slow and not nightly")


def _python(copy: Path, *words: str, limit_s: float) -> int | None:
    """Exit code; None: it ran out of time."""
    env = {**os.environ, "CI": "true", "PYTHONPATH": str(copy / "src"), "PYTHONDONTWRITEBYTECODE": "1"}
    if "PYTHONPATH" in os.environ:
        env["PYTHONPATH"] += f":{os.environ['PYTHONPATH']}"
    process = subprocess.Popen(
        [sys.executable, *words], cwd=copy, env=env, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL,
        start_new_session=True,
    )  # fmt: skip
    try:
        return process.wait(limit_s)
    except subprocess.TimeoutExpired:
        os.killpg(process.pid, 9)
        process.wait()
        return None


def selector(context: str, copy: Path) -> str | None:
    """pytest's name of a test that `coverage` calls ``place.test_x.test_y`` or ``place.test_x.Class.test_y``."""
    parts = context.split(".")
    for end in range(len(parts) - 1, 0, -1):
        path = Path("tests", *parts[:end]).with_suffix(".py")
        if (copy / path).is_file():
            return "::".join([path.as_posix(), *parts[end:]])
    return None


def outcome(mutant: Mutant, tests: Sequence[str], copy: Path) -> Outcome:
    if not tests:
        return Outcome(mutant, False, "no test runs the line")
    file = copy / mutant.path
    whole = file.read_bytes()
    file.write_bytes(whole[: mutant.start] + mutant.after.encode() + whole[mutant.end :])
    try:
        begin = time.monotonic()
        code = _python(copy, "-m", "pytest", *_PYTEST, *tests, limit_s=240)
        took = f"{len(tests)} tests, {time.monotonic() - begin:.0f} s"
    finally:
        file.write_bytes(whole)
    if code is None:
        return Outcome(mutant, True, f"out of time, {took}")
    if code not in (0, 1, 2):
        raise SystemExit(f"pytest ended with {code} for {mutant}")
    return Outcome(mutant, code != 0, took)


def main() -> int:
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--rooms", nargs="+", choices=ROOMS, default=list(ROOMS))
    parser.add_argument("--count", type=int, default=200)
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--least", type=float, default=0.9, help="share that has to be noticed")
    given = parser.parse_args()
    with tempfile.TemporaryDirectory(prefix="unidle-mutants-") as place:
        copy = Path(place)
        for name in COPIED:
            source = ROOT / name
            if source.is_dir():
                shutil.copytree(source, copy / name, ignore=shutil.ignore_patterns("__pycache__"))
            else:
                shutil.copy(source, copy / name)
        lines = traced(copy, given.rooms)
        all_of_them = [mutant for path in files_of(given.rooms, copy) for mutant in mutants(path, copy)]
        chosen = random.Random(given.seed).sample(all_of_them, min(given.count, len(all_of_them)))
        noticed = 0
        for number, mutant in enumerate(chosen, 1):
            contexts = sorted(set(lines.get(mutant.path, {}).get(mutant.line, [])) - {""})
            tests = [test for context in contexts if (test := selector(context, copy)) is not None]
            one = outcome(mutant, tests[:MOST_TESTS], copy)
            noticed += one.noticed
            print(f"{number:4} {'noticed' if one.noticed else 'NOT NOTICED'}  {mutant}  ({one.how})", flush=True)
    share = noticed / len(chosen)
    print(f"{noticed} of {len(chosen)} changes noticed ({share:.1%}), of {len(all_of_them):,} possible ones")
    return 0 if share >= given.least else 1


if __name__ == "__main__":
    sys.exit(main())
