"""`scripts/house.py`: a new entry of each kind fails, and the list can only become shorter."""

from __future__ import annotations

import importlib.util
import sys
from pathlib import Path
from types import ModuleType

import pytest


def _script() -> ModuleType:
    path = Path(__file__).resolve().parents[2] / "scripts" / "house.py"
    spec = importlib.util.spec_from_file_location("house", path)
    assert spec is not None and spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    sys.modules["house"] = module
    spec.loader.exec_module(module)
    return module


house = _script()
Kind = house.Kind
FEW = "def f(a: int) -> int:\n    return a\n"
LONG = "def f() -> None:\n" + "    print()\n" * house.LONGEST_FUNCTION
PARAMETERS = ", ".join(f"p{number}" for number in range(house.MOST_PARAMETERS + 1))
OFFENCES = {
    house.LONG_FUNCTION: ({"a.py": LONG}, "src/unidle/a.py f"),
    house.PARAMETERS: (
        {"a.py": f"class A:\n    def f(self, {PARAMETERS}): ...\n"},
        "src/unidle/a.py A.f",
    ),
    house.LONG_FILE: ({"a.py": "x = 1\n" * (house.LONGEST_FILE + 1)}, "src/unidle/a.py"),
    house.CIRCLE: (
        {"a.py": "from unidle.p.b import f\n", "p/__init__.py": "from ..a import f\n", "p/b.py": FEW},
        "unidle.a",
    ),
    house.CLASS_NAME: (
        {"a.py": "class Same: ...\n", "b.py": "class Same: ...\n"},
        "src/unidle/a.py Same",
    ),
}
ALLOWED = {
    "a function of just the length": {"a.py": LONG.replace("    print()\n", "", 1)},
    "just the number of parameters": {"a.py": f"def f({PARAMETERS.partition(', ')[2]}): ...\n"},
    "a package whose parts import each other": {
        "p/__init__.py": "from .b import f\n",
        "p/b.py": "from unidle.p.c import f\n",
        "p/c.py": FEW,
    },
    "a circle in a function or for type checkers only": {
        "a.py": "from typing import TYPE_CHECKING\n\nif TYPE_CHECKING:\n    from unidle.b import f\n",
        "b.py": "from unidle.a import TYPE_CHECKING\n",
        "c.py": "def f():\n    from unidle import d\n",
        "d.py": "from unidle.c import f\n",
    },
    "a class of a module that is only used with its name": {
        "a.py": "from unidle.hub import frames\nclass Same: ...\n",
        "hub/__init__.py": "",
        "hub/frames.py": "class Same: ...\n",
    },
    "a private class of the same name": {"a.py": "class _Same: ...\n", "b.py": "class _Same: ...\n"},
}


def tree(root: Path, modules: dict[str, str], listed: dict[Kind, set[str]] | None = None) -> Path:
    for name, text in {"__init__.py": "", **modules}.items():
        path = root / "src" / "unidle" / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text)
    (root / house.LIST).parent.mkdir(exist_ok=True)
    entries = {kind: set() for kind in house.KINDS} | (listed or {})
    (root / house.LIST).write_text(house.written(entries))
    return root


def entries_of(root: Path) -> dict[Kind, set[str]]:
    return house.stored((root / house.LIST).read_text())


@pytest.mark.parametrize("kind", house.KINDS, ids=lambda kind: kind.name)
def test_a_new_entry_fails_and_is_named_with_counts_and_remedy(
    kind: Kind, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    modules, entry = OFFENCES[kind]
    root = tree(tmp_path, modules)
    assert house.main([], root) == 1
    lines = capsys.readouterr().out.splitlines()
    assert all(line.startswith(f"{kind.name}: ") for line in lines), "and no other kind"
    assert f"0 in scripts/house.txt; new: {entry}; {kind.remedy}" in lines[0]


@pytest.mark.parametrize("kind", house.KINDS, ids=lambda kind: kind.name)
def test_a_list_is_never_written_with_a_higher_count(kind: Kind, tmp_path: Path) -> None:
    root = tree(tmp_path, OFFENCES[kind][0])
    assert house.main(["--write"], root) == 1
    assert entries_of(root)[kind] == set()


@pytest.mark.parametrize("modules", ALLOWED.values(), ids=ALLOWED)
def test_what_is_allowed_is_no_entry(modules: dict[str, str], tmp_path: Path) -> None:
    assert house.main([], tree(tmp_path, modules)) == 0


def test_a_listed_entry_passes(tmp_path: Path) -> None:
    modules, entry = OFFENCES[house.LONG_FUNCTION]
    assert house.main([], tree(tmp_path, modules, {house.LONG_FUNCTION: {entry}})) == 0


def test_an_entry_that_is_gone_fails_until_the_list_is_written(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    root = tree(tmp_path, {"a.py": FEW}, {house.LONG_FILE: {"src/unidle/a.py"}})
    assert house.main([], root) == 1
    assert "no longer one: src/unidle/a.py; run python scripts/house.py --write" in capsys.readouterr().out
    assert house.main(["--write"], root) == 0
    assert house.main([], root) == 0
    assert entries_of(root)[house.LONG_FILE] == set()


def test_an_entry_that_moved_is_written_under_its_new_name(tmp_path: Path) -> None:
    modules, entry = OFFENCES[house.LONG_FUNCTION]
    root = tree(tmp_path, modules, {house.LONG_FUNCTION: {"src/unidle/former.py f"}})
    assert house.main([], root) == 1
    assert house.main(["--write"], root) == 0
    assert entries_of(root)[house.LONG_FUNCTION] == {entry}
