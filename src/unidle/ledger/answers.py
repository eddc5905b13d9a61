"""The result of a query of a ledger, and its JSON form."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any

from unidle.ledger.money import MICRO, Cost
from unidle.ledger.ratios import Ratio
from unidle.ledger.select import TimeRange, Value
from unidle.ledger.taxonomy import How


@dataclass(frozen=True, slots=True)
class LeafTotal:
    """Device time of one leaf that is known in one way."""

    leaf: str
    group: str
    ns: int
    how: How


@dataclass(frozen=True, slots=True)
class GroupTotal:
    """Device time of one group; ``labels`` are the values in the requested order."""

    labels: tuple[Value, ...]
    ns: int
    cost_micro: int | None = None


@dataclass(frozen=True, slots=True)
class LedgerSummary:
    """Where the device time of a window went. The leaves sum to ``capacity_ns`` exactly.

    ``capacity_ns`` comes from the sightings of the slices, not from the rows; where a filter keeps only some rows
    of a slice (by leaf, job, ...), it is what these rows count. ``groups`` are present if a grouping was
    requested, ``ettr`` per job when it includes the job.
    """

    window: TimeRange
    capacity_ns: int
    slices: int
    leaves: tuple[LeafTotal, ...]
    ratios: dict[str, Ratio]
    cost: Cost | None = None
    by: tuple[str, ...] = ()
    groups: tuple[GroupTotal, ...] = ()
    ettr: dict[str, Ratio] = field(default_factory=dict)

    def as_json(self) -> dict[str, Any]:
        """The contract of ``unidle ledger --json``."""
        answer: dict[str, Any] = {
            "window": self.window._asdict(),
            "capacity_ns": self.capacity_ns,
            "slices": self.slices,
            "leaves": [{"leaf": t.leaf, "group": t.group, "ns": t.ns, "how": t.how} for t in self.leaves],
            "ratios": {name: r.value for name, r in self.ratios.items()},
            "ratio_sums": {name: _sums_json(r) for name, r in self.ratios.items()},
            "cost": _cost_json(self.cost),
        }
        if self.by:
            answer["groups"] = [self._group_json(g) for g in self.groups]
        if "job" in self.by:
            answer["ettr"] = [{"job": job, "value": r.value, **_sums_json(r)} for job, r in self.ettr.items()]
        return answer

    def _group_json(self, group: GroupTotal) -> dict[str, Any]:
        item: dict[str, Any] = {**dict(zip(self.by, group.labels, strict=True)), "ns": group.ns}
        if group.cost_micro is not None:
            item["cost"] = group.cost_micro / MICRO
        return item


def _sums_json(ratio: Ratio) -> dict[str, int]:
    return {
        "numerator_ns": ratio.numerator_ns,
        "denominator_ns": ratio.denominator_ns,
    }


def _cost_json(cost: Cost | None) -> dict[str, Any]:
    if cost is None:
        return {}
    answer: dict[str, Any] = {
        "currency": cost.currency,
        "total": cost.total_micro / MICRO,
        "leaves": {leaf: amount / MICRO for leaf, amount in cost.leaves_micro.items()},
    }
    if cost.unpriced_ns:
        answer["unpriced_ns"] = cost.unpriced_ns
    return answer
