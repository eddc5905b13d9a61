"""``unidle span``: training over several sites."""

from __future__ import annotations

import typer

from unidle.cli.span_probe import probe

span_app = typer.Typer(
    help="Train one model across sites that are joined by slow, long links.",
    no_args_is_help=True,
    rich_markup_mode=None,
    context_settings={"help_option_names": ["-h", "--help"], "max_content_width": 100},
)


@span_app.callback()
def _group() -> None:
    """A group, also while it has one command."""


span_app.command("probe")(probe)


def register(app: typer.Typer) -> None:
    """Add the commands of this room."""
    app.add_typer(span_app, name="span")
