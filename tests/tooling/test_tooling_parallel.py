"""How tests are shared out among workers, and what is left for the night, tried on small sessions."""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

TESTS = Path(__file__).resolve().parent.parent
PARTS = ("conftest.py", "groups.py", "leftovers.py", "needs.py", "nightly.py", "places.py", "waiting.py")


def _session(tmp_path: Path, files: dict[str, str], *more: str, **env: str) -> Path:
    """Run ``files`` with this project's conftest; the directory that they ran in."""
    tests = tmp_path / "checkout" / "tests"
    tests.mkdir(parents=True)
    for name in PARTS:
        shutil.copy(TESTS / name, tests)
    for name, text in files.items():
        (tests / name).write_text(text)
    (tmp_path / "checkout" / "pytest.ini").write_text(
        "[pytest]\npythonpath = tests\nmarkers =\n  nightly: at night\n  kernel_log: one at a time\n  own_mounts: one at a time\n"
        "addopts = --import-mode=importlib --strict-markers\n"
    )
    done = subprocess.run(
        [sys.executable, "-B", "-m", "pytest", "-q", f"--basetemp={tmp_path / 'scratch'}", *more, "tests"],
        cwd=tmp_path / "checkout",
        env={**{k: v for k, v in os.environ.items() if k != "UNIDLE_NIGHTLY"}, **env},
        capture_output=True,
        text=True,
        check=False,
    )
    (tmp_path / "said").write_text(done.stdout + done.stderr)
    return tests


NOTES_WORKER = """
import os, pathlib, pytest

{mark}
@pytest.mark.parametrize("n", range(3))
def test_it(n):
    with open(pathlib.Path(__file__).parent / "ran", "a") as ran:
        ran.write(os.environ["PYTEST_XDIST_WORKER"] + " {name}\\n")
"""


def test_tests_that_need_the_same_part_of_the_machine_have_one_worker(tmp_path: Path) -> None:
    mark = "import needs\n@needs.kernel_log"
    files = {f"test_{name}.py": NOTES_WORKER.format(name=name, mark=mark) for name in ("a", "b")}
    files["test_c.py"] = NOTES_WORKER.format(name="c", mark=mark.replace("kernel_log", "own_mounts"))
    files |= {f"test_{name}.py": NOTES_WORKER.format(name=name, mark="") for name in ("x", "y", "z")}
    files["longest.txt"] = "tests/test_z.py\n"
    tests = _session(tmp_path, files, "-n", "2", "--dist", "loadgroup", "--no-loadscope-reorder")
    ran = [line.split() for line in (tests / "ran").read_text().splitlines()]
    assert len(ran) == 18, (tmp_path / "said").read_text()
    by_file: dict[str, set[str]] = {}
    for worker, file in ran:
        by_file.setdefault(file, set()).add(worker)
    assert all(len(workers) == 1 for workers in by_file.values())
    assert by_file["a"] == by_file["b"] == by_file["c"]
    first = {worker: next(file for who, file in ran if who == worker) for worker, _ in ran}
    assert "z" in first.values()  # what takes longest is begun at once


def test_a_failure_in_a_worker_has_the_name_that_a_run_without_workers_gives_it(tmp_path: Path) -> None:
    fails = (
        "import pytest\n\n@pytest.mark.parametrize('n', ['a@b', 'c'])\ndef test_it(n):\n    assert n == 'c'\n"
    )
    tests = _session(tmp_path, {"test_fails.py": fails}, "-n", "1", "--dist", "loadgroup")
    kept = json.loads((tests.parent / ".pytest_cache/v/cache/lastfailed").read_text())
    assert list(kept) == ["tests/test_fails.py::test_it[a@b]"], (tmp_path / "said").read_text()


EXAMPLES = """
import pathlib
from hypothesis import given, settings, strategies as st

def note(name):
    with open(pathlib.Path(__file__).parent / name, "a") as ran:
        ran.write("x")

@given(st.integers())
def test_default(n):
    note("default")

@settings(max_examples=60)
@given(st.integers())
def test_own(n):
    note("own")

@settings(max_examples=4)
@given(st.integers())
def test_few(n):
    note("few")
"""


@pytest.mark.parametrize(("night", "counts"), [({}, (50, 30, 4)), ({"UNIDLE_NIGHTLY": "1"}, (100, 60, 4))])
def test_half_of_the_examples_are_for_the_night(
    tmp_path: Path, night: dict[str, str], counts: tuple[int, ...]
) -> None:
    tests = _session(tmp_path, {"test_examples.py": EXAMPLES}, **night)
    found = tuple(len((tests / name).read_text()) for name in ("default", "own", "few"))
    assert found == counts, (tmp_path / "said").read_text()


SWEEPS = """
import nightly, pathlib, pytest

@pytest.mark.parametrize("n", nightly.sweep(range(20), always=(0, 7)))
def test_sweep(n):
    with open(pathlib.Path(__file__).parent / "ran", "a") as ran:
        ran.write(f"{n} ")

def test_rounds():
    (pathlib.Path(__file__).parent / "rounds").write_text(str(nightly.rounds(100, 12)))
"""


@pytest.mark.parametrize(
    ("night", "words", "sweep", "rounds"),
    [({}, ("-m", "not nightly"), [0, 7], "12"), ({"UNIDLE_NIGHTLY": "1"}, (), list(range(20)), "100")],
    ids=["CI", "night"],
)
def test_a_sweep_is_whole_at_night_and_keeps_its_fixed_part_in_ci(
    tmp_path: Path, night: dict[str, str], words: tuple[str, ...], sweep: list[int], rounds: str
) -> None:
    tests = _session(tmp_path, {"test_sweeps.py": SWEEPS}, *words, **night)
    assert [int(n) for n in (tests / "ran").read_text().split()] == sweep, (tmp_path / "said").read_text()
    assert (tests / "rounds").read_text() == rounds


def test_each_file_that_takes_long_is_there() -> None:
    named = (TESTS / "longest.txt").read_text().split()
    assert named and len(set(named)) == len(named)
    missing = [name for name in named if "/" in name and not (TESTS.parent / name).exists()]
    assert not missing, f"tests/longest.txt names {missing}: take the new name, or remove the line"
