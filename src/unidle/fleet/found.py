"""What a vendor's driver tells of one GPU."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class FoundGpu:
    """``number`` is what the vendor's visible-devices variable calls it, ``bus_id`` its PCI address."""

    number: int
    model: str
    uuid: str = ""
    memory_bytes: int = 0
    bus_id: str = ""
