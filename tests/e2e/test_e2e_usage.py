"""What the command line itself refuses: one line with field, value and remedy, exit code 2."""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import pytest
import typer

from e2e.commands import UNIDLE, unidle
from unidle.cli.commands import app
from unidle.cli.main import main

REFUSED = {
    "run --nope": "--nope: unidle run has no such option; did you mean",
    "queue --jso": "--jso: unidle queue has no such option; did you mean --json",
    "run --ranks many": "--ranks: must be a valid integer (got 'many'); `unidle run --help`",
    "run --ranks=many": "--ranks: must be a valid integer (got 'many'); `unidle run --help`",
    "run --cpu-devices 99999 x": "--cpu-devices: must be less than or equal to 4096 (got '99999')",
    "replay trace --until inf": "--stop-after: must be less than or equal to 1000000 (got 'inf')",
    "replay openb --policy fgd": "--nodes: is missing; `unidle replay openb --help`",
    "replay openb --nodes": "--nodes: needs a value; `unidle replay openb --help`",
    "list --json=3": "--json: takes no value; `unidle list --help`",
    "list one two": "arguments: unidle list takes no more arguments (got 'one two'); `unidle list --help`",
    "lst": "COMMAND: no such command (got 'lst'); did you mean `list`",
    "replay nope": "COMMAND: no such command (got 'nope'); did you mean `openb`",
}


def commands(group: Any, before: Sequence[str] = ()) -> Iterator[list[str]]:
    """The words of each command that there is."""
    for name, command in group.commands.items():
        if hasattr(command, "commands"):
            yield from commands(command, [*before, name])
        else:
            yield [*before, name]


EVERY = [" ".join(words) for words in commands(typer.main.get_command(app()))]


def refused(words: Sequence[str], monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> str:
    monkeypatch.setattr(sys, "argv", ["unidle", *words])
    with pytest.raises(SystemExit) as ended:
        main()
    assert ended.value.code == 2
    out, err = capsys.readouterr()
    assert out == ""
    (line,) = err.splitlines()
    return line


@pytest.mark.parametrize("words", REFUSED)
def test_what_the_command_line_refuses_is_told_in_one_line(
    words: str, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    assert refused(words.split(), monkeypatch, capsys).startswith(f"unidle: {REFUSED[words]}")


@pytest.mark.parametrize("words", EVERY)
def test_every_command_refuses_an_unknown_option_in_one_line(
    words: str, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    line = refused([*words.split(), "--no-such-thing"], monkeypatch, capsys)
    assert line.startswith(f"unidle: --no-such-thing: unidle {words} has no such option; ")


def test_a_variable_of_the_environment_is_named_where_it_holds_the_value(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    broken = typer.Typer()

    @broken.command()
    def count(number: int = typer.Option(1, "--number", envvar="UNIDLE_TEST_NUMBER")) -> None:
        typer.echo(str(number))

    monkeypatch.setattr("unidle.cli.commands.app", lambda _: broken)
    monkeypatch.setenv("UNIDLE_TEST_NUMBER", "seven")
    line = refused([], monkeypatch, capsys)
    assert line.startswith(
        "unidle: --number (from UNIDLE_TEST_NUMBER): must be a valid integer (got 'seven')"
    )


def test_help_version_and_completion_stay_as_they_are() -> None:
    complete = {"_UNIDLE_COMPLETE": "complete_bash", "COMP_WORDS": "unidle li", "COMP_CWORD": "1"}
    with ThreadPoolExecutor(2) as pool:
        plain, version, run, done = pool.map(
            lambda one: unidle(*one[0], **one[1]),
            [((), {}), (("--version",), {}), (("run", "--help"), {}), ((), {"env": {**os.environ, **complete}})],
        )  # fmt: skip
    assert plain.returncode == 2 and plain.stderr.startswith("Usage: unidle [OPTIONS] COMMAND")
    assert version.returncode == 0 and version.stdout.startswith("unidle ")
    assert run.returncode == 0 and run.stdout.startswith("Usage: unidle run ")
    assert done.stdout.split() == ["list"]


def test_a_reader_that_went_away_is_no_error() -> None:
    line = f"set -o pipefail; {' '.join(UNIDLE)} run --help | true"
    done = subprocess.run(["bash", "-c", line], capture_output=True, text=True, timeout=60, check=False)
    assert done.stderr == ""
