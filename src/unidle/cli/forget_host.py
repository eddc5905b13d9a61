"""``unidle guard forget-host``: takes a host out of the fleet that is gone, or was installed again."""

from __future__ import annotations

from typing import Annotated

import typer

from unidle.cli import complete
from unidle.cli.common import LocalStoreOption, data_dir, read_store, say


def register(app: typer.Typer) -> None:
    """Add the command to ``unidle guard``."""
    app.command("forget-host")(forget_host)


def forget_host(
    node: Annotated[
        str,
        typer.Argument(metavar="NODE", show_default=False, autocompletion=complete.nodes, help="Name of the host."),
    ],
    store: LocalStoreOption = None,
) -> None:  # fmt: skip
    """Take a host out of the fleet that does not answer.

    Its name is free then: a host that was installed again can join under the name that it had. Ranks of the host first
    count as lost, at the controller's deadline. A host whose agent is connected leaves by SIGTERM to its agent.

    Run it where the controller (`unidle up --listen`) runs, as the owner of the store.
    """
    from unidle.control.store_files import state_dir
    from unidle.errors import CannotRun
    from unidle.hub.place import has_hosts
    from unidle.hub.reader import HostFiles

    opened = read_store(store)
    state = state_dir(opened, data_dir())
    if not has_hosts(state):
        raise CannotRun(
            "no controller of hosts was on this store", field="--store", value=opened.url,
            remedy="name the store of `unidle up --listen`",
        )  # fmt: skip
    with HostFiles(state) as hosts:
        hosts.forget(node)
    say(f"{node} is forgotten: a host with the join file can join under this name")
