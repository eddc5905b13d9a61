"""``unidle keep``: jobs that the fleet's retention leaves alone."""

from __future__ import annotations

from typing import Annotated

import typer

from unidle.cli.common import JobsArgument, StoreOption, read_view, say, store_address
from unidle.login import login_name


def register(app: typer.Typer) -> None:
    """Add this room's command."""
    app.command("keep")(keep)


def keep(
    jobs: JobsArgument,
    store: StoreOption = None,
    undo: Annotated[
        bool, typer.Option("--undo", help="Let retention remove these jobs again.")
    ] = False,
) -> None:  # fmt: skip
    """Keep the files of jobs, whatever the fleet's retention is.

    `unidle rm` still removes them. `keep: true` in a job file does the same from the start.
    """
    import msgspec

    from unidle.cli.drive import done_by_controller
    from unidle.control.inbox import KeepRequest
    from unidle.control.queries.find import find_job
    from unidle.store.open import open_store

    opened = open_store(store_address(store), create=False)
    try:
        view = read_view(opened)
        names = tuple(dict.fromkeys(find_job(view, name, alone=True).id for name in jobs))
        request = opened.request("keep", msgspec.json.encode(KeepRequest(names, not undo, login_name())))
        done_by_controller(
            opened, request, "unidle keep", lambda view: all((name in view.keep) != undo for name in names),
            "change the jobs",
        )  # fmt: skip
    finally:
        opened.close()
    for name in names:
        say(f"{name}: retention {'may remove it' if undo else 'leaves it alone'}")
