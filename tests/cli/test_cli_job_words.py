"""Words of the command line: which are options, which the program's, and what they mean."""

from __future__ import annotations

import os
from pathlib import Path
from typing import Annotated, Any

import pytest
import typer
from hypothesis import given
from hypothesis import strategies as st

from unidle.cli.job_words import (
    JobCommand,
    JobFileArgument,
    JobOptions,
    TypedProgram,
    _warn_of_options,
    ranks_of,
)
from unidle.cli.option_set import with_options
from unidle.cli.run import _warn_of_many
from unidle.cli.times import duration_option, moment, seconds_of
from unidle.errors import BadInput
from unidle.jobs import JobSpec

_found: list[tuple[str | None, int | None, Any]] = []
_app = typer.Typer()


@_app.command(cls=JobCommand)
@with_options(described=JobOptions)
def _run(context: typer.Context, job: JobFileArgument = None, *, described: JobOptions) -> None:
    _found.append((job, described.ranks, context.obj))


def parsed(*words: str, after: tuple[str, ...] | None = None) -> tuple[str | None, int | None, Any]:
    """The job file, ``--ranks`` and the program that a command like ``run`` finds in its words."""
    _app(args=list(words), obj=after, standalone_mode=False)
    return _found.pop()


def test_all_that_follows_a_program_belongs_to_it() -> None:
    words = ("python", "x.py", "--ranks", "9", "--help", "-x", "job.yaml")
    assert parsed("--ranks", "2", "--env", "A=B", *words) == (None, 2, TypedProgram(words))


@pytest.mark.parametrize(
    ("text", "words", "hinted"),
    [
        ("print(1)", ("x.py", "--ranks", "2"), ["--ranks"]),
        ("print(1)", ("python", "x.py", "--max-restarts=2", "--lr", "3"), ["--max-restarts"]),
        ("parser.add_argument('--ranks')", ("x.py", "--ranks", "2"), []),
        ("print(args.max_restarts)", ("x.py", "--max-restarts", "2"), []),
        ("print(1)", ("x.py", "--lr", "2"), []),
        ("print(1)", ("bash", "x.sh", "--ranks", "2"), []),
        (None, ("x.py", "--ranks", "2"), []),
    ],
)
def test_an_option_that_a_script_does_not_know_is_pointed_out(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str],
    text: str | None, words: tuple[str, ...], hinted: list[str],
) -> None:  # fmt: skip
    monkeypatch.chdir(tmp_path)
    if text is not None:
        Path("x.py").write_text(text)
    _warn_of_options(words, "run")
    lines = " ".join(capsys.readouterr().err.split()).split("unidle: ")[1:]
    assert [line.split()[0] for line in lines] == hinted
    assert all(
        line.rstrip().endswith("x.py") and f"unidle run {line.split()[0]} ..." in line for line in lines
    )


def test_options_stand_on_both_sides_of_a_job_file() -> None:
    assert parsed("--env", "A=B", "job.yaml", "--ranks", "3") == ("job.yaml", 3, None)
    assert parsed("-", "--ranks=3") == ("-", 3, None)


def test_a_double_dash_after_a_program_is_the_programs() -> None:
    assert parsed("x.py", "-a", after=("-b", "--")) == (
        None,
        None,
        TypedProgram(("x.py", "-a", "--", "-b", "--")),
    )


def test_a_command_after_a_double_dash_is_taken_as_it_is() -> None:
    assert parsed("--ranks", "2", after=("x.py",)) == (None, 2, ("x.py",))


@given(st.lists(st.text(max_size=5), max_size=6))
def test_the_words_of_a_program_arrive_whole(arguments: list[str]) -> None:
    assert parsed("--ranks", "2", "program", *arguments)[2] == TypedProgram(("program", *arguments))


def test_options_become_fields_of_a_job_file(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    given = JobOptions(
        ranks=2, env=["A=b=c", "D="], memory="4GB", workdir="code", timeout=5400.0, max_restarts=0, checkpoint="ckpt",
        user="ada",
    )  # fmt: skip
    assert given.fields() == {
        "ranks": 2, "env": {"A": "b=c", "D": ""}, "limits": {"memory": "4GB"}, "workdir": str(tmp_path / "code"),
        "timeout_s": 5400.0, "restart": {"max": 0}, "checkpoint": {"path": "ckpt"},
    }  # fmt: skip


@pytest.mark.parametrize(
    ("text", "seconds"),
    [("90", 90), ("0.5", 0.5), ("1e3", 1000), ("2h", 7200), ("10m30s", 630), ("1d 1h", 90_000)],
)
def test_times_are_seconds_or_have_units(text: str, seconds: float) -> None:
    assert seconds_of("--timeout", text) == seconds


@pytest.mark.parametrize("text", ["", "soon", "-5", "5m2h", "nan", "5 minutes"])
def test_what_is_no_time_is_one_error(text: str) -> None:
    with pytest.raises(BadInput, match="--timeout: is not a time"):
        seconds_of("--timeout", text)


def test_ranks_are_numbers_and_ranges() -> None:
    assert ranks_of("--logs", "3,0-1, 1", 4) == (0, 1, 3)
    for text, problem in (
        ("4", "no such rank"),
        ("0-4", "no such rank"),
        ("2-1", "names no"),
        ("x", "names no"),
        ("", "names no"),
    ):
        with pytest.raises(BadInput, match=f"--logs: .*{problem}"):
            ranks_of("--logs", text, 4)


def test_a_variable_needs_a_value() -> None:
    with pytest.raises(BadInput, match=r"--env: is no NAME=VALUE \(got 'A'\); --env A=VALUE"):
        JobOptions(env=["A"]).fields()


def test_a_duration_has_the_same_forms_in_every_option() -> None:
    found: list[float | None] = []
    app = typer.Typer()

    @app.command()
    def wait(
        timeout: Annotated[float | None, duration_option("--timeout", text="", least=1, most=7200)] = None,
    ) -> None:
        found.append(timeout)

    for words in ([], ["--timeout", "90"], ["--timeout", "1m30s"], ["--timeout=2h"]):
        app(args=words, standalone_mode=False)
    assert found == [None, 90, 90, 7200]
    for text, problem in (("3h", "too long .*; 1 s to 7200 s"), ("0.5", "too short"), ("soon", "not a time")):
        with pytest.raises(BadInput, match=f"--timeout: is {problem}"):
            app(args=["--timeout", text], standalone_mode=False)


def test_a_moment_is_before_or_after_another_one_or_a_date() -> None:
    now, second = 1_800_000_000 * 10**9, 10**9
    assert moment("--since", "1h30m", now) == now - 5400 * second
    assert moment("--begin", "2h", now, ahead=True) == now + 7200 * second
    assert moment("--since", "90", now, plain="s") == now - 90 * second
    assert moment("--since", "90", now, plain="ns") == 90
    assert moment("--since", "2026-01-31T12:00:00+00:00", now) == 1_769_860_800 * second
    for text in ("90", "soon", "9" * 400, "9" * 400 + "h", "2026-13-01", ""):
        with pytest.raises(BadInput, match="--since: is not a time"):
            moment("--since", text, now)


def test_far_more_ranks_than_cores_are_run_with_a_warning(capsys: pytest.CaptureFixture[str]) -> None:
    cores = len(os.sched_getaffinity(0))
    _warn_of_many(JobSpec(("train",), ranks=32 * cores))
    assert capsys.readouterr().err == ""
    _warn_of_many(JobSpec(("train",), ranks=32 * cores + 1))
    assert f"unidle: {32 * cores + 1:,} ranks on {cores} core" in capsys.readouterr().err
