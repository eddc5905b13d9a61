"""The entry point: runs a command, and turns errors into one line and an exit code."""

from __future__ import annotations

import os
import sys
from collections.abc import Callable, Sequence
from functools import partial
from typing import NoReturn

from unidle.cli.overview import answer
from unidle.errors import BadInput, UnidleError


def main() -> None:
    """Run the command line of this process, and exit."""
    if os.environ.get("_UNIDLE_COMPLETE"):
        from unidle.cli.commands import offer_words

        offer_words()
    for stream in (sys.stdout, sys.stderr):
        stream.reconfigure(errors="replace")  # type: ignore[union-attr]  # a terminal without our characters
    arguments, command = _split(sys.argv[1:])
    run = _chosen(arguments, command)
    try:
        _only_where_it_belongs(arguments, command)
        code = run()
        sys.stdout.flush()  # what cannot be written is known now
        sys.exit(code)
    except UnidleError as error:
        _fail(error, arguments)
    except KeyboardInterrupt:
        sys.exit(130)
    except BrokenPipeError:
        _let_go_of_output()
        sys.exit(0)
    except OSError as error:
        _let_go_of_output()
        _warn_of(error)
        sys.exit(1)


def _chosen(arguments: list[str], command: tuple[str, ...] | None) -> Callable[[], int | str | None]:
    """What returns the exit code. Only what needs a command imports typer."""
    text = answer(arguments) if command is None else None
    if text is not None:
        return partial(_print, text)
    from unidle.cli import commands, complete

    if arguments[:1] in (["--show-completion"], ["--install-completion"]):
        complete.keep_order()
    return partial(commands.run, arguments, command)


def _print(text: str) -> int:
    sys.stdout.write(text)
    return 0


def _split(argv: Sequence[str]) -> tuple[list[str], tuple[str, ...] | None]:
    """What comes before the first ``--``, and the command after it (None without a ``--``)."""
    if "--" not in argv:
        return list(argv), None
    at = argv.index("--")
    return list(argv[:at]), tuple(argv[at + 1 :])


def _only_where_it_belongs(arguments: Sequence[str], command: tuple[str, ...] | None) -> None:
    words = [word for word in arguments if not word.startswith("-")]
    if (
        command is not None
        and words[:1] not in (["run"], ["submit"], ["exec"])
        and words[:2] not in (["tune", "run"], ["tune", "profile"])
    ):
        raise BadInput(
            "only `unidle run`, `submit`, `exec`, `tune run` and `tune profile` accept a command", field="--", value=" ".join(command),
            remedy="leave it out",
        )  # fmt: skip


def _fail(error: UnidleError, arguments: Sequence[str]) -> NoReturn:
    """One line of standard error, and an exit code."""
    from unidle.cli.common import print_json, warn

    if arguments[:1] == ["profile"] and "--json" in arguments:
        print_json(error.to_json())
    warn(error.line())
    sys.exit(error.exit_code)


def _warn_of(error: OSError) -> None:
    from unidle.cli.common import warn

    if isinstance(error, FileNotFoundError) and error.filename is None and _is_workdir_gone():
        warn("the working directory no longer exists: change to one that does, such as `cd`")
    else:
        warn(f"{error.strerror or error}" + (f": {error.filename}" if error.filename else ""))


def _let_go_of_output() -> None:
    """What standard output does not take is not tried again when the interpreter ends."""
    try:
        sys.stdout.flush()
    except OSError:
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())


def _is_workdir_gone() -> bool:
    try:
        os.getcwd()  # noqa: PTH109  # pathlib takes 5 ms to import
    except FileNotFoundError:
        return True
    return False
