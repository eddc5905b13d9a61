"""`scripts/mutants.py`: what is changed, that a change is noticed only by a test of its line, and what is kept."""

from __future__ import annotations

import importlib
import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[2]
sys.path.insert(0, str(ROOT / "scripts"))
kinds = importlib.import_module("mutant_kinds")
mutants = importlib.import_module("mutants")

CHANGES = {
    "return a < b": {"boundary: a < b -> a <= b", "negation: a < b -> a >= b"},
    "return a in b": {"negation: a in b -> a not in b"},
    "return a + b": {"arithmetic: a + b -> a - b"},
    "return a and b": {"boolean: a and b -> a or b"},
    "return not a": {"not: not a -> a"},
    "return max(a, b)": {"extreme: max(a, b) -> min(a, b)"},
    "return a[1]": {"constant: 1 -> 2", "constant: 1 -> 0"},
    "a.append(b)": {"no statement: a.append(b)"},
    "c = a": {"no statement: c = a"},
    "a -= b": {"arithmetic: a -= b -> a += b", "no statement: a -= b"},
    "if a:\n        return b\n    a.f()": {
        "return None: return b -> return None",
        "no return: return b",
        "no statement: a.f()",
    },
}
LEFT_ALONE = {
    "a text": "return f'{a + b}' + 'b'",
    "an error": "raise ValueError(a + 1)",
    "an assertion": "assert a < b",
    "a docstring": "'''a + 1'''",
    "a line of a log": "log.info(a + 1)",
    "an annotation": "c: 'a | b'",
}


@pytest.mark.parametrize("body", CHANGES)
def test_each_kind_of_change_is_made(body: str) -> None:
    source = f"def f(a, b):\n    {body}\n"
    found = {mutant.text for mutant in kinds.mutants(source, "f.py")}
    assert found - {f"return None: {body} -> return None"} == CHANGES[body]


@pytest.mark.parametrize("what", LEFT_ALONE)
def test_what_is_no_behaviour_is_left_alone(what: str) -> None:
    source = f"def f(a, b):\n    {LEFT_ALONE[what]}\n"
    assert {mutant.kind for mutant in kinds.mutants(source, "f.py")} <= {"return None"}


def test_what_runs_on_import_is_left_alone() -> None:
    assert not kinds.mutants("A = 1 + 2\nclass C:\n    b: int = 3\n", "f.py")


def test_a_mutant_is_one_change_of_the_code() -> None:
    source = "class C:\n    def f(self, a):\n        if a > 1:\n            return 10\n        return 20\n"
    values = set()
    for mutant in kinds.mutants(source, "f.py"):
        names: dict[str, type] = {}
        exec(kinds.built(source, mutant.number, "f.py"), names)
        values.add((mutant.text, names["C"]().f(1), names["C"]().f(2)))  # type: ignore[attr-defined]
    assert values == {
        ("boundary: a > 1 -> a >= 1", 10, 10),
        ("negation: a > 1 -> a <= 1", 10, 20),
        ("constant: 1 -> 2", 20, 20),
        ("constant: 1 -> 0", 10, 10),
        ("return None: return 10 -> return None", 20, None),
        ("no return: return 10", 20, 20),
        ("constant: 10 -> 11", 20, 11),
        ("constant: 10 -> 9", 20, 9),
        ("return None: return 20 -> return None", None, 10),
        ("constant: 20 -> 21", 21, 10),
        ("constant: 20 -> 19", 19, 10),
    }


def test_a_change_elsewhere_moves_no_mutant_of_the_sample() -> None:
    before = "def f(a):\n    return a + 1\n"
    after = "def g(a):\n    return a * 2 - 1\n\n\n" + before
    ranks = [
        {
            mutant.name: mutant.rank("seed")
            for mutant in kinds.mutants(source, "f.py")
            if mutant.function == "f"
        }
        for source in (before, after)
    ]
    assert ranks[0] == ranks[1]
    assert len(ranks[0]) == 4


def test_the_same_change_twice_has_two_names() -> None:
    names = [mutant.name for mutant in kinds.mutants("def f(a):\n    a += 1\n    a += 1\n", "f.py")]
    assert len(names) == len(set(names)) == 8


PRODUCT = """
from functools import cache


@cache
def price(count):
    if count > 10:
        return count * 2
    return count * 3


def unused(count):
    return count + 1
"""
ENDLESS = """
def rest(count):
    while count:
        count -= 1
    return count
"""
TESTS = """
from unidle.ledger.price import price

MANY = price(20)


def test_many():
    assert MANY == price(20) == 40


def test_few():
    assert price(1) == 3


def test_late():
    from unidle.ledger.late import double

    assert double(2) == 4
"""


