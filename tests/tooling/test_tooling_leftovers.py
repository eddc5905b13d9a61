"""The checks of the session itself, tried on small sessions that misbehave."""

from __future__ import annotations

import contextlib
import os
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

import needs
from waiting import wait_until

TESTS = Path(__file__).resolve().parent.parent


def _session(tmp_path: Path, test: str, *more: str, **env: str) -> subprocess.CompletedProcess[str]:
    """Run ``test`` in a checkout of its own with this project's conftest."""
    checkout = tmp_path / "checkout with spaces"
    (checkout / "tests").mkdir(parents=True)
    for name in (
        "conftest.py",
        "groups.py",
        "leftovers.py",
        "needs.py",
        "nightly.py",
        "places.py",
        "waiting.py",
    ):
        shutil.copy(TESTS / name, checkout / "tests")
    (checkout / "tests" / "test_it.py").write_text(test)
    subprocess.run(["git", "init", "-q", checkout], check=True)
    options = ["-o", "pythonpath=tests", "-p", "no:cacheprovider", f"--basetemp={tmp_path / 'scratch'}"]
    return subprocess.run(
        [sys.executable, "-B", "-m", "pytest", "-q", *options, *more, "tests"],
        cwd=checkout,
        env={**os.environ, **env},
        capture_output=True,
        text=True,
    )


def test_clean_session_passes(tmp_path: Path) -> None:
    done = _session(tmp_path, "def test_nothing(tmp_path):\n    (tmp_path / 'file').touch()\n")
    assert done.returncode == 0, done.stdout


def test_what_workers_in_parallel_left_on_the_machine_fails_the_session(tmp_path: Path) -> None:
    leaves = "def test_file():\n    open('stray.txt', 'w').close()\n"
    done = _session(tmp_path, leaves, "-n", "1")
    assert done.returncode == 1
    assert "1 passed" in done.stdout.splitlines()[-1]
    assert "file in the checkout: stray.txt" in done.stdout


LEAVES_A_LOT = """
import os, subprocess

def test_daemon():
    subprocess.run("setsid sleep {seconds} >/dev/null 2>&1 &", shell=True, check=True)

def test_file():
    open("stray.txt", "w").close()

def test_group():
    os.mkdir({group!r})

def test_mount(tmp_path):
    (tmp_path / "disk").mkdir()
    subprocess.run(["mount", "-t", "tmpfs", "none", tmp_path / "disk"], check=True)
"""


@pytest.mark.slow
@needs.root
@needs.cgroups
def test_what_is_left_behind_is_named_and_cleared(tmp_path: Path) -> None:
    seconds = 100_000 + os.getpid()
    group = needs.cgroup_roots()[0] / f"unidle-left-{os.getpid()}"
    disk = tmp_path / "scratch" / "test_mount0" / "disk"
    try:
        done = _session(tmp_path, LEAVES_A_LOT.format(seconds=seconds, group=str(group)))
    finally:
        group.rmdir()
    assert done.returncode == 1
    assert done.stdout.splitlines()[-1].startswith("4 passed, 1 error")
    assert f"sleep {seconds}" in done.stdout
    assert "file in the checkout: stray.txt" in done.stdout
    assert f"control group {group}" in done.stdout
    assert f"mount {disk}" in done.stdout
    assert not disk.is_mount()
    wait_until(lambda: not _alive(f"sleep\0{seconds}"), what="the daemon's end")


def _alive(command: str) -> bool:
    lines = []
    for entry in Path("/proc").glob("[0-9]*/cmdline"):
        with contextlib.suppress(OSError):
            lines.append(entry.read_bytes())
    return any(command.encode() in line for line in lines)


@pytest.mark.parametrize(
    ("reason", "code"), [("GPU: none here", 0), ("not in the mood", 1)], ids=["GPU", "other reason"]
)
def test_only_gpu_tests_may_be_skipped_in_ci(tmp_path: Path, reason: str, code: int) -> None:
    done = _session(tmp_path, f"import pytest\ndef test_skip():\n    pytest.skip({reason!r})\n", CI="true")
    assert done.returncode == code, done.stdout


def test_postgresql_answers_as_a_superuser_of_its_own(postgres_url: str) -> None:
    import psycopg

    with psycopg.connect(postgres_url) as connection:
        row = connection.execute(
            "select current_user, usesuper from pg_user where usename = current_user"
        ).fetchone()
    assert row == ("unidle", True)
