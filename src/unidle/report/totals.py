"""The waterfall's figures: groups and their leaves, in the order and rounding that is shown."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable
from dataclasses import dataclass

from unidle.ledger.taxonomy import GROUP_OF, GROUPS, How
from unidle.report.model import LeafTime, ReportData
from unidle.report.palette import group_order
from unidle.report.text import shares

WINS = frozenset({"useful", "within_slo", "filled"})
_HOW_ORDER: tuple[How, ...] = ("measured", "inferred", "modelled")


@dataclass(frozen=True, slots=True)
class LeafLine:
    """One leaf of the waterfall. ``by_how`` sums to ``ns``; ``before_ns`` is all that stands above it."""

    leaf: str
    group: str
    ns: int
    before_ns: int
    share: str
    cost: float | None
    by_how: tuple[tuple[How, int], ...]

    @property
    def hatched(self) -> bool:
        """Whether the bar is drawn hatched: the time was not observed, or part of it comes from a model."""
        return self.group == "unseen" or any(how == "modelled" for how, _ in self.by_how)


@dataclass(frozen=True, slots=True)
class GroupLine:
    group: str
    ns: int
    before_ns: int
    share: str
    cost: float | None
    leaves: tuple[LeafLine, ...]


def waterfall_lines(data: ReportData) -> tuple[GroupLine, ...]:
    """Groups from useful to unseen, in each its leaves from large to small; nothing that is 0."""
    by_leaf: dict[str, list[LeafTime]] = defaultdict(list)
    for total in data.leaves:
        if total.ns:
            by_leaf[total.leaf].append(total)
    ordered = sorted(by_leaf.values(), key=_leaf_order)
    shown = shares([_ns(parts) for parts in ordered], data.capacity_ns)
    lines: dict[str, list[LeafLine]] = defaultdict(list)
    before = 0
    for parts, share in zip(ordered, shown, strict=True):
        line = _leaf_line(parts, before, share)
        lines[line.group].append(line)
        before += line.ns
    return _group_lines(lines, data.capacity_ns)


def _group_lines(lines: dict[str, list[LeafLine]], capacity_ns: int) -> tuple[GroupLine, ...]:
    sums = [sum(line.ns for line in leaves) for leaves in lines.values()]
    return tuple(
        GroupLine(group, ns, leaves[0].before_ns, share, _sum_cost(leaves), tuple(leaves))
        for (group, leaves), ns, share in zip(lines.items(), sums, shares(sums, capacity_ns), strict=True)
    )


def _leaf_line(parts: list[LeafTime], before_ns: int, share: str) -> LeafLine:
    by_how: dict[How, int] = defaultdict(int)
    for part in parts:
        by_how[part.how] += part.ns
    return LeafLine(
        leaf=parts[0].leaf,
        group=parts[0].group,
        ns=_ns(parts),
        before_ns=before_ns,
        share=share,
        cost=_sum_cost(parts),
        by_how=tuple((how, by_how[how]) for how in _HOW_ORDER if how in by_how),
    )


def _ns(parts: Iterable[LeafTime]) -> int:
    return sum(part.ns for part in parts)


def _sum_cost(parts: Iterable[LeafTime | LeafLine]) -> float | None:
    costs = [part.cost for part in parts if part.cost is not None]
    return sum(costs) if costs else None


def _leaf_order(parts: list[LeafTime]) -> tuple[int, int, int, str]:
    groups = group_order()
    group, leaf = parts[0].group, parts[0].leaf
    place = groups.index(group) if group in groups else len(groups)
    taxonomy = list(GROUPS.get(group, {}))
    return place, -_ns(parts), taxonomy.index(leaf) if leaf in taxonomy else len(taxonomy), leaf


def describe(leaf: str) -> str:
    """The taxonomy's words for a leaf; nothing for a leaf of another version."""
    return GROUPS[GROUP_OF[leaf]][leaf] if leaf in GROUP_OF else ""


def cost_total(data: ReportData) -> float | None:
    return _sum_cost(data.leaves)


def largest_loss(data: ReportData) -> LeafLine | None:
    """The leaf that would win back most device time; None where all of it was of use."""
    leaves = [leaf for group in waterfall_lines(data) for leaf in group.leaves if leaf.leaf not in WINS]
    return max(leaves, key=lambda leaf: leaf.ns, default=None)
