"""No process of unidle's own imports a module from the working directory, where anybody may have left one."""

from __future__ import annotations

import ast
import json
import os
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

SOURCES = Path(__file__).resolve().parents[2] / "src" / "unidle"
SAFE = ("-I", "-P")


def commands() -> Iterator[tuple[str, int, list[str]]]:
    """The words behind each ``sys.executable`` in a list or tuple, ``*name`` and the like as they stand."""
    for path in sorted(SOURCES.rglob("*.py")):
        for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"))):
            if isinstance(node, (ast.List, ast.Tuple)):
                words = [
                    each.value if isinstance(each, ast.Constant) else ast.unparse(each) for each in node.elts
                ]
                at = next((k for k, word in enumerate(words) if "sys.executable" in str(word)), None)
                if at is not None:
                    yield str(path.relative_to(SOURCES)), node.lineno, [*map(str, words[at + 1 :])]


def test_each_python_of_its_own_is_started_without_the_working_directory_in_its_path() -> None:
    found = list(commands())
    assert len(found) > 15
    for path, line, words in found:
        # api/job_fields.py: the user's own script; tune_forks.py: what a forked program sees as its command
        runs_code = words[:1] and words[0] not in ("*words", "*request['flags']")
        assert not runs_code or words[0] in SAFE, f"{path}:{line}: python {' '.join(words)}: give it -P"


PLANTED = "import os, sys\nopen(os.environ['PLANTED'], 'a').write(f'{__name__} in {sys.argv}\\n')\n"
MODULES = (
    "argparse", "asyncio", "calendar", "configparser", "csv", "ctypes", "decimal", "fractions", "gzip", "json", "logging", "numbers",
    "pickle", "platform", "queue", "random", "shlex", "socket", "statistics", "tempfile", "textwrap", "types", "uuid", "zipfile",
)  # fmt: skip


@pytest.fixture
def trap(tmp_path: Path) -> Path:
    """A directory with a module of another user for everything that is usually imported."""
    place = tmp_path / "trap"
    place.mkdir()
    for name in MODULES:
        (place / f"{name}.py").write_text(PLANTED)
    return place


SCRIPT = """
import sys, torch
from unidle.rank.checkpoint import Checkpointer
saves = Checkpointer(sys.argv[1], model=torch.nn.Linear(2, 2), every=1)
for step in range(saves.restore() + 1, 4):
    print(f"step {step}", flush=True)
    saves.step(step)
saves.close()
"""


@pytest.mark.slow
def test_a_module_in_the_working_directory_is_never_imported(trap: Path, tmp_path: Path) -> None:
    (tmp_path / "train.py").write_text(SCRIPT)
    job = {
        "name": "job", "command": ["python", str(tmp_path / "train.py"), str(tmp_path / "saves")], "ranks": 2, "workdir": str(trap),
        "checkpoint": {"path": str(tmp_path / "saves"), "memory": True}, "restart": {"max": 1, "warm": True}, "env": {"OMP_NUM_THREADS": "1"},
    }  # fmt: skip
    (tmp_path / "job.json").write_text(json.dumps(job))
    out = tmp_path / "planted"
    program = Path(sys.executable).with_name("unidle")  # the installed command does not look there either
    done = subprocess.run(
        [program, "run", tmp_path / "job.json", "--store", tmp_path / "s.db"],
        cwd=trap, env={**os.environ, "PLANTED": str(out)}, capture_output=True, text=True, timeout=200,
    )  # fmt: skip
    assert done.returncode == 0, done.stdout + done.stderr
    assert "checkpoint saved" in done.stderr
    assert not out.exists(), out.read_text()
