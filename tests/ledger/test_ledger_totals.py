from collections import Counter

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from unidle.ledger import totals as totals_module
from unidle.ledger.totals import Totals
from unidle.ledger.weights import exact_sum, weigh

ROWS = st.lists(st.tuples(st.integers(0, 4), st.integers(0, 900), st.integers(0, 2**62)), max_size=30)


def added(batches, sizes):
    totals = Totals(2)
    for batch in batches:
        a, b, ns = (np.array([row[k] for row in batch], np.int64) for k in range(3))
        totals.add([a, b], sizes, ns)
    return totals


@pytest.mark.parametrize("dense_cells", [1, 1 << 22])
@given(batches=st.lists(ROWS, max_size=4))
def test_sums_are_exact_however_large_and_however_rows_are_batched(batches, dense_cells):
    expected: Counter[tuple[int, int]] = Counter()
    for a, b, ns in (row for batch in batches for row in batch):
        expected[a, b] += ns
    before = totals_module._DENSE_CELLS
    totals_module._DENSE_CELLS = dense_cells
    try:
        (a, b), sums = added(batches, [5, 901]).by((0, None), (1, None))
    finally:
        totals_module._DENSE_CELLS = before
    assert dict(zip(zip(a, b, strict=True), sums, strict=True)) == {k: v for k, v in expected.items() if v}


def test_a_sum_may_exceed_63_bits_by_far():
    n = 1 << 14
    totals = Totals(1)
    for _ in range(3):
        totals.add([np.zeros(n, np.int8)], [1], np.full(n, 2**62 - 1, np.int64))
    assert totals.by((0, None))[1] == [3 * n * (2**62 - 1)]
    assert exact_sum(np.full(n, 2**62 - 1, np.int64)) == n * (2**62 - 1)


def test_a_sum_that_would_not_be_exact_is_refused():
    n = 1 << 17
    with pytest.raises(OverflowError):
        Totals(1).add([np.zeros(n, np.int8)], [1], np.full(n, 2**62, np.int64))


def test_groups_can_be_made_coarser():
    totals = added([[(0, 0, 1), (1, 0, 10), (2, 3, 100)]], [3, 4])
    assert totals.by((0, np.array([7, 7, 5]))) == ([[5, 7]], [100, 11])


def test_pending_groups_are_merged_when_there_are_many(monkeypatch):
    monkeypatch.setattr(totals_module, "_PENDING_GROUPS", 3)
    totals = added([[(k % 5, 1, 1)] for k in range(50)], [5, 2])
    assert len(totals._pending) <= 4
    assert totals.by((0, None)) == ([[0, 1, 2, 3, 4]], [10] * 5)


def test_more_groups_than_can_be_numbered_are_refused():
    one = np.zeros(1, np.int64)
    with pytest.raises(OverflowError):
        Totals(3).add([one, one, one], [2**30, 2**30, 2**30], one)


@given(st.integers(-(2**62), 2**62), st.integers(0, 1_000_000))
def test_a_weight_is_the_floor_of_the_exact_product(time_ns, share):
    assert weigh(np.array([time_ns]), np.array([share])).tolist() == [time_ns * share // 1_000_000]
