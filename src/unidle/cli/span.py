"""``unidle span`` is a package of its own: where it is installed, its commands; else how to install it."""

from __future__ import annotations

from importlib import import_module
from typing import Any

import typer

from unidle.errors import CannotRun


def register(app: typer.Typer) -> None:
    """Add the commands of the package, or one that reports that it is missing."""
    try:
        of_span("cli").register(app)
    except CannotRun:
        app.command("span", context_settings={"ignore_unknown_options": True, "allow_extra_args": True})(
            _missing
        )


def of_span(module: str) -> Any:
    """A module of the package. Errors: :class:`unidle.errors.CannotRun` where it is not installed."""
    try:
        return import_module(f"unidle.span.{module}")
    except ModuleNotFoundError as error:
        if not (error.name or "").startswith("unidle.span"):
            raise
        raise CannotRun(
            "training across data centres is not installed", remedy="pip install 'unidle[span]'"
        ) from error


def _missing() -> None:
    """Train across data centres (not installed).

    To install it: pip install 'unidle[span]'."""
    of_span("cli")
