"""``unidle logs``: what the ranks printed."""

from __future__ import annotations

import sys
from typing import Annotated

import typer

from unidle.cli.common import JobArgument, StoreOption, data_dir, need_job, read_store, read_view, warn
from unidle.errors import BadInput


def register(app: typer.Typer) -> None:
    """Add this room's command."""
    app.command("logs")(logs)


def logs(
    job: JobArgument,
    store: StoreOption = None,
    rank: Annotated[
        int | None,
        typer.Option(metavar="K", show_default=False, help="Only this rank; default: all, each line marked."),
    ] = None,
    attempt: Annotated[
        int | None, typer.Option(metavar="N", show_default=False, help="Default: the last attempt.")
    ] = None,
    follow: Annotated[
        bool, typer.Option("--follow", "-f", help="Go on as more is printed, over restarts too.")
    ] = False,
) -> None:
    """Print what a job's ranks printed (standard output and error)."""
    from unidle.cli.follow import LogFollower
    from unidle.control.session import run_root

    opened = read_store(store)
    found = need_job(read_view(opened), job)
    most = max([len(one.places) for one in found.attempts], default=found.spec.ranks)
    if rank is not None and not 0 <= rank < most:
        raise BadInput(
            "the job has no such rank", field="--rank", value=rank, remedy=f"0 to {most - 1}"
        )  # fmt: skip
    if not found.attempts:
        warn(f"{found.id} has not started yet" + (": waiting for its first line" if follow else ""))
    elif attempt is not None and not 1 <= attempt <= len(found.attempts):
        raise BadInput(
            "the job has no such attempt", field="--attempt", value=attempt, remedy=f"1 to {len(found.attempts)}"
        )  # fmt: skip
    ranks = range(most) if rank is None else [rank]
    reader = LogFollower(run_root(opened, data_dir()), found.id, ranks, sys.stdout.buffer)
    reader.run(opened, attempt, follow)
    opened.close()
