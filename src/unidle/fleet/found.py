"""One GPU as a vendor's driver reports it."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class FoundGpu:
    """``number`` is its number in the vendor's visible-devices variable, ``bus_id`` its PCI address."""

    number: int
    model: str
    uuid: str = ""
    memory_bytes: int = 0
    bus_id: str = ""
