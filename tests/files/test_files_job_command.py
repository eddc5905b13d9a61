"""A program and options on the command line: what becomes of them, and of the job file that they change."""

from __future__ import annotations

import os
from pathlib import Path
from typing import Any

import pytest

from unidle.errors import BadInput
from unidle.files.job import job_from_command
from unidle.files.job_command import command_of, is_job_file, job_with_options, literal_command_of

FILE = """\
command: [python, train.py]
ranks: {min: 2, max: 4}
env: {A: '1', B: '2'}
restart: {max: 3, backoff_s: 5}
timeout_s: 60
"""


@pytest.fixture
def place(tmp_path: Path) -> Path:
    """A directory of programs: PATH is its ``bin``."""
    for name, mode in (("train.py", 0o644), ("run.sh", 0o755), ("notes.txt", 0o644), ("bin/python3", 0o755)):
        path = tmp_path / name
        path.parent.mkdir(exist_ok=True)
        path.write_text("#!/bin/sh\n")
        path.chmod(mode)
    (tmp_path / "package").mkdir()
    os.mkfifo(tmp_path / "pipe")
    return tmp_path


def refused(place: Path, *words: str, path: str | None = "bin") -> str:
    with pytest.raises(BadInput) as caught:
        command_of(words, str(place), None if path is None else str(place / path))
    assert caught.value.field == "PROGRAM"
    return caught.value.line()


@pytest.mark.parametrize(
    ("word", "is_file"),
    [("job.yaml", True), ("x/JOB.YML", True), ("a.json", True), ("-", True), ("a.py", False), ("python", False), ("yaml", False)],
)  # fmt: skip
def test_a_job_file_is_known_by_its_ending(word: str, is_file: bool) -> None:
    assert is_job_file(word) is is_file


def test_a_python_file_is_run_by_the_python_of_the_path(place: Path) -> None:
    command = command_of(("train.py", "--lr", "3e-4", "--"), str(place), str(place / "bin"))
    assert command == ("python3", "train.py", "--lr", "3e-4", "--")
    (place / "bin/python").symlink_to(place / "bin/python3")
    assert command_of((str(place / "train.py"),), "/", str(place / "bin"))[0] == "python"


def test_a_program_stays_as_it_was_typed(place: Path) -> None:
    for words in (("./run.sh", "a b"), (str(place / "run.sh"),), ("python3", "train.py")):
        assert command_of(words, str(place), str(place / "bin")) == words


@pytest.mark.parametrize(
    ("word", "problem"),
    [
        ("none.py", "there is no such file in"),
        ("./none", "there is no such file in"),
        ("package/", "is a directory, not a program or a job file"),
        ("package", "a package runs as `unidle run python -m package`"),
        ("package.py/", "there is no such file"),
        ("./notes.txt", "is not executable, and not a job file by its ending"),
        ("run.sh", "only a file of this name here (got 'run.sh'); write ./run.sh"),
        ("nothing", "there is no such program on PATH"),
        ("./pipe", "is not a regular file"),
    ],
)
def test_what_cannot_be_run_is_one_error(place: Path, word: str, problem: str) -> None:
    assert problem in refused(place, word)


@pytest.mark.parametrize("word", ["train.py", "./run.sh", "nothing"])
def test_what_is_wrong_with_the_directory_is_not_the_programs_fault(place: Path, word: str) -> None:
    for directory in (str(place / "none"), "~/none"):
        assert command_of((word,), directory, str(place / "bin")) == (word,)
        with pytest.raises(BadInput, match=r"workdir: (there is no such directory|.*~ is not expanded)"):
            job_from_command((word,), workdir=directory)


def test_programs_of_a_job_that_runs_elsewhere_are_not_looked_for(place: Path) -> None:
    assert command_of(("nothing",), str(place), None) == ("nothing",)
    assert "is a directory" in refused(place, "package", path=None)


def changed(tmp_path: Path, **options: Any) -> tuple[Any, list[str]]:
    (tmp_path / "job.yaml").write_text(FILE)
    return job_with_options(str(tmp_path / "job.yaml"), options)


def test_options_take_precedence_and_each_change_is_one_line(tmp_path: Path) -> None:
    spec, changes = changed(
        tmp_path, ranks=2, queue="q", env={"B": "3", "C": ""}, restart={"max": 0}, limits={"memory": "4GB"}, timeout_s=7200.0
    )  # fmt: skip
    assert (spec.ranks, spec.queue, spec.env) == (2, "q", {"A": "1", "B": "3", "C": ""})
    assert (spec.restart.max, spec.restart.backoff_s) == (0, 5)
    assert (spec.limits.memory_bytes, spec.timeout_s) == (4 * 10**9, 7200)
    assert changes == [
        "ranks: 2 (job.yaml: {min: 2, max: 4})",
        "queue: q (not in job.yaml)",
        "env.B: 3 (job.yaml: 2)",
        "env.C: '' (not in job.yaml)",
        "restart.max: 0 (job.yaml: 3)",
        "limits.memory: 4GB (not in job.yaml)",
        "timeout_s: 7200 (job.yaml: 60)",
    ]


def test_an_option_that_changes_nothing_is_no_change(tmp_path: Path) -> None:
    assert changed(tmp_path, timeout_s=60, env={"A": "1"})[1] == []


def test_a_wrong_option_is_not_the_files_fault(tmp_path: Path) -> None:
    for options, problem in (
        ({"ranks": 0}, "command line: ranks: must be"),
        ({"limits": {"memory": "12"}}, "command line: limits.memory: must be from 1 MiB"),
        ({"env": {"RANK": "1"}}, "command line: env.RANK"),
        ({"rendezvous": "mpi"}, "command line: rendezvous: must be one of none, torchrun"),
    ):
        with pytest.raises(BadInput) as caught:
            changed(tmp_path, **options)
        assert caught.value.line().startswith(problem)


def test_what_options_and_file_cannot_be_together_is_the_files_error(tmp_path: Path) -> None:
    (tmp_path / "job.yaml").write_text("command: [a]\nranks: 4\nlayout: {tp: 4}\n")
    with pytest.raises(BadInput, match=r"job\.yaml:3: layout: tp 4 x dp 1 x pp 1 is 4, but ranks is 2"):
        job_with_options(str(tmp_path / "job.yaml"), {"ranks": 2})


def test_an_option_may_mend_what_is_wrong_in_the_file(tmp_path: Path) -> None:
    (tmp_path / "job.yaml").write_text("command: [a]\nworkdir: nowhere\n")
    spec, changes = job_with_options(str(tmp_path / "job.yaml"), {"workdir": str(tmp_path)})
    assert spec.workdir == str(tmp_path)
    assert changes[0].endswith("(job.yaml: nowhere)")


def test_after_dashes_a_python_file_that_is_not_executable_is_run_by_python(place: Path) -> None:
    path = str(place / "bin")
    for program in ("train.py", "./train.py", str(place / "train.py")):
        assert literal_command_of((program, "-x"), str(place), path) == ("python3", program, "-x")
    (place / "train.py").chmod(0o755)
    assert literal_command_of(("./train.py",), str(place), path) == ("./train.py",)
    assert literal_command_of(("train.py",), str(place), path) == ("python3", "train.py")  # not on PATH
    (place / "bin/train.py").symlink_to(place / "train.py")
    assert literal_command_of(("train.py",), str(place), path) == ("train.py",)
    for words in (("missing.py",), ("python3", "train.py"), ("notes.txt",), ("a\0.py",), ()):
        assert literal_command_of(words, str(place), path) == words
