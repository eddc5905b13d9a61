"""Running time of jobs by the codes of their slow code: a split of sums, exact to the nanosecond. Pure.

Profiles say which part of a job's running time was spent in which finding; the sums are those of the ledger. So a code takes its share of the
time that the ledger has, and what no finding explains has no code.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Mapping, Sequence
from collections.abc import Set as AbstractSet
from dataclasses import replace
from typing import Any, Final

from unidle.ledger.answers import GroupTotal, LedgerSummary
from unidle.ledger.apportion import by_weight
from unidle.ledger.query import rank_of
from unidle.ledger.select import Value
from unidle.ledger.taxonomy import GROUP_OF

CODE: Final = "code"
"""The dimension; its values are codes such as ``UDL103``, and None for other time."""
NEEDED: Final = ("job", "leaf")
"""Dimensions that a summary must have to be split."""
_OWN_LEAF: Final[Mapping[str, str]] = {
    "data": "data_stall", "checkpoint": "checkpoint", "communication": "exposed_local",
}  # fmt: skip
_REST: Final = frozenset({"useful", "host_gap", "recompute", "unmeasured"})

CodeWeights = Mapping[tuple[str, str], int]
"""Of one job: by part of a step (``data``, ``forward``, ...) and code (empty for none) the time in a profile. Each moment counts once."""


def split_by_code(
    asked: LedgerSummary, by: Sequence[str], weights: Mapping[str, CodeWeights], there: Mapping[Value, AbstractSet[str]]
) -> LedgerSummary:  # fmt: skip
    """A summary that is grouped by all of ``by`` but the code, and by :data:`NEEDED`, grouped by ``by``.

    Sums of time and of money stay what they are, to the last unit. ``weights``: by job; time of other jobs has no code. ``there``: see
    :func:`leaves_with_time`, of the same window without a filter, so that a filter does not change the split.
    """
    place = {name: at for at, name in enumerate(asked.by)}
    ns: dict[tuple[Value, ...], int] = defaultdict(int)
    money: dict[tuple[Value, ...], int] = defaultdict(int)
    for group in asked.groups:
        job, leaf = (group.labels[place[name]] for name in NEEDED)
        of_leaf = _of_leaf(weights.get(str(job), {}), str(leaf), there.get(job, frozenset()))
        codes, amounts = [*of_leaf], [*of_leaf.values()]
        times, costs = by_weight(group.ns, amounts), by_weight(group.cost_micro or 0, amounts)
        for code, time, cost in zip(codes, times, costs, strict=True):
            labels = tuple(code or None if name == CODE else group.labels[place[name]] for name in by)
            ns[labels] += time
            money[labels] += cost
    order = sorted((labels for labels in ns if ns[labels]), key=lambda labels: _key(by, labels))
    groups = tuple(
        GroupTotal(labels, ns[labels], money[labels] if asked.cost is not None else None) for labels in order
    )
    return replace(asked, by=tuple(by), groups=groups, ettr=asked.ettr if "job" in by else {})


def leaves_with_time(asked: LedgerSummary) -> dict[Value, set[str]]:
    """By job the leaves that it has time of; the summary is grouped by :data:`NEEDED`, and maybe others."""
    place = {name: at for at, name in enumerate(asked.by)}
    found: dict[Value, set[str]] = defaultdict(set)
    for group in asked.groups:
        if group.ns:
            found[group.labels[place["job"]]].add(str(group.labels[place["leaf"]]))
    return found


def _of_leaf(weights: CodeWeights, leaf: str, there: AbstractSet[str]) -> dict[str, int]:
    """By code the weights of the parts whose time is in a leaf; all of a leaf that has none is without a code.

    The time of a part with a leaf of its own is in ``useful`` where the ledger does not tell it apart. A job without steps
    that anything sees has all of its time in ``start``.
    """
    is_start = leaf == "start" and not any(GROUP_OF.get(one) == "step" for one in there)
    found: dict[str, int] = defaultdict(int)
    for (part, code), weight in weights.items():
        own = _OWN_LEAF.get(part, "")
        own = own if own in there else ""
        if is_start or leaf == own or (leaf == "straggler_wait" and own == "exposed_local") or (not own and leaf in _REST):  # fmt: skip
            found[code] += weight
    return found if any(found.values()) else {"": 1}


def _key(by: Sequence[str], labels: Sequence[Value]) -> list[Any]:
    return [rank_of(name, value) for name, value in zip(by, labels, strict=True)]
