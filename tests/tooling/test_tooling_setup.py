"""The set-up script's refusals, and what the lock file must hold."""

from __future__ import annotations

import os
import re
import shutil
import subprocess
from pathlib import Path

import pytest

import needs
from places import open_directory

ROOT = Path(__file__).resolve().parent.parent.parent


@pytest.fixture
def checkout(tmp_path: Path) -> Path:
    """What the script reads, in a directory with spaces."""
    place = tmp_path / "a check out"
    (place / "scripts").mkdir(parents=True)
    for name in ("scripts/setup.sh", "requirements.lock", "pyproject.toml"):
        shutil.copy(ROOT / name, place / name)
    return place


def _setup(checkout: Path, *become: str, **env: str) -> subprocess.CompletedProcess[str]:
    command = [*become, str(checkout / "scripts" / "setup.sh")]
    return subprocess.run(command, cwd="/", env={**os.environ, **env}, capture_output=True, text=True)


@pytest.mark.parametrize("part", ["python", "tests"])
def test_an_unfit_interpreter_is_refused_in_one_line(checkout: Path, part: str) -> None:
    done = subprocess.run(
        [checkout / "scripts" / "setup.sh", part],
        env={**os.environ, "PYTHON": "/bin/false"},
        capture_output=True,
        text=True,
    )
    assert done.returncode == 1
    assert done.stderr == (
        "setup: PYTHON=/bin/false is no CPython 3.11 or newer; name another one, or unset PYTHON\n"
    )
    assert not (checkout / ".venv").exists()


@needs.root
def test_a_checkout_of_someone_else_is_refused_in_one_line(checkout: Path) -> None:
    with open_directory("unidle-checkout-") as place:
        shutil.copytree(checkout, place / "copy")
        done = _setup(place / "copy", "setpriv", "--reuid=65534", "--regid=65534", "--clear-groups")
    assert done.returncode == 1
    assert "may not write to" in done.stderr
    assert len(done.stderr.splitlines()) == 1


def test_a_finished_setup_is_not_repeated(checkout: Path) -> None:
    """A stamp that fits and programs that can be run are all that is looked at."""
    programs = checkout / ".venv" / "bin"
    programs.mkdir(parents=True)
    for name in ("python", "unidle"):
        (programs / name).write_text("#!/bin/sh\n")
        (programs / name).chmod(0o755)
    inputs = subprocess.run(
        ["cksum", "requirements.lock", "pyproject.toml", "scripts/setup.sh"],
        cwd=checkout,
        capture_output=True,
        text=True,
        check=True,
    )
    (checkout / ".venv" / "unidle-setup").write_text(f"{checkout}\n\n\n{inputs.stdout}")
    done = _setup(checkout, PYTHON="", UV_TORCH_BACKEND="")
    assert (done.returncode, done.stdout, done.stderr) == (0, "", "")


def test_every_locked_package_has_a_hash_and_no_address() -> None:
    lock = (ROOT / "requirements.lock").read_text()
    entries = re.split(r"^(?=[A-Za-z0-9])", lock, flags=re.MULTILINE)[1:]
    assert len(entries) > 50
    assert all("--hash=sha256:" in entry for entry in entries)
    assert "://" not in lock
    assert not re.search(r"^--?[a-z]", lock, re.MULTILINE)
