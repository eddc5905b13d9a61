"""What all commands share: options, output, errors. Imports little: ``unidle --help`` must be quick."""

from __future__ import annotations

import json
import os
import sys
import time
from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from unidle.errors import BadInput
from unidle.words import counted

if TYPE_CHECKING:
    from unidle.store.protocol import Store
    from unidle.view.jobs import JobView
    from unidle.view.state import View

StoreOption = Annotated[
    str | None,
    typer.Option(
        "--store", "-s", metavar="PATH_OR_URL", envvar="UNIDLE_STORE", show_default=False,
        help="SQLite file or postgresql:// URL. Default: store.db in the user's data directory.",
    ),
]  # fmt: skip
JsonOption = Annotated[bool, typer.Option("--json", help="Print JSON instead of text.")]
JobArgument = Annotated[
    str,
    typer.Argument(metavar="JOB", show_default=False, help="Job id, a unique beginning of it, or a name."),
]
FleetOption = Annotated[
    str | None,
    typer.Option(
        "--fleet", metavar="FILE", show_default=False, help="Fleet file; default: what this machine has."
    ),
]
CpuDevicesOption = Annotated[
    int | None,
    typer.Option(
        "--cpu-devices", metavar="N", min=1, max=4096, show_default=False,
        help="CPU devices of this machine where it has no GPU and no fleet file (default 8).",
    ),
]  # fmt: skip


def store_address(given: str | None) -> str:
    """The store that a command means."""
    return given or str(data_dir() / "store.db")


def data_dir() -> Path:
    """The user's data directory for unidle."""
    base = os.environ.get("XDG_DATA_HOME") or str(Path.home() / ".local" / "share")
    return Path(base) / "unidle"


def read_store(given: str | None, *, requests: bool = False) -> Store:
    """Open a store to read it, also where it may not be written; ``requests`` to use its inbox."""
    from unidle.store.open import open_store

    return open_store(store_address(given), create=False, read_only=not requests)


def read_view(store: Store) -> View:
    """The view of what is in the store, with submitted jobs that no writer has taken over yet."""
    from unidle.view.snapshot import load_view

    requests = store.requests()  # before the log: what a writer takes over in between is in one of them
    view = load_view(store)
    if requests:
        from unidle.control.inbox import add_submitted

        add_submitted(view, requests)
    return view


def need_fleet(view: View, store: str | None) -> View:
    """The view, or :class:`BadInput` where no controller ever ran on its store: nothing can be said of no devices."""
    if view.fleet.nodes:
        return view
    address = store_address(store)
    raise BadInput(
        "no controller has told what fleet it has", field="--store", value=address,
        remedy=f"start one: `unidle up --store {address}`",
    )  # fmt: skip


def not_both(context: typer.Context, store: str, **others: object) -> None:
    """:class:`BadInput` where the option ``store`` is on the command line (not in the environment) beside others."""
    source = context.get_parameter_source(store)
    beside = next((name for name, value in others.items() if value is not None), None)
    if beside is not None and source is not None and source.name == "COMMANDLINE":
        option = f"--{beside.replace('_', '-')}"
        raise BadInput("do not go together", field=f"--store, {option}", remedy="leave one out")


def now_of(view: View) -> int:
    """Now, in the time of the view's log: a replay's or a simulation's ends with its last event."""
    return view.time_ns if view.modelled else max(time.time_ns(), view.time_ns)


def need_job(view: View, name: str) -> JobView:
    """The job that the user means, or :class:`BadInput`."""
    from unidle.control.describe import find_job

    job = find_job(view, name)
    if job is None:
        raise BadInput(
            "no such job in this store", field="JOB", value=name, remedy="`unidle list` shows the jobs"
        )
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


def say(text: str = "") -> None:
    """A line of standard output."""
    show(printable(text))


def show(text: str) -> None:
    """Text that is already fit for a terminal, and may have colours, on standard output."""
    sys.stdout.write(text + "\n")
    sys.stdout.flush()


def warn(text: str) -> None:
    """A line of standard error."""
    sys.stderr.write(f"unidle: {printable(text)}\n")
    sys.stderr.flush()


def printable(text: str) -> str:
    """Text without control characters (names and messages of jobs must not drive the terminal)."""
    if text.isprintable():
        return text
    return "".join(c if c.isprintable() or c in "\n\t" else "\N{REPLACEMENT CHARACTER}" for c in text)


def table(header: list[str], rows: list[list[str]]) -> list[str]:
    """Columns as wide as their content; numbers to the right."""
    if not rows:
        return []
    widths = [max(len(r[k]) for r in [header, *rows]) for k in range(len(header))]
    right = [all(_numeric(row[k]) for row in rows) for k in range(len(header))]
    lines = []
    for row in [header, *rows]:
        cells = [c.rjust(w) if r else c.ljust(w) for c, w, r in zip(row, widths, right, strict=True)]
        lines.append("  ".join(cells).rstrip())
    return lines


def _numeric(cell: str) -> bool:
    return cell in ("", "-") or cell.replace(".", "", 1).replace("-", "", 1).isdigit()


def figures(amount: float) -> str:
    """Four figures at most, without powers of ten: what is small has its millionths."""
    text = f"{amount:.4g}"
    return f"{amount:.6f}".rstrip("0").rstrip(".") if "e" in text else text


def age(ns: int) -> str:
    """A duration in words of at most two units."""
    seconds = max(ns, 0) / 1e9
    if seconds < 60:
        return f"{seconds:.1f} s"
    if seconds < 3600:
        return f"{int(seconds // 60)} min {int(seconds % 60):02d} s"
    if seconds < 86400:
        return f"{int(seconds // 3600)} h {int(seconds % 3600 // 60):02d} min"
    return f"{int(seconds // 86400)} d {int(seconds % 86400 // 3600)} h"


def clock_time(ns: int) -> str:
    """A moment in local time."""
    import datetime as dt

    moment = dt.datetime.fromtimestamp(ns / 1e9, tz=dt.UTC).astimezone()
    return moment.strftime("%Y-%m-%d %H:%M:%S.%f")[:-3]
