"""The command line as typer has it. Each command imports what it needs when it runs."""

from __future__ import annotations

import sys
from collections.abc import Sequence
from importlib import import_module
from typing import Annotated, Any

import typer

from unidle.cli import complete
from unidle.cli.common import close_stores
from unidle.cli.help import CommandGroup, Commands
from unidle.cli.index import COMMANDS, SECTIONS
from unidle.cli.overview import DESCRIPTION, VERSION_HELP, overview, version
from unidle.cli.usage import USAGE_ERROR, in_one_line, is_help


class _Root(CommandGroup):
    sections = SECTIONS

    def format_help(self, _ctx: Any, formatter: Any) -> None:
        """What the index holds, which is also what is shown without an import of the commands."""
        formatter.write(overview(formatter.width))


_app = Commands(name="unidle", cls=_Root, help=DESCRIPTION)
_registered: set[str] = set()


def _version(wanted: bool) -> None:
    if wanted:
        sys.stdout.write(version())
        raise typer.Exit


@_app.callback()
def _options(
    version: Annotated[
        bool, typer.Option("--version", callback=_version, is_eager=True, help=VERSION_HELP)
    ] = False,
) -> None:
    """Options before the command."""


def app(words: Sequence[str] = ()) -> typer.Typer:
    """The command line; of the commands it has only those that ``words`` need, where they begin with one."""
    needed = [COMMANDS[word][0] for word in words[:1] if word in COMMANDS]
    for module in needed or dict.fromkeys(module for module, _ in COMMANDS.values()):
        if module not in _registered:
            _registered.add(module)
            import_module(f"unidle.cli.{module}").register(_app)
    return _app


def run(arguments: list[str], command: tuple[str, ...] | None) -> int | str | None:
    """Run a command, and return its exit code. ``command``: what follows ``--``.

    Errors: :class:`unidle.errors.BadInput` for what the parser refuses, and those of the command.
    """
    try:
        code = app(arguments)(args=arguments, prog_name="unidle", obj=command, standalone_mode=False)
    except SystemExit as ended:
        if isinstance(ended.__context__, BrokenPipeError):  # typer makes a failure of it
            raise ended.__context__ from None
        return ended.code
    except USAGE_ERROR as error:
        if is_help(error):
            typer.echo(str(error), err=True)
            return 2
        raise in_one_line(error, arguments, _below()) from error
    except typer.Abort:
        return 1
    finally:
        close_stores()
    return code if isinstance(code, int) else 0


def _below() -> dict[str, tuple[str, ...]]:
    """The commands below each group."""
    return {
        str(group.name): tuple(str(command.name) for command in group.typer_instance.registered_commands)
        for group in _app.registered_groups
        if group.typer_instance is not None
    }


def offer_words() -> None:
    """Print what may follow the words that a shell completes, and end."""
    known = app(complete.words_before())
    complete.answer(lambda: known(args=[], prog_name="unidle"))
