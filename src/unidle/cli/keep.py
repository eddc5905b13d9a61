"""``unidle keep``: jobs that the fleet's retention leaves alone."""

from __future__ import annotations

from typing import Annotated

import typer

from unidle.cli import complete
from unidle.cli.common import StoreOption, read_view, say, store_address
from unidle.errors import StoreError
from unidle.login import login_name


def register(app: typer.Typer) -> None:
    """Add this room's command."""
    app.command("keep")(keep)


def keep(
    jobs: Annotated[
        list[str],
        typer.Argument(
            metavar="JOB", show_default=False, autocompletion=complete.jobs,
            help="Job id, a unique prefix of it, or a name.",
        ),
    ],
    store: StoreOption = None,
    undo: Annotated[
        bool, typer.Option("--undo", help="Let retention remove these jobs again.")
    ] = False,
) -> None:  # fmt: skip
    """Keep the files of jobs, whatever the fleet's retention is.

    `unidle rm` still removes them. `keep: true` in a job file does the same from the start.
    """
    import msgspec

    from unidle.cli.drive import answered
    from unidle.control.find import find_job
    from unidle.control.inbox import KeepRequest
    from unidle.store.open import open_store

    opened = open_store(store_address(store), create=False)
    try:
        view = read_view(opened)
        names = tuple(dict.fromkeys(find_job(view, name, alone=True).id for name in jobs))
        request = opened.request("keep", msgspec.json.encode(KeepRequest(names, not undo, login_name())))
        answered(opened, request, "unidle keep")
        kept = read_view(opened).keep
    finally:
        opened.close()
    if any((name in kept) == undo for name in names):
        raise StoreError(
            "the controller did not change the jobs", field=opened.url,
            remedy="restart `unidle up` with this version of unidle, then try again",
        )  # fmt: skip
    for name in names:
        say(f"{name}: retention {'may remove it' if undo else 'leaves it alone'}")
