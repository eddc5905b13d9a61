"""``unidle exec``: a command that sees what a rank sees."""

from __future__ import annotations

import os
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Annotated

import typer

from unidle.cli.common import JobArgument, StoreOption, need_job, read_store, read_view
from unidle.errors import BadInput


def register(app: typer.Typer) -> None:
    """Add this file's command."""
    app.command("exec")(exec_)


def exec_(
    context: typer.Context,
    job: JobArgument = None,
    store: StoreOption = None,
    rank: Annotated[int, typer.Option("--rank", metavar="K", help="The rank.")] = 0,
    stdin: Annotated[
        bool, typer.Option("--stdin", "-i", help="Give the command the standard input of this one.")
    ] = False,
    tty: Annotated[bool, typer.Option("--tty", "-t", help="Give the command a terminal.")] = False,
) -> None:
    """Run a command in the environment of a rank.

    unidle exec JOB --rank 2 -- nvidia-smi

    The command runs where the rank does: on this machine, or in its pod. The exit code is that of the command; 125 if the
    rank does not run there.
    """
    from unidle.api.rank_exec import Terminal, in_rank, run_in_rank
    from unidle.store.cluster import calls_of

    if not context.obj:
        raise BadInput(
            "there is no command", field="--", remedy="unidle exec JOB --rank K -- COMMAND [ARGUMENT...]"
        )
    opened = read_store(store)
    wanted = in_rank(need_job(read_view(opened), job, live=True, started=True), rank, tuple(context.obj))
    if tty and not sys.stdin.isatty():
        raise BadInput("standard input is no terminal", field="--tty", remedy="leave it out")
    with _raw(tty and calls_of(opened) is not None):
        code = run_in_rank(opened, wanted, Terminal(tty, stdin, _size if tty else None))
    raise typer.Exit(code)


def _size() -> tuple[int, int]:
    found = os.get_terminal_size(0)
    return found.lines, found.columns


@contextmanager
def _raw(tty: bool) -> Iterator[None]:
    """Keys go to the command, also Ctrl-C."""
    if not tty:
        yield
        return
    import termios
    from tty import setraw

    before = termios.tcgetattr(0)
    setraw(0)
    try:
        yield
    finally:
        termios.tcsetattr(0, termios.TCSADRAIN, before)
