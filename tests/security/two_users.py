"""A second user of this machine: a number without a name, whose processes are children of the test."""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Sequence
from pathlib import Path

import pytest

import unidle

OTHER = 64321
SOURCES = str(Path(unidle.__file__).parents[1])
needs_root = pytest.mark.skipif(os.geteuid() != 0, reason="a process of a second user needs root")


def command(words: Sequence[str], cwd: Path, *, umask: int = 0o22) -> subprocess.CompletedProcess[str]:
    """Run ``unidle`` with these words as the user of the test."""
    env = {name: value for name, value in os.environ.items() if not name.startswith("UNIDLE_")}
    env |= {"PYTHONPATH": SOURCES, "XDG_DATA_HOME": str(cwd / "data"), "HOME": str(cwd)}
    return subprocess.run(
        [sys.executable, "-P", "-m", "unidle", *words], cwd=cwd, env=env, capture_output=True, text=True,
        stdin=subprocess.DEVNULL, timeout=120, check=False, umask=umask,
    )  # fmt: skip


def as_other(expression: str, cwd: Path, before: Sequence[str] = ()) -> str:
    """Evaluate an expression as the second user; what it prints and the error that ends it, else nothing.

    ``before``: the words of a command that runs the process.

    What it needs is imported before the change of user, who may not be able to read the sources.
    """
    code = f"""
import grp, os, pwd, unidle.store.sqlite
from pathlib import Path
from unidle.control import store_files
from unidle.errors import UnidleError
from unidle.store.open import open_store
os.setgroups([]); os.setgid({OTHER}); os.setuid({OTHER})
try:
    {expression}
except UnidleError as error:
    print(error.line())
"""
    done = subprocess.run(
        [*before, sys.executable, "-P", "-c", code], cwd=cwd, env=os.environ | {"PYTHONPATH": SOURCES},
        capture_output=True, text=True, timeout=60, check=False,
    )  # fmt: skip
    assert done.returncode == 0, done.stderr
    return (done.stdout + done.stderr).strip()
