"""``unidle span``: train one model across data centres."""

from __future__ import annotations

import typer

from unidle.cli.help import Commands


def register(app: typer.Typer) -> None:
    """Add this package's commands."""
    from unidle.span.cli.plan import plan
    from unidle.span.cli.probe import probe
    from unidle.span.cli.profile import profile
    from unidle.span.cli.run import run
    from unidle.span.cli.simulate import simulate

    span = Commands(help="Plan, simulate and run training across data centres.")
    span.callback()(_group)
    for command in (simulate, plan, probe, profile, run):
        span.command(command.__name__)(command)
    app.add_typer(span, name="span")


def _group() -> None:
    """Train one model across data centres."""
