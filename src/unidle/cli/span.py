"""``unidle span`` is a package of its own."""

from __future__ import annotations

from typing import Final

from unidle.cli.extra_package import ExtraPackage

SPAN: Final = ExtraPackage("span", "training across data centres", "Train across data centres")
of_span = SPAN.module
register = SPAN.register
