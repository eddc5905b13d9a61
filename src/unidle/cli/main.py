"""The command line. Each command imports what it needs when it runs."""

from __future__ import annotations

import os
import sys
from collections.abc import Sequence
from importlib import import_module
from pathlib import Path
from typing import Annotated, Any, Final, NoReturn

import typer

from unidle import __version__
from unidle.cli import complete
from unidle.cli.common import close_stores, print_json, warn
from unidle.cli.help import Commands, Group
from unidle.cli.usage import USAGE_ERROR, in_one_line, is_help
from unidle.errors import BadInput, UnidleError

EXIT_CODES: Final[dict[int, str]] = {
    0: "success; for `run`: the job succeeded",
    1: "the job failed or was cancelled, or a check found something",
    2: "bad input: an option, a job file, a fleet file, a job that does not exist",
    3: "cannot run here: for instance, the gang needs more devices than the fleet has; for `check`: undecided",
    4: "the store is held by another writer, damaged, gone or out of reach",
    5: "for `profile`: the process or job ended before the first sample",
    130: "interrupted",
}

SECTIONS: Final[dict[str, tuple[str, ...]]] = {
    "Jobs": ("run", "submit", "list", "logs", "cancel", "rm", "prune", "keep"),
    "Insight": ("show", "explain", "progress", "ledger", "report", "profile", "predict"),
    "Fleet and queues": ("up", "fleet", "queue", "place", "clusters", "replay"),
    "Faults": ("check", "guard", "checkpoint", "drill"),
    "Data centres": ("span",),
    "Store": ("store", "doctor", "schema"),
}
"""The commands in the order of the help."""

# The modules of this package and their commands.
_ROOMS: Final[dict[str, tuple[str, ...]]] = {
    "run": ("run",),
    "up": ("up",),
    "check": ("check",),
    "jobs": ("submit", "list", "show", "explain", "cancel"),
    "logs": ("logs",),
    "remove": ("rm", "prune"),
    "keep": ("keep",),
    "progress": ("progress",),
    "clusters": ("clusters",),
    "place": ("place",),
    "queue": ("queue",),
    "predict": ("predict",),
    "ledger": ("ledger", "report"),
    "replay": ("replay",),
    "guard": ("guard",),
    "drill": ("drill",),
    "span": ("span",),
    "checkpoint": ("checkpoint",),
    "store": ("store",),
    "profile": ("profile",),
    "machine": ("fleet", "schema", "doctor"),
}


class _Root(Group):
    sections = SECTIONS

    def format_epilog(self, _ctx: Any, formatter: Any) -> None:
        """What the command's exit code means."""
        with formatter.section("Exit codes"):
            formatter.write_dl([(str(code), text) for code, text in EXIT_CODES.items()])
        formatter.write("\n`unidle COMMAND --help` describes a command.\n")


_app = Commands(
    name="unidle", cls=_Root,
    help="Keeps every GPU-second of a training fleet at work, and shows where each one went.",
)  # fmt: skip
_registered: set[str] = set()


def _version(wanted: bool) -> None:
    if wanted:
        typer.echo(f"unidle {__version__}")
        raise typer.Exit


@_app.callback()
def _options(
    version: Annotated[
        bool, typer.Option("--version", callback=_version, is_eager=True, help="Print the version.")
    ] = False,
) -> None:
    """Options before the command."""


def app(words: Sequence[str] = ()) -> typer.Typer:
    """The command line; of rooms it has those alone that ``words`` need, where they begin with a command."""
    needed = [room for room, commands in _ROOMS.items() if words and words[0] in commands]
    for room in needed or _ROOMS:
        if room not in _registered:
            _registered.add(room)
            import_module(f"unidle.cli.{room}").register(_app)
    return _app


def _split(argv: Sequence[str]) -> tuple[list[str], tuple[str, ...] | None]:
    """What comes before the first ``--``, and the command after it (None without a ``--``)."""
    if "--" not in argv:
        return list(argv), None
    at = argv.index("--")
    return list(argv[:at]), tuple(argv[at + 1 :])


def _only_where_it_belongs(arguments: Sequence[str], command: tuple[str, ...] | None) -> None:
    name = next((word for word in arguments if not word.startswith("-")), "")
    if command is not None and name not in ("run", "submit"):
        raise BadInput(
            "only `unidle run` and `unidle submit` accept a command", field="--", value=" ".join(command),
            remedy="leave it out",
        )  # fmt: skip


def _refuse(error: Exception, arguments: Sequence[str]) -> NoReturn:
    if is_help(error):
        typer.echo(str(error), err=True)
        sys.exit(2)
    _fail(in_one_line(error, arguments, _below()), arguments)


def _below() -> dict[str, tuple[str, ...]]:
    """The commands below each group."""
    return {
        str(group.name): tuple(str(command.name) for command in group.typer_instance.registered_commands)
        for group in _app.registered_groups
        if group.typer_instance is not None
    }


def _fail(error: UnidleError, arguments: Sequence[str]) -> NoReturn:
    """One line of standard error, and an exit code."""
    if arguments[:1] == ["profile"] and "--json" in arguments:
        print_json(error.to_json())
    warn(error.line())
    sys.exit(error.exit_code)


def _run(arguments: list[str], command: tuple[str, ...] | None) -> int | str | None:
    """The exit code of a command, however it ends."""
    try:
        code = app(arguments)(args=arguments, prog_name="unidle", obj=command, standalone_mode=False)
    except SystemExit as ended:
        if isinstance(ended.__context__, BrokenPipeError):  # typer makes a failure of it
            raise ended.__context__ from None
        return ended.code
    finally:
        close_stores()
    return code if isinstance(code, int) else 0


def _let_go_of_output() -> None:
    """What standard output does not take is not tried again when the interpreter ends."""
    try:
        sys.stdout.flush()
    except OSError:
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())


def main() -> None:
    """Entry point: runs a command, turns errors into one line and an exit code."""
    if complete.is_asked():
        known = app(complete.words_before())
        complete.answer(lambda: known(args=[], prog_name="unidle"))
    for stream in (sys.stdout, sys.stderr):
        stream.reconfigure(errors="replace")  # type: ignore[union-attr]  # a terminal without our characters
    arguments, command = _split(sys.argv[1:])
    if arguments[:1] in (["--show-completion"], ["--install-completion"]):
        complete.keep_order()
    try:
        _only_where_it_belongs(arguments, command)
        code = _run(arguments, command)
        sys.stdout.flush()  # what cannot be written is known now
        sys.exit(code)
    except USAGE_ERROR as error:
        _refuse(error, arguments)
    except UnidleError as error:
        _fail(error, arguments)
    except typer.Abort:
        sys.exit(1)
    except KeyboardInterrupt:
        sys.exit(130)
    except BrokenPipeError:
        _let_go_of_output()
        sys.exit(0)
    except OSError as error:
        _let_go_of_output()
        if isinstance(error, FileNotFoundError) and error.filename is None and _is_workdir_gone():
            warn("the working directory no longer exists: change to one that does, such as `cd`")
        else:
            warn(f"{error.strerror or error}" + (f": {error.filename}" if error.filename else ""))
        sys.exit(1)


def _is_workdir_gone() -> bool:
    try:
        Path.cwd()
    except FileNotFoundError:
        return True
    return False
