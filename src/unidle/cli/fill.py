"""``unidle fill`` is in the same extra as ``unidle span``."""

from __future__ import annotations

from typing import Final

from unidle.cli.extra_package import ExtraPackage

FILL: Final = ExtraPackage(
    "fill", "work for the bubbles of training", "Run prefill in the bubbles of training", needs=("span",)
)
of_fill = FILL.module
register = FILL.register
