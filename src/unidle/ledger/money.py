"""Money: device time at a price per device-hour, in integers until it is printed."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Final

MICRO: Final = 1_000_000
HOUR_NS: Final = 3_600_000_000_000


@dataclass(frozen=True, slots=True)
class Prices:
    """What a device-hour costs by device model. A job's own price overrides it for the job's rows."""

    per_device_hour: Mapping[str, float] = field(default_factory=dict)
    currency: str = "USD"


@dataclass(frozen=True, slots=True)
class Cost:
    """Amounts in millionths of the currency; those of the leaves sum to the total exactly.

    ``unpriced_ns`` is device time whose price is unknown; it is not in the amounts.
    """

    currency: str
    total_micro: int
    leaves_micro: dict[str, int]
    unpriced_ns: int = 0


def to_micro(price: float) -> int:
    """A price in millionths of the currency."""
    return round(price * MICRO)
