"""``unidle guard``: what goes wrong with nodes and jobs."""

from __future__ import annotations

import typer

from unidle.cli import incidents

_guard = typer.Typer(no_args_is_help=True, help="What goes wrong with nodes and jobs.")


def register(app: typer.Typer) -> None:
    """Add this room's commands."""
    _guard.command("incidents")(incidents.incidents)
    app.add_typer(_guard, name="guard")
