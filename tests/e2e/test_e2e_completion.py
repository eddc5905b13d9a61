"""What the shell offers when a user presses Tab: asked of the real command line, and through bash."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

from e2e.commands import UNIDLE, unidle
from e2e.stores import job_events, write_log
from unidle.events import types as ev
from unidle.store.open import open_store

BASH = """
source {script}
COMP_WORDS=({words}); COMP_CWORD=$((${{#COMP_WORDS[@]}} - 1))
_unidle_completion unidle
printf '%s\\n' "${{COMPREPLY[@]}}"
"""


@pytest.fixture(scope="module")
def store(tmp_path_factory: pytest.TempPathFactory) -> Path:
    path = tmp_path_factory.mktemp("completion") / "s.db"
    events = [
        *job_events("train-111111"),
        *job_events("tune-111111", queue="night"),
        *job_events("gone-111111"),
    ]
    events += [ev.JobsRemoved(("gone-111111",), "me"), *job_events("train-222222", None, user="ada")]
    write_log(path, events)
    return path


def offered(line: str, store: Path | str, **environment: str) -> tuple[list[str], str]:
    """The words that are offered for the last word of a line, and what would disturb the user's line."""
    asked = {
        "COMP_WORDS": line,
        "COMP_CWORD": str(len(line.split(" ")) - 1),
        "_UNIDLE_COMPLETE": "complete_bash",
    }
    done = subprocess.run(
        UNIDLE, env={**os.environ, "UNIDLE_STORE": str(store), **asked, **environment}, capture_output=True, text=True, check=False
    )  # fmt: skip
    return done.stdout.split(), done.stderr


@pytest.mark.parametrize(
    ("line", "words"),
    [
        ("unidle show ", ["train-222222", "train", "tune-111111", "tune", "train-111111"]),
        ("unidle logs tr", ["train-222222", "train", "train-111111"]),
        ("unidle cancel ", ["train-222222", "train"]),
        ("unidle rm tr", ["train-111111", "train"]),
        ("unidle ledger --leaf checkp", ["checkpoint"]),
        ("unidle ledger --group d", ["down"]),
        ("unidle ledger --queue n", ["night"]),
        ("unidle ledger --user a", ["ada"]),
        ("unidle ledger --device n0/", ["n0/0", "n0/1"]),
        ("unidle guard drain n", ["n0"]),
        ("unidle guard drain n0/", ["n0/0", "n0/1"]),
        ("unidle list --state c", ["cancelled"]),
        ("unidle che", ["check", "checkpoint"]),
        ("unidle check", ["check", "checkpoint"]),
        ("unidle ledger --st", ["--store"]),
        ("unidle run ", []),
        ("unidle up --fleet ", []),
    ],
)
def test_words_are_offered_where_they_fit_and_live_jobs_first(
    store: Path, line: str, words: list[str]
) -> None:
    assert offered(line, store) == (words, "")


@pytest.mark.parametrize("case", ["none", "garbage", "directory", "postgres", "foreign", "newer"])
def test_a_store_that_cannot_be_read_offers_nothing_and_prints_no_error(
    tmp_path: Path, store: Path, case: str
) -> None:
    path: Path | str = tmp_path / "x.db"
    if case == "garbage":
        Path(path).write_bytes(b"SQLite format 3\0" + os.urandom(5000))
    elif case == "directory":
        path = tmp_path
    elif case == "postgres":
        path = "postgresql://localhost:1/nothing"
    elif case == "foreign":
        subprocess.run([sys.executable, "-c", f"import sqlite3; sqlite3.connect({str(path)!r}).execute('create table x (y)')"], check=True)  # fmt: skip
    elif case == "newer":
        Path(path).write_bytes(store.read_bytes())
        subprocess.run([sys.executable, "-c", f"import sqlite3; sqlite3.connect({str(path)!r}).execute('alter table unidle_events rename to other')"], check=True)  # fmt: skip
    assert offered("unidle show ", path) == ([], "")


def test_jobs_are_offered_while_the_store_is_written_and_before_a_controller_has_read_them(
    tmp_path: Path,
) -> None:
    store = tmp_path / "s.db"
    write_log(store, job_events("old-111111"))
    submitted = unidle("submit", "--name", "new", "--store", store, "--", "true").stdout.split()[0]
    opened = open_store(str(store), create=False)
    opened.request("submit", b"not a job")
    with opened.transaction():
        opened.request("cancel", b"{}")
        assert offered("unidle show ", store) == ([submitted, "new", "old-111111", "old"], "")
    opened.close()


def test_bash_offers_them_in_the_order_in_which_they_are_given(store: Path, tmp_path: Path) -> None:
    script = tmp_path / "completion.sh"
    environment = {**os.environ, "_TYPER_COMPLETE_TEST_DISABLE_SHELL_DETECTION": "1"}
    script.write_text(unidle("--show-completion", "bash", env=environment).stdout)
    assert "complete -o nosort" in script.read_text()
    unidle_here = tmp_path / "unidle"
    unidle_here.write_text(f'#!/bin/sh\nexec {" ".join(UNIDLE)} "$@"\n')
    unidle_here.chmod(0o755)
    asked = BASH.format(script=script, words="unidle show tr")
    path = f"{tmp_path}:{os.environ['PATH']}"
    done = subprocess.run(
        ["bash", "-c", asked], env={**os.environ, "UNIDLE_STORE": str(store), "PATH": path}, capture_output=True, text=True, check=True
    )  # fmt: skip
    assert done.stdout.split() == ["train-222222", "train", "train-111111"]


def test_zsh_gets_descriptions_whose_quotes_it_does_not_drop(store: Path) -> None:
    asked = {"_TYPER_COMPLETE_ARGS": "unidle run --", "_UNIDLE_COMPLETE": "complete_zsh"}
    done = subprocess.run(
        UNIDLE, env={**os.environ, "UNIDLE_STORE": str(store), **asked}, capture_output=True, text=True, check=True
    )  # fmt: skip
    assert "store.db in the user’s data directory" in done.stdout
    assert r"\`default\`" in done.stdout  # zsh would run it
