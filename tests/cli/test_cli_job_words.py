"""Words of the command line: which are options, which the program's, and what they mean."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import typer
from hypothesis import given
from hypothesis import strategies as st

from unidle.cli.job_words import (
    EnvOption,
    JobCommand,
    JobFileArgument,
    Program,
    RanksOption,
    options_of,
    ranks_of,
    seconds_of,
)
from unidle.errors import BadInput


def parsed(*words: str, after: tuple[str, ...] | None = None) -> tuple[str | None, int | None, Any]:
    """The job file, ``--ranks`` and the program that a command like ``run`` finds in its words."""
    found: list[tuple[str | None, int | None, Any]] = []
    app = typer.Typer()

    @app.command(cls=JobCommand)
    def run(
        context: typer.Context, job: JobFileArgument = None, ranks: RanksOption = None, env: EnvOption = None
    ) -> None:
        found.append((job, ranks, context.obj))

    app(args=list(words), obj=after, standalone_mode=False)
    return found[0]


def test_all_that_follows_a_program_belongs_to_it() -> None:
    words = ("python", "x.py", "--ranks", "9", "--help", "-x", "job.yaml")
    assert parsed("--ranks", "2", "--env", "A=B", *words) == (None, 2, Program(words))


def test_options_stand_on_both_sides_of_a_job_file() -> None:
    assert parsed("--env", "A=B", "job.yaml", "--ranks", "3") == ("job.yaml", 3, None)
    assert parsed("-", "--ranks=3") == ("-", 3, None)


def test_a_double_dash_after_a_program_is_the_programs() -> None:
    assert parsed("x.py", "-a", after=("-b", "--")) == (None, None, Program(("x.py", "-a", "--", "-b", "--")))


def test_a_command_after_a_double_dash_is_taken_as_it_is() -> None:
    assert parsed("--ranks", "2", after=("x.py",)) == (None, 2, ("x.py",))


@given(st.lists(st.text(max_size=5), max_size=6))
def test_the_words_of_a_program_arrive_whole(arguments: list[str]) -> None:
    assert parsed("--ranks", "2", "program", *arguments)[2] == Program(("program", *arguments))


def test_options_become_fields_of_a_job_file(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    assert options_of(
        name=None, ranks=2, env=["A=b=c", "D="], memory="4GB", workdir="code", timeout="1h30m", max_restarts=0,
        checkpoint="ckpt",
    ) == {
        "ranks": 2, "env": {"A": "b=c", "D": ""}, "limits": {"memory": "4GB"}, "workdir": str(tmp_path / "code"),
        "timeout_s": 5400.0, "restart": {"max": 0}, "checkpoint": {"path": "ckpt"},
    }  # fmt: skip


@pytest.mark.parametrize(
    ("text", "seconds"), [("90", 90), ("0.5", 0.5), ("2h", 7200), ("10m30s", 630), ("1d 1h", 90_000)]
)
def test_times_are_seconds_or_have_units(text: str, seconds: float) -> None:
    assert seconds_of("--timeout", text) == seconds


@pytest.mark.parametrize("text", ["", "soon", "-5", "5m2h", "1e3", "5 minutes"])
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
        options_of(env=["A"])
