"""``unidle fill`` is in the same extra as ``unidle span``: where it is installed, its commands; else how to install it."""

from __future__ import annotations

from importlib import import_module
from typing import Any

import typer

from unidle.errors import CannotRun


def register(app: typer.Typer) -> None:
    """Add the commands of the package, or one that reports that it is missing."""
    try:
        of_fill("cli").register(app)
    except CannotRun:
        app.command("fill", context_settings={"ignore_unknown_options": True, "allow_extra_args": True})(
            _missing
        )


def of_fill(module: str) -> Any:
    """A module of the package. Errors: :class:`unidle.errors.CannotRun` where it is not installed."""
    try:
        return import_module(f"unidle.fill.{module}")
    except ModuleNotFoundError as error:
        if not (error.name or "").startswith(("unidle.fill", "unidle.span")):
            raise
        raise CannotRun(
            "work for the bubbles of training is not installed", remedy="pip install 'unidle[fill]'"
        ) from error


def _missing() -> None:
    """Run prefill in the bubbles of training (not installed).

    To install it: pip install 'unidle[fill]'."""
    of_fill("cli")
