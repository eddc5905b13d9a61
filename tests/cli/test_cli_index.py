"""The index of commands agrees with the commands, and what it saves: a command imports only its own file."""

from __future__ import annotations

import subprocess
import sys
from importlib import import_module
from typing import Any

import pytest
import typer
from typer.core import TyperGroup

from unidle.cli.commands import app
from unidle.cli.help import CommandGroup, Commands, short_help
from unidle.cli.index import COMMANDS, EXIT_CODES, SECTIONS
from unidle.cli.overview import answer, overview


def loaded_by(code: str) -> set[str]:
    words = [sys.executable, "-c", f"import sys\n{code}\nprint('\\nloaded', *sys.modules)"]
    return set(
        subprocess.run(words, capture_output=True, text=True, timeout=60, check=True)
        .stdout.rpartition("\nloaded ")[2]
        .split()
    )


@pytest.fixture(scope="module")
def root() -> Any:
    return typer.main.get_command(app())


def test_the_index_has_each_command_with_its_module_and_its_help(root: Any) -> None:
    found = {}
    for module in {module for module, _ in COMMANDS.values()}:
        alone = Commands()
        import_module(f"unidle.cli.{module}").register(alone)
        names = [one.name for one in (*alone.registered_commands, *alone.registered_groups)]
        found |= {name: (module, short_help(root.commands[name])) for name in names}
    assert found == COMMANDS
    assert list(COMMANDS) == list(root.commands)


@pytest.mark.parametrize("width", [50, 57, 78, 98])
def test_the_overview_is_what_the_parser_would_show(root: Any, width: int) -> None:
    context = root.make_context("unidle", [], resilient_parsing=True, terminal_width=width)
    formatter = context.make_formatter()
    root.format_usage(context, formatter)
    root.format_help_text(context, formatter)
    CommandGroup.format_options(root, context, formatter)
    with formatter.section("Exit codes"):
        formatter.write_dl([(str(code), text) for code, text in EXIT_CODES.items()])
    formatter.write("\n`unidle COMMAND --help` describes a command.\n")
    assert overview(width) == formatter.getvalue()
    assert isinstance(root, TyperGroup)


def test_each_command_has_one_section() -> None:
    assert sorted(name for names in SECTIONS.values() for name in names) == sorted(COMMANDS)


def test_the_overview_and_the_version_import_no_parser() -> None:
    assert answer(["list", "--help"]) is None
    code = (
        "from unidle.cli import main; sys.argv = ['unidle', '{}']\ntry: main.main()\nexcept SystemExit: pass"
    )
    for word in ("--help", "-h", "--version"):
        assert not {"typer", "unidle.cli.common"} & loaded_by(code.format(word))


def test_a_command_imports_its_own_file_and_no_pydantic() -> None:
    code = "from unidle.cli import commands\ncommands.run(['schema', 'job'], None)"
    loaded = loaded_by(code)
    assert "unidle.cli.machine" in loaded
    others = {f"unidle.cli.{module}" for module, _ in COMMANDS.values()} - {
        "unidle.cli.machine",
        "unidle.cli.span",
    }
    assert not loaded & others
    assert not any(name.startswith("pydantic") for name in loaded)
