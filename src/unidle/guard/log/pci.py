"""PCI addresses as kernel logs spell them."""

from __future__ import annotations

import re
from functools import lru_cache
from typing import Final

from unidle.fleet.pci import short_bus_id

ADDRESS: Final = r"[0-9a-fA-F]{4,8}:[0-9a-fA-F]{2}:[0-9a-fA-F]{2}(?:\.[0-7])?"
FIND: Final = re.compile(rf"\b{ADDRESS}\b")


@lru_cache(maxsize=1024)
def normal(address: str) -> str:
    """``PCI:0000:CB:00`` and ``00000000:cb:00.0`` are both ``0000:cb:00.0``: as sysfs names it."""
    text = address.strip().removeprefix("PCI:")
    return short_bus_id(text if "." in text else f"{text}.0")


def first(text: str) -> str:
    """The first address in a text, normalised; empty without one."""
    found = FIND.search(text)
    return normal(found[0]) if found else ""
