"""The scripts with a planted cause: they run as they are, end when told, and do not give their cause away."""

from __future__ import annotations

import ast
import os
import re
import subprocess
import sys
import tempfile
from pathlib import Path

import pytest

import nightly
from places import open_parent
from waiting import wait_until

PLACE = Path(__file__).resolve().parents[2] / "examples" / "profile"
SCRIPTS = sorted(PLACE.glob("*.py"))
SECRET = re.compile(
    r"slow|bottleneck|planted|cause|straggl|oversubscri|contention|\bGIL\b|checkpoint|collat|tokeni|fsync|block",
    re.IGNORECASE,
)
# What the compiler keeps, and what multiprocessing leaves where its process is ended by a signal.
OF_LIBRARIES = ("torchinductor_", "pymp-")


def of_session(leader: int) -> list[int]:
    """Processes of the session that `leader` began, ended ones that wait to be reaped left out."""

    found = []
    for stat in Path("/proc").glob("[0-9]*/stat"):
        try:
            state, _, _, session = stat.read_text().rpartition(")")[2].split()[:4]
        except (FileNotFoundError, ProcessLookupError):
            continue
        if int(session) == leader and state not in "ZX":
            found.append(int(stat.parent.name))
    return found


def test_the_answers_name_every_script_once() -> None:
    question, answers = (PLACE / "README.md").read_text().split("## Answers")
    for script in SCRIPTS:
        assert answers.count(f"| `{script.name}` |") == 1
        assert question.count(f"| `{script.name}` |") == 1
    assert len(SCRIPTS) == 13


@pytest.mark.parametrize("script", SCRIPTS, ids=lambda s: s.stem)
def test_a_script_says_what_it_does_and_not_what_is_wrong(script: Path) -> None:
    text = script.read_text()
    told = ast.get_docstring(ast.parse(text)) or ""
    assert "Runs until it is stopped" in told
    assert not SECRET.search(told)
    assert not SECRET.search(script.stem)
    assert "unidle" not in text
    assert 40 <= len(text.splitlines()) <= 120


@pytest.mark.slow
@pytest.mark.parametrize("script", nightly.sweep(SCRIPTS, always=SCRIPTS[::4]), ids=lambda s: s.stem)
def test_a_script_steps_until_it_is_stopped(script: Path) -> None:
    # Workers of a DataLoader have sockets below TMPDIR, and the name of a socket has at most 107 characters.
    with (
        tempfile.TemporaryDirectory(prefix="unidle-", dir=open_parent()) as short,
        tempfile.TemporaryFile() as out,
    ):
        env = {**os.environ, "OMP_NUM_THREADS": "1", "TMPDIR": short, "PYTHONDONTWRITEBYTECODE": "1"}
        process = subprocess.Popen(
            [sys.executable, str(script), "--seed", "1"],
            stdout=out,
            stderr=out,
            env=env,
            start_new_session=True,
        )
        try:

            def told() -> str:
                out.seek(0)
                return out.read().decode()

            wait_until(lambda: "step " in told() or process.poll() is not None, 120, f"{script.name}'s steps")
            assert process.poll() is None, told()
            assert "Traceback" not in told()
        finally:
            process.terminate()
            process.wait(60)
            # Workers of a DataLoader look for their parent every few seconds.
            wait_until(lambda: not of_session(process.pid), 60, f"the end of all that {script.name} began")
        left = [p.name for p in Path(short).iterdir() if not p.name.startswith(OF_LIBRARIES)]
        assert left == []
