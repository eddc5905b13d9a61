"""The help of every command: fits 80 columns, is never cut short, and each option has one name and one meaning."""

from __future__ import annotations

import re
from collections import defaultdict
from collections.abc import Iterator
from contextlib import redirect_stdout
from functools import cache
from io import StringIO
from typing import Any

import pytest
import typer

from e2e.commands import unidle
from unidle.cli.commands import app
from unidle.cli.help import name_of, old_names, short_help
from unidle.cli.index import SECTIONS

OF_TWO_KINDS = {
    "--rank": "one where only one can be read (`progress`)",
    "--device": "a kind of device in `run`, a device in filters and where one is measured: as in the files",
    "--tier": "how thorough a check is, and how a profile is taken: the names of the tiers differ",
    "--format": "each command writes other formats",
    "--job": "a job's name, and a job file where no job is there yet",
    "--store": "drills keep their log in a SQLite file only",
    "--state": "states of jobs in `list`, the directory of an agent",
    "--schedule": "several where they are compared",
    "--policy": "several where they are compared",
    "--seeds": "a range where it is long",
    "--checkpoint-every": "auto where there is a cost model",
    "--gantt": "an SVG file", "--perfetto": "a JSON file",
    "--compare": "a switch that is on by default in one command, off in another, with its own opposite",
    "--check": "a switch that is on by default in one command, off in another",
    "--pods": "a directory of the kubelet (`agent`), a file of a trace (`replay openb`)",
    "--wait": "a switch where the end is awaited, a time where a rank's beginning is (`fill run`)",
    "--out": "the directory of a filler's results (`fill run`), a file elsewhere",
    "--dtype": "types that can be measured, and that can be served",
    "--model": "a directory where it is loaded, a name where it is requested",
    "--against": "what a result is compared with: other windows, files, or other ways to run",
}  # fmt: skip
"""Options whose value is written differently in two commands although they mean the same thing, and why."""


def walk(command: Any, path: tuple[str, ...] = ()) -> Iterator[tuple[tuple[str, ...], Any]]:
    yield path, command
    for name, below in getattr(command, "commands", {}).items():
        yield from walk(below, (*path, name))


@cache
def root() -> Any:
    return typer.main.get_command(app())


@cache
def commands() -> dict[tuple[str, ...], Any]:
    return dict(walk(root()))


def options(command: Any) -> list[Any]:
    return [one for one in command.params if one.param_type_name == "option" and not one.hidden]


@cache
def help_of(path: tuple[str, ...]) -> str:
    with pytest.MonkeyPatch.context() as patch, redirect_stdout(StringIO()) as printed:
        patch.setenv("COLUMNS", "80")
        root().main(args=[*path, "--help"], prog_name="unidle", standalone_mode=False)
    return printed.getvalue()


def test_no_line_of_any_help_is_wider_than_80_columns() -> None:
    wide = [(path, line) for path in commands() for line in help_of(path).splitlines() if len(line) > 80]
    assert wide == []


def test_no_help_is_cut_short() -> None:
    """Repetition in a form (`NAME[,NAME...]`, `[ARGS]...`) is no cut."""
    cut = [
        (path, line)
        for path in commands()
        for line in help_of(path).splitlines()
        if re.search(r"(?<![\]}A-Z])\.\.\.(?!\])", line)
    ]
    assert cut == []


def test_every_command_is_described_in_one_line_of_the_list_that_it_is_in() -> None:
    for path, command in commands().items():
        for name, below in getattr(command, "commands", {}).items():
            described = [line for line in help_of(path).splitlines() if re.match(rf"  {name} +\S", line)]
            assert described and described[0].endswith(short_help(below)[-20:]), (path, name)
            assert short_help(below).endswith("."), (path, name)


def test_every_option_and_argument_has_help() -> None:
    bare = [
        (path, one.name) for path, command in commands().items() for one in command.params if not one.help
    ]
    assert bare == []


def test_every_value_has_a_name_of_our_own() -> None:
    unnamed = [
        (path, one.name)
        for path, command in commands().items()
        for one in command.params
        if not getattr(one, "is_flag", False) and not one.metavar and not one.type_descriptor.is_choice
    ]
    assert unnamed == []


def test_an_option_name_means_the_same_in_every_command() -> None:
    kinds: dict[str, dict[str, list[str]]] = defaultdict(lambda: defaultdict(list))
    for path, command in commands().items():
        for one in options(command):
            kind = "switch" if one.is_flag else one.metavar or "choice"
            kinds[name_of(one)][kind].append(" ".join(path))
    differ = {
        name: dict(found) for name, found in kinds.items() if len(found) > 1 and name not in OF_TWO_KINDS
    }
    assert differ == {}


def test_an_old_name_of_an_option_is_understood_and_shown_nowhere() -> None:
    old = {
        (path, name)
        for path, command in commands().items()
        for one in options(command)
        for name in old_names(one)
    }
    assert (("ledger",), "--start") in old and (("report",), "--output") in old
    shown = [(path, name) for path, name in old if re.search(rf"(?<![-\w]){name}(?![-\w])", help_of(path))]
    assert shown == []


def test_every_command_has_its_place_in_the_overview() -> None:
    placed = [name for names in SECTIONS.values() for name in names]
    assert len(placed) == len(set(placed))
    assert "More commands" not in help_of(())
    assert set(commands()[()].commands) <= set(placed)


@pytest.mark.parametrize(
    ("words", "meant"),
    [
        ("explian", "`explain`"),
        ("ps", "`unidle list`"),
        ("drain n1", "`unidle guard drain`"),
        ("guard nods", "`nodes`"),
        ("ledger --strat 1h", "--since"),
        ("ledger --sinse 1h", "--since"),
    ],
)
def test_a_wrong_word_is_answered_with_the_near_one(words: str, meant: str) -> None:
    done = unidle(*words.split())
    assert done.returncode == 2
    assert f"did you mean {meant}" in done.stderr