@pytest.fixture
def checkout(tmp_path: Path) -> Path:
    """A checkout with one file of the product, one of its tests, and the scripts."""
    root = tmp_path / "checkout"
    for name, text in {
        "src/unidle/__init__.py": "",
        "src/unidle/ledger/__init__.py": "",
        "src/unidle/ledger/price.py": PRODUCT,
        "src/unidle/ledger/late.py": "def double(count):\n    return count + count\n",
        "tests/ledger/test_price.py": TESTS,
        "tests/conftest.py": "from hypothesis import settings\nsettings.register_profile('unidle')\n",
        "scripts/mutants_equivalent.txt": "",
        ".gitignore": ".cache\n__pycache__\n",
        "pyproject.toml": "[tool.pytest.ini_options]\nmarkers = ['slow', 'nightly']\n",
    }.items():
        path = root / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text)
    for name in ("mutants.py", "mutant_kinds.py", "mutant_tests.py"):
        (root / "scripts" / name).write_bytes((ROOT / "scripts" / name).read_bytes())
    subprocess.run(["git", "init", "-q"], cwd=root, check=True)
    return root


def _run(root: Path, *options: str) -> subprocess.CompletedProcess[str]:
    command = [sys.executable, root / "scripts" / "mutants.py", "ledger", *options]
    environment = {name: value for name, value in os.environ.items() if not name.startswith("PYTEST")}
    return subprocess.run(command, cwd=root, env=environment, capture_output=True, text=True)


def _row(done: subprocess.CompletedProcess[str]) -> list[str]:
    assert done.stdout, done.stderr
    return next(line for line in done.stdout.splitlines() if line.startswith("ledger  ")).split()[2:]


def test_survivors_are_printed_and_a_second_run_tries_only_what_changed(checkout: Path) -> None:
    done = _run(checkout, "--count", "100")
    boundary = "src/unidle/ledger/price.py price: boundary: count > 10 -> count >= 10"
    survived = [line for line in done.stdout.splitlines() if line.startswith("survived: ")]
    assert f"survived: {boundary}  (line 7)" in survived, done.stdout + done.stderr
    assert any("unused" in line and line.endswith("no test runs it") for line in survived)
    assert "killed by tests/ledger/test_price.py::test_few" in done.stderr
    assert "late.py double: arithmetic: count + count -> count - count: killed by" in done.stderr
    assert done.returncode == 1
    assert (checkout / "src/unidle/ledger/price.py").read_text() == PRODUCT
    killed, alive, _, errors, _ = _row(done)
    assert errors == "0"

    again = _run(checkout, "--count", "100")
    assert (again.stdout, "killed by" in again.stderr) == (done.stdout, False)

    test = checkout / "tests/ledger/test_price.py"
    test.write_text(TESTS + "\n\ndef test_bound():\n    assert price(10) == 30\n    assert price(11) == 22\n")
    better = _run(checkout, "--count", "100")
    assert boundary not in better.stdout
    assert int(_row(better)[0]) > int(killed)
    assert int(_row(better)[1]) < int(alive)


def test_listed_mutants_are_not_counted_and_need_a_reason(checkout: Path) -> None:
    listed = checkout / "scripts/mutants_equivalent.txt"
    survivor = "src/unidle/ledger/price.py price: boundary: count > 10 -> count >= 10"
    killed = "src/unidle/ledger/price.py price: negation: count > 10 -> count <= 10"
    listed.write_text(f"{survivor}\n    The price is the same.\n{killed}\n")
    done = _run(checkout, "--count", "100", "--least", "0")
    assert f"survived: {survivor}" not in done.stdout
    assert f"listed as equivalent, but killed: {killed}" in done.stdout
    assert f"listed without a reason: {killed}" in done.stdout
    assert _row(done)[2] == "2"
    assert done.returncode == 1

    listed.write_text(f"{survivor}\n    The price is the same.\n")
    assert _run(checkout, "--count", "100", "--least", "0").returncode == 0


@pytest.mark.slow
def test_a_loop_without_an_end_is_ended(checkout: Path) -> None:
    (checkout / "src/unidle/ledger/price.py").write_text(ENDLESS)
    test = "from unidle.ledger.price import rest\n\n\ndef test_rest():\n    assert rest(3) == 0\n"
    (checkout / "tests/ledger/test_price.py").write_text(test)
    done = _run(checkout, "--count", "100")
    rows = [json.loads(line) for line in (checkout / ".cache/mutants/results.jsonl").read_text().splitlines()]
    ended = {row["name"].partition(": ")[2] for row in rows if row.get("by_limit")}
    assert "arithmetic: count -= 1 -> count += 1" in ended, done.stdout + done.stderr
    assert "survived: src/unidle/ledger/price.py rest: arithmetic" not in done.stdout
