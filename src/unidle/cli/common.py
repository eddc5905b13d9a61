"""What all commands share: options, output, errors. Imports little: ``unidle --help`` must be quick."""

from __future__ import annotations

import json
import os
import sys
import time
from collections.abc import Mapping, Sequence
from contextlib import ExitStack
from typing import TYPE_CHECKING, Annotated, Any, Final

import typer

# the commands have these from here, the Python interface from there
from unidle.api.fleets import MOST_CPU_DEVICES
from unidle.api.stores import data_dir as data_dir
from unidle.api.stores import mode_of as mode_of
from unidle.api.stores import store_address as store_address
from unidle.cli import complete
from unidle.cli.tables import colours, columns, folded
from unidle.cli.tables import table as table
from unidle.errors import BadInput
from unidle.words import age as age
from unidle.words import clock_time as clock_time
from unidle.words import counted
from unidle.words import figures as figures

if TYPE_CHECKING:
    from unidle.store.protocol import Store
    from unidle.view.jobs import JobView
    from unidle.view.state import View

_QUOTES: Final = ("  | ", "  next: ")  # of unidle.guard.failure_words.failure_lines

StoreOption = Annotated[
    str | None,
    typer.Option(
        "--store", "-s", metavar="PATH_OR_URL", envvar="UNIDLE_STORE", show_default=False,
        help="SQLite file or postgresql:// URL; default: store.db in the user's data directory.",
    ),
]  # fmt: skip
LocalStoreOption = Annotated[
    str | None,
    typer.Option(
        "--store", "-s", metavar="PATH_OR_URL", envvar="UNIDLE_STORE", show_default=False,
        help="SQLite file or postgresql:// URL; default: store.db in the user's data directory.",
    ),
]  # fmt: skip
"""Of commands that are not for a cluster: see :mod:`unidle.cli.cluster_options`."""
JsonOption = Annotated[bool, typer.Option("--json", help="Print JSON instead of text.")]
JobsArgument = Annotated[
    list[str],
    typer.Argument(
        metavar="JOB", show_default=False, autocompletion=complete.jobs,
        help="Job id, a unique prefix of it, or a name.",
    ),
]  # fmt: skip
JobArgument = Annotated[
    str | None,
    typer.Argument(
        metavar="JOB",
        show_default=False,
        autocompletion=complete.jobs,
        help="Job id, a unique prefix of it, or a name. Default: the newest job; running and waiting jobs come "
        "first.",
    ),
]
FleetOption = Annotated[
    str | None,
    typer.Option(
        "--fleet",
        metavar="FILE",
        show_default=False,
        help="Fleet file; default: the devices of this machine.",
    ),
]
CpuDevicesOption = Annotated[
    int | None,
    typer.Option(
        "--cpu-devices", metavar="N", min=1, max=MOST_CPU_DEVICES, show_default=False,
        help="Number of CPU devices, if the machine has no GPU and no fleet file is given; default: one per "
        "core, and at least as many as the job needs.",
    ),
]  # fmt: skip


ModeOption = Annotated[
    str, typer.Option("--mode", metavar="OCTAL", help="Permissions of a file that is made, such as 0640 or 0660."),
]  # fmt: skip
StoreModeOption = Annotated[
    str, typer.Option("--mode", metavar="OCTAL", help="Permissions of the store, if it is made now, such as 0640 or 0660."),
]  # fmt: skip


_opened: Final = ExitStack()


def read_store(given: str | None, *, requests: bool = False) -> Store:
    """:func:`unidle.api.stores.read_store`. The store is closed when the command ends: a view reads ended jobs from it."""
    from unidle.api import stores

    opened = stores.read_store(given, requests=requests)
    _opened.callback(opened.close)
    return opened


def close_stores() -> None:
    """Close what :func:`read_store` opened."""
    _opened.close()


def read_view(store: Store) -> View:
    """The view of the store; requests that are damaged are reported."""
    from unidle.api import stores

    view = stores.read_view(store)
    for damaged in store.damaged_requests():
        warn(
            f"request {damaged.id} ({damaged.kind or 'of unknown kind'}) is damaged in the store; it is passed over"
        )
    return view


def need_fleet(view: View, store: str | None) -> View:
    """The view, or :class:`BadInput` where no controller ever ran on its store: an empty set of devices is
    undecided.
    """
    if view.fleet.nodes:
        return view
    address = store_address(store)
    raise BadInput(
        "the store has no fleet yet: no controller has run on it", field="--store", value=address,
        remedy=f"start one with `unidle up --store {address}`",
    )  # fmt: skip


