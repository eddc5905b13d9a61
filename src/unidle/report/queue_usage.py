"""What each queue used, month by month: device-hours and money, from the ledger.

A queue's figures include those of the queues below it. Sums are exact: nanoseconds of whole
devices and millionths of the currency, as the ledger has them.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Collection, Iterator, Mapping
from dataclasses import dataclass
from typing import Any, Final

import numpy as np

from unidle.fleet.queues import UTC, Zone
from unidle.ledger.money import HOUR_NS, MICRO, Prices
from unidle.ledger.query import summary
from unidle.ledger.select import TimeRange
from unidle.ledger.sources import LedgerSource
from unidle.ledger.taxonomy import GROUPS

IN_USE: Final = tuple(group for group in GROUPS if group not in ("unseen", "down", "free"))


@dataclass(frozen=True, slots=True)
class QueueUsage:
    """One queue in one month (``2026-11``, local). ``groups_ns`` are the groups of leaves of its jobs' rows.

    ``cost_micro`` is None if nothing of that month has a price. ``own`` is whether jobs ran in the queue
    itself rather than below it.
    """

    month: str
    queue: str
    ns: int
    groups_ns: Mapping[str, int]
    cost_micro: int | None
    currency: str
    own: bool

    @property
    def device_hours(self) -> float:
        return self.ns / HOUR_NS

    def as_json(self) -> dict[str, Any]:
        """The row as it is printed; hours and money as decimal numbers, and the exact ``ns``."""
        return {
            "month": self.month,
            "queue": self.queue,
            "device_hours": self.device_hours,
            "ns": self.ns,
            "groups_ns": dict(self.groups_ns),
            "cost": None if self.cost_micro is None else self.cost_micro / MICRO,
            "currency": self.currency,
        }


def months(window: TimeRange, zone: Zone = UTC) -> Iterator[tuple[str, TimeRange]]:
    """The calendar months (local) that the window touches, each cut to the window."""
    if window.end_ns <= window.start_ns:
        return
    first = _month(window.start_ns + zone.offset_ns(window.start_ns))
    last = _month(window.end_ns - 1 + zone.offset_ns(window.end_ns - 1))
    for month in np.arange(first, last + 1):
        start, end = (_utc_ns(m, zone) for m in (month, month + 1))
        cut = TimeRange(max(start, window.start_ns), min(end, window.end_ns))
        if cut.end_ns > cut.start_ns:
            yield str(month), cut


def usage(
    source: LedgerSource, parents: Mapping[str, str | None], *, window: TimeRange | None = None,
    zone: Zone = UTC, prices: Prices | None = None, devices: Collection[str] | None = None,
) -> list[QueueUsage]:  # fmt: skip
    """Device time that jobs held, by month and queue, departments with all that is below them.

    ``parents`` maps each queue to its parent (None: it stands on its own); queues that it does not
    know stand on their own. ``devices`` keeps only these (the GPUs, for GPU-hours).
    """
    prices = prices or Prices()
    where: dict[str, Collection[str | int]] = {"group": IN_USE}
    if devices is not None:
        where["device"] = devices
    rows: list[QueueUsage] = []
    for month, part in months(window or source.extent(), zone):
        answer = summary(source, part, ("queue", "group"), where=where, prices=prices)
        groups: dict[str, dict[str, int]] = defaultdict(lambda: defaultdict(int))
        money: dict[str, int | None] = defaultdict(lambda: None)
        own: set[str] = set()
        for total in answer.groups:
            if total.labels[0] is None:
                continue  # time that no job held
            name, group = str(total.labels[0]), str(total.labels[1])
            own.add(name)
            for queue in _upwards(name, parents):
                groups[queue][group] += total.ns
                if total.cost_micro is not None:
                    money[queue] = (money[queue] or 0) + total.cost_micro
        rows += [
            QueueUsage(
                month, queue, sum(groups[queue].values()), dict(groups[queue]), money[queue], prices.currency,
                queue in own,
            )
            for queue in sorted(groups)
        ]  # fmt: skip
    return rows


def _upwards(name: str, parents: Mapping[str, str | None]) -> Iterator[str]:
    seen: set[str] = set()
    at: str | None = name
    while at is not None and at not in seen:
        seen.add(at)
        yield at
        at = parents.get(at)


def _month(local_ns: int) -> np.datetime64:
    month: np.datetime64 = np.datetime64(local_ns, "ns").astype("datetime64[M]")
    return month


def _utc_ns(month: np.datetime64, zone: Zone) -> int:
    """When a local month begins. The offset that holds there is found from the one before it."""
    local_ns = int(month.astype("datetime64[ns]").astype(np.int64))
    guess = local_ns - zone.offset_ns(local_ns)
    return local_ns - zone.offset_ns(guess)
