"""Queries of a ledger: the device time of a window, by any grouping."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Callable, Collection, Hashable, Iterable, Mapping
from itertools import repeat
from typing import Any, Final, Generic, NamedTuple, TypeVar

import numpy as np

from unidle.errors import StoreDamaged
from unidle.ledger.answers import GroupTotal, LeafTotal, LedgerSummary
from unidle.ledger.apportion import quotients
from unidle.ledger.columns import HOWS, LEAVES, RowColumns
from unidle.ledger.money import HOUR_NS, Cost, Prices, to_micro
from unidle.ledger.ratios import RATIOS, Ratio, ratio_of, ratios_of
from unidle.ledger.select import (
    FAILURE,
    JOB_DIMENSIONS,
    SLICE_DIMENSIONS,
    Selection,
    TimeRange,
    Value,
    failure_codes,
    failure_kinds,
    known_dimensions,
)
from unidle.ledger.sources import LedgerSource
from unidle.ledger.tables import Ints, JobInfo, SliceNames
from unidle.ledger.taxonomy import GROUP_OF, GROUPS, OTHERS
from unidle.ledger.totals import Totals
from unidle.ledger.weights import exact_sum, row_ns, slice_ns

_ROWS_AT_ONCE: Final = 1 << 20  # bounds the memory of a batch's intermediate arrays

# The dimensions that are summed by.
_CAUSE, _JOB, _SLICE, _ATTEMPT, _FAILURE = range(5)

_T = TypeVar("_T")


def summary(
    source: LedgerSource,
    window: TimeRange | None = None,
    by: Iterable[str] = (),
    *,
    where: Mapping[str, Collection[str | int]] | None = None,
    prices: Prices | None = None,
) -> LedgerSummary:
    """Sum a ledger over a window (all of it by default), grouped by any of ``DIMENSIONS``.

    ``where`` keeps the rows whose value is among those given for each dimension. Memory is bounded
    by one batch of the source and the groups that are not empty.

    :class:`unidle.errors.BadInput` for a dimension, leaf or group that does not exist;
    :class:`unidle.errors.StoreDamaged` when rows do not add up to the capacity.
    """
    window = window or source.extent()
    sums = _Sums(known_dimensions(by, "by"), Selection(where), prices or Prices())
    for batch in source.batches(window, detail=False):
        sums.read(batch)
    return _Answer(sums).summary(window)


class _Codes:
    """Gives equal values equal codes, whichever batch they come from."""

    def __init__(self, *first: Hashable) -> None:
        self._codes: dict[Hashable, int] = {v: k for k, v in enumerate(first)}

    def of(self, values: Iterable[Hashable]) -> Ints:
        codes = self._codes
        return np.array([codes.setdefault(v, len(codes)) for v in values], np.int64)

    def values(self) -> list[Any]:
        return list(self._codes)

    def __len__(self) -> int:
        return len(self._codes)


class _PerTable(Generic[_T]):
    """Computes something per entry of a table, once for neighbouring batches with the same table."""

    def __init__(self, make: Callable[[_T], Ints]) -> None:
        self._make = make
        self._table: _T | None = None
        self._made = np.empty(0, np.int64)

    def __call__(self, table: _T) -> Ints:
        if self._table is not table:
            self._table, self._made = table, self._make(table)
        return self._made


class _Cause(NamedTuple):
    leaf: int
    how: int
    with_job: bool
    price_micro: int | None


class _Sums:
    """Exact sums of the rows of all batches.

    By cause (leaf, how, with or without a job, price), by the values that are asked for on the side
    of the job and of the slice, and by attempt. Everything in the answer is a coarser sum of these.
    """

    def __init__(self, by: tuple[str, ...], selection: Selection, prices: Prices) -> None:
        self.by = by
        self.selection = selection
        self.prices = prices
        self.totals = Totals(5)
        self.capacity_ns = 0
        self.slice_ids: set[str] = set()
        self.causes, self.jobs, self.slices, self.failures = _Codes(), _Codes(), _Codes(), _Codes(None)
        self._price_codes = _Codes(None)
        self._models_micro = {model: to_micro(p) for model, p in prices.per_device_hour.items()}
        self._job_codes = _PerTable(self._code_jobs)
        self._job_prices = _PerTable(self._price_jobs)
        self._slice_codes = _PerTable(self._code_slices)
        self._slice_prices = _PerTable(self._price_slices)

    def read(self, batch: RowColumns) -> None:
        batch = self.selection.slices_of(batch)
        capacities = slice_ns(batch.slices)
        ids = batch.slices.names.ids
        self.slice_ids.update(ids[k] for k in np.flatnonzero(capacities).tolist())
        capacity, counted = exact_sum(capacities), 0
        for part in batch.parts(_ROWS_AT_ONCE):
            ns = row_ns(part)
            counted += exact_sum(ns)
            kept = self.selection.rows_of(part)
            self._add(kept, ns if kept is part else row_ns(kept))
        if counted != capacity:
            raise StoreDamaged(
                "the ledger's rows do not add up to the capacity",
                field="ns",
                value=f"{counted} of {capacity}",
                remedy="`unidle ledger --check` shows where",
            )
        self.capacity_ns += capacity

    def _add(self, rows: RowColumns, ns: Ints) -> None:
        jobs, slices = self._job_codes(rows.jobs), self._slice_codes(rows.slices.names)
        attempts = rows["attempt"] if "attempt" in self.by else np.broadcast_to(np.int32(0), len(rows))
        codes = [
            self._code_causes(rows),
            jobs[rows["job"]],
            slices[rows["slice"]],
            attempts,
            self._code_failures(rows),
        ]
        sizes = [
            len(self.causes), len(self.jobs), len(self.slices), int(attempts.max(initial=0)) + 1, len(self.failures),
        ]  # fmt: skip
        self.totals.add(codes, sizes, ns)

    def _code_causes(self, rows: RowColumns) -> Ints:
        of_job, of_slice = self._job_prices(rows.jobs), self._slice_prices(rows.slices.names)
        prices = self._price_codes.values()
        key = rows["leaf"].astype(np.int32) * len(HOWS) + rows["how"]
        key = key * 2 + ((rows["job"] > 0) & ~_OF_OTHERS[rows["leaf"]])
        if len(prices) > 1:
            own = of_job[rows["job"]]
            key = key * len(prices) + np.where(own > 0, own, of_slice[rows["slice"]])
        shape = (len(LEAVES), len(HOWS), 2, len(prices))
        codes = np.zeros(int(np.prod(shape)), np.int64)
        there = np.flatnonzero(np.bincount(key, minlength=len(codes)))
        parts = np.column_stack(np.unravel_index(there, shape)).tolist()
        codes[there] = self.causes.of(_Cause(leaf, how, j > 0, prices[p]) for leaf, how, j, p in parts)
        return codes[key]

    def _code_failures(self, rows: RowColumns) -> Ints:
        if FAILURE not in self.by:
            return np.broadcast_to(np.int64(0), len(rows))
        return self.failures.of(kind or None for kind in failure_kinds(rows.jobs))[failure_codes(rows)]

    def _code_jobs(self, jobs: tuple[JobInfo, ...]) -> Ints:
        asked = [JOB_DIMENSIONS[d] for d in self.by if d in JOB_DIMENSIONS]
        return self.jobs.of(tuple(of(job) or None for of in asked) for job in jobs)

    def _price_jobs(self, jobs: tuple[JobInfo, ...]) -> Ints:
        prices = (job.price_per_device_hour for job in jobs)
        return self._price_codes.of(None if p is None else to_micro(p) for p in prices)

    def _code_slices(self, names: SliceNames) -> Ints:
        asked = [SLICE_DIMENSIONS[d](names) for d in self.by if d in SLICE_DIMENSIONS]
        return self.slices.of(zip(*asked, strict=True) if asked else repeat((), len(names.ids)))

    def _price_slices(self, names: SliceNames) -> Ints:
        return self._price_codes.of(self._models_micro.get(model) for model in names.models)


_OF_OTHERS: Final = np.array([leaf in OTHERS for leaf in LEAVES], np.bool_)


class _Answer:
    """Turns sums into a summary."""

    def __init__(self, sums: _Sums) -> None:
        self._sums = sums
        self._causes: list[_Cause] = sums.causes.values()

    def summary(self, window: TimeRange) -> LedgerSummary:
        sums = self._sums
        leaf_how: dict[tuple[int, int], int] = defaultdict(int)
        leaves: dict[str, int] = defaultdict(int)
        job_leaves: dict[str, int] = defaultdict(int)
        for cause, ns in self._by_cause():
            leaf_how[cause.leaf, cause.how] += ns
            leaves[LEAVES[cause.leaf]] += ns
            if cause.with_job:
                job_leaves[LEAVES[cause.leaf]] += ns
        totals = tuple(
            LeafTotal(LEAVES[leaf], GROUP_OF[LEAVES[leaf]], ns, HOWS[how])
            for (leaf, how), ns in sorted(leaf_how.items())
        )
        cost = self._cost()
        return LedgerSummary(
            window=window,
            capacity_ns=sum(leaves.values()) if sums.selection.by_rows else sums.capacity_ns,
            slices=len(sums.slice_ids),
            leaves=totals,
            ratios=ratios_of(leaves, job_leaves),
            cost=cost,
            by=sums.by,
            groups=self._groups(priced=cost is not None) if sums.by else (),
            ettr=self._ettr() if "job" in sums.by else {},
        )

    def _by_cause(self) -> list[tuple[_Cause, int]]:
        (codes,), totals = self._sums.totals.by((_CAUSE, None))
        return [(self._causes[code], ns) for code, ns in zip(codes, totals, strict=True)]

    def _cost(self) -> Cost | None:
        numerators: dict[int, int] = defaultdict(int)
        unpriced = 0
        for cause, ns in self._by_cause():
            if cause.price_micro is None:
                unpriced += ns
            else:
                numerators[cause.leaf] += ns * cause.price_micro
        if not numerators:
            return None
        codes = sorted(numerators)
        amounts = quotients([numerators[code] for code in codes], HOUR_NS)
        leaves = {LEAVES[code]: amount for code, amount in zip(codes, amounts, strict=True)}
        return Cost(self._sums.prices.currency, sum(amounts), leaves, unpriced)

    def _groups(self, *, priced: bool) -> tuple[GroupTotal, ...]:
        ns_of: dict[tuple[Value, ...], int] = defaultdict(int)
        money: dict[tuple[Value, ...], int] = defaultdict(int)
        for labels, price, ns in self._labelled():
            ns_of[labels] += ns
            money[labels] += ns * (price or 0)
        order = sorted(
            ns_of, key=lambda labels: [rank_of(d, v) for d, v in zip(self._sums.by, labels, strict=True)]
        )
        costs = quotients([money[labels] for labels in order], HOUR_NS) if priced else repeat(None)
        return tuple(
            GroupTotal(labels, ns_of[labels], cost) for labels, cost in zip(order, costs, strict=False)
        )

    def _labelled(self) -> Iterable[tuple[tuple[Value, ...], int | None, int]]:
        """The labels, the price and the ns of every sum; labels repeat where only prices differ."""
        sums = self._sums
        kinds = _Codes()
        coarse = kinds.of((self._cause_labels(cause), cause.price_micro) for cause in self._causes)
        columns, totals = sums.totals.by(
            (_CAUSE, coarse), (_JOB, None), (_SLICE, None), (_ATTEMPT, None), (_FAILURE, None)
        )
        kind_values, jobs, slices = kinds.values(), sums.jobs.values(), sums.slices.values()
        failures, order = sums.failures.values(), _places(sums.by)
        for kind, job, which, attempt, failure, ns in zip(*columns, totals, strict=True):
            labels, price = kind_values[kind]
            found = (*labels, *jobs[job], *slices[which], attempt or None, failures[failure])
            yield tuple(found[k] for k in order), price, ns

    def _cause_labels(self, cause: _Cause) -> tuple[str, ...]:
        leaf = LEAVES[cause.leaf]
        values = {"leaf": leaf, "group": GROUP_OF[leaf], "how": HOWS[cause.how]}
        return tuple(values[d] for d in self._sums.by if d in values)

    def _ettr(self) -> dict[str, Ratio]:
        place = [d for d in self._sums.by if d in JOB_DIMENSIONS].index("job")
        leaves: dict[str, dict[str, int]] = defaultdict(lambda: defaultdict(int))
        (causes, jobs), totals = self._sums.totals.by((_CAUSE, None), (_JOB, None))
        names = [values[place] for values in self._sums.jobs.values()]
        for cause, job, ns in zip(causes, jobs, totals, strict=True):
            if names[job] is not None and self._causes[cause].with_job:
                leaves[names[job]][LEAVES[self._causes[cause].leaf]] += ns
        return {job: ratio_of(RATIOS["ettr"], leaves[job]) for job in sorted(leaves)}


def _places(by: tuple[str, ...]) -> list[int]:
    """Where each asked dimension is in (cause labels, job values, slice values, attempt)."""
    sides: tuple[Collection[str], ...] = (
        ("leaf", "group", "how"),
        JOB_DIMENSIONS,
        SLICE_DIMENSIONS,
        ("attempt",),
    )
    found = [d for side in sides for d in by if d in side]
    known = [*found, *(() if "attempt" in by else ("attempt",)), FAILURE]
    return [known.index(d) for d in by]


_ORDER: Final[dict[str, list[str]]] = {"leaf": list(LEAVES), "group": list(GROUPS), "how": list(HOWS)}


def rank_of(dimension: str, value: Value) -> tuple[int, Value]:
    """Taxonomy order for causes, the value's own order for the rest; None comes last."""
    if value is None:
        return (1, 0)
    return (0, _ORDER[dimension].index(str(value)) if dimension in _ORDER else value)