def not_both(context: typer.Context, store: str, **others: object) -> None:
    """:class:`BadInput` where the option ``store`` is on the command line (not in the environment) together with others."""
    source = context.get_parameter_source(store)
    beside = next((name for name, value in others.items() if value is not None), None)
    if beside is not None and source is not None and source.name == "COMMANDLINE":
        option = f"--{beside.replace('_', '-')}"
        raise BadInput("cannot be used together", field=f"--{store}, {option}", remedy="leave one out")


def now_of(view: View) -> int:
    """Now, in the time of the view's log: a replay's or a simulation's ends with its last event."""
    return view.time_ns if view.modelled else max(time.time_ns(), view.time_ns)


def need_job(
    view: View, name: str | None, *, live: bool = False, started: bool = False, removed: bool = False
) -> JobView:
    """The job that the user means, or :class:`BadInput`. Without a name the newest one, which is named on stderr.

    ``live`` and ``started``: as :func:`unidle.control.queries.find.newest_job`.
    """
    from unidle.control.queries.find import find_job, newest_job

    if name is not None:
        return find_job(view, name, removed=removed)
    job = newest_job(view, live=live, started=started)
    warn(f"newest job: {job.id} ({job.state})")
    return job


def cannot_write(field: str, path: str, error: OSError) -> BadInput:
    """The error for a file that the user named and that cannot be written."""
    return BadInput(
        f"cannot be written: {error.strerror}", field=field, value=path, remedy="name another place"
    )


def say_unwatched(reasons: Mapping[str, str | None]) -> None:
    """A line for each reason why nodes are not watched; ``reasons`` by node, None for one that is."""
    by_reason: dict[str, list[str]] = {}
    for node, why in reasons.items():
        if why:
            by_reason.setdefault(why, []).append(node)
    for why, nodes in by_reason.items():
        names = (
            ", ".join(nodes)
            if len(nodes) <= 4
            else f"{nodes[0]} to {nodes[-1]} ({counted(len(nodes), 'node')})"
        )
        say(f"{names}: not watched: {why}")


def print_json(value: Any) -> None:
    """One JSON value on one line of standard output."""
    sys.stdout.write(json.dumps(value, ensure_ascii=False, separators=(", ", ": ")) + "\n")
    sys.stdout.flush()


def say(text: str = "", *, hang: int | None = None) -> None:
    """Text on standard output, folded to the width of the terminal.

    ``hang``: indent of a line's continuation, in columns; default: two more than the line's own.
    """
    for line in printable(text).split("\n"):
        show(fitted(line, hang))


def fitted(line: str, hang: int | None = None) -> str:
    """A line folded to the width of the terminal; one that quotes a job's output, or a command, is left as it is."""
    if line.startswith(_QUOTES):
        return line
    own = len(line) - len(line.lstrip())
    return "\n".join(folded(line, columns(), own + 2 if hang is None else hang))


def say_whole(text: str) -> None:
    """A line of standard output that is not folded: a command or a path to copy, or a line of a job's output."""
    show(printable(text))


def named_store(given: str | None) -> str | None:
    """The store as the next command has to name it; None where it is found without that."""
    return None if given in (None, store_address(os.environ.get("UNIDLE_STORE"))) else given


def show(text: str) -> None:
    """Text that is already fit for a terminal, and may have colours, on standard output."""
    sys.stdout.write(text + "\n")
    sys.stdout.flush()


def warn(text: str) -> None:
    """A line of standard error; on a terminal it is folded to the width, elsewhere it stays one line."""
    line = f"unidle: {printable(text)}"
    sys.stderr.write((fitted(line) if sys.stderr.isatty() else line) + "\n")
    sys.stderr.flush()


def printable(text: str) -> str:
    """Text without control characters (names and messages of jobs must not drive the terminal)."""
    if text.isprintable():
        return text
    return "".join(c if c.isprintable() or c in "\n\t" else "\N{REPLACEMENT CHARACTER}" for c in text)


def show_table(header: Sequence[str], rows: Sequence[Sequence[str]], indent: str = "") -> None:
    """A table on standard output, with states in their colours on a terminal."""
    clean = [[printable(cell) for cell in row] for row in rows]
    for line in table(header, clean, indent=indent, coloured=colours()):
        show(line)
