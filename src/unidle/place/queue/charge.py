"""What a job may be charged where that depends on its place: parts of devices count differently from device to device."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace

from unidle.place.queue.fair import Shares
from unidle.place.queue.model import Amounts, Demand


def affordable(
    shares: Shares, leaf: int, demand: Demand, beside: Mapping[int, Amounts] | None = None
) -> Demand:
    """The demand, of which the least may be charged, with the most that its queue lets it be charged now."""
    if not demand.most or demand.most == demand.charged:
        return demand
    return replace(
        demand, charged=most_of(shares, leaf, demand.charged, demand.most, firm=demand.firm, beside=beside)
    )


def most_of(
    shares: Shares, leaf: int, least: Amounts, most: Amounts, *, firm: bool,
    beside: Mapping[int, Amounts] | None = None,
) -> Amounts:  # fmt: skip
    """The most from ``least``, which may be charged, to ``most`` that may; by bisection, as what is more is refused, too."""
    low, high = max(least), max(most)
    if shares.refusal(leaf, most, firm=firm, beside=beside) is None:
        return most
    while high - low > 1:
        middle = (low + high) // 2
        may = shares.refusal(leaf, counted_as(least, middle), firm=firm, beside=beside) is None
        low, high = (middle, high) if may else (low, middle)
    return counted_as(least, low)


def counted_as(amounts: Amounts, milli: int) -> Amounts:
    """The same resources, charged for so many thousandths of devices."""
    return tuple(milli if amount else 0 for amount in amounts)
