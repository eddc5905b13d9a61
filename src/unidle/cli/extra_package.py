"""Commands of a package that is an extra: its own where it is installed, else one that shows how to install it."""

from __future__ import annotations

from dataclasses import dataclass
from importlib import import_module
from typing import Any

import typer

from unidle.errors import CannotRun


@dataclass(frozen=True, slots=True)
class ExtraPackage:
    """``unidle.NAME``, installed by ``unidle[NAME]``. ``what``: what it is for; ``help``: of its command where it is missing.

    ``needs``: other packages of unidle that come with the same extra.
    """

    name: str
    what: str
    help: str
    needs: tuple[str, ...] = ()

    def register(self, app: typer.Typer) -> None:
        """Add the commands of the package, or one that reports that it is missing."""
        try:
            self.module("cli").register(app)
        except CannotRun:
            ignored = {"ignore_unknown_options": True, "allow_extra_args": True}
            text = f"{self.help} (not installed).\n\nTo install it: pip install 'unidle[{self.name}]'."
            app.command(self.name, context_settings=ignored, help=text)(self._missing)

    def module(self, module: str) -> Any:
        """A module of the package. Errors: :class:`unidle.errors.CannotRun` where it is not installed."""
        try:
            return import_module(f"unidle.{self.name}.{module}")
        except ModuleNotFoundError as error:
            own = tuple(f"unidle.{name}" for name in (self.name, *self.needs))
            if not (error.name or "").startswith(own):
                raise
            remedy = f"pip install 'unidle[{self.name}]'"
            raise CannotRun(f"{self.what} is not installed", remedy=remedy) from error

    def _missing(self) -> None:
        self.module("cli")
