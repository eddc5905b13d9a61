"""Quantities of Kubernetes as numbers: ``500m``, ``2Gi``, ``1e3``."""

from __future__ import annotations

import math
import re
from decimal import Decimal
from functools import lru_cache
from typing import Final

_FORM: Final = re.compile(
    r"([+-]?(?:[0-9]+\.?[0-9]*|\.[0-9]+))(?:([eE][+-]?[0-9]+)|([numkMGTPE]|[KMGTPE]i)?)"
)
_SUFFIXES: Final = {
    **{suffix: Decimal(10) ** power for suffix, power in zip("numkMGTPE", (-9, -6, -3, 3, 6, 9, 12, 15, 18), strict=True)},
    **{f"{letter}i": Decimal(1024) ** power for power, letter in enumerate("KMGTPE", 1)},
    "": Decimal(1),
}  # fmt: skip


@lru_cache(maxsize=65_536)
def quantity(text: str) -> Decimal:
    """The number that ``text`` is. Errors: ``ValueError`` where it is none."""
    found = _FORM.fullmatch(text)
    if found is None:
        raise ValueError(f"not a quantity: {text!r}")
    digits, exponent, suffix = found.groups()
    return Decimal(digits + exponent) if exponent else Decimal(digits) * _SUFFIXES[suffix or ""]


def cores(text: str) -> float:
    """CPU cores, to a thousandth of one, rounded up as Kubernetes does."""
    return math.ceil(quantity(text) * 1000) / 1000


def whole(text: str) -> int:
    """Bytes or a count, rounded up."""
    return math.ceil(quantity(text))
