"""From a budget to whole nanoseconds of leaves."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from unidle.ledger.profiled_causes import CARVED
from unidle.scope.continuous.per_rank import leaves_of
from unidle.scope.rules import CATEGORIES

S = 1_000_000_000


def test_each_category_goes_to_its_leaf_and_what_may_be_work_stays():
    budget = {"data": 20, "collective": 30, "checkpoint_io": 5, "python": 15, "lock": 5, "compute": 25}
    assert leaves_of(budget, 2 * S, late_share=0.1) == {
        "data_stall": 400_000_000, "checkpoint": 100_000_000, "exposed_local": 400_000_000, "straggler_wait": 200_000_000,
    }  # fmt: skip


def test_a_host_gap_needs_to_be_known_from_the_device():
    budget = {"data": 20, "python": 30, "compute": 50}
    assert leaves_of(budget, S, device_idle_share=0.45) == {"data_stall": S // 5, "host_gap": S // 4}
    assert leaves_of(budget, S, device_idle_share=0.9) == {"data_stall": S // 5, "host_gap": 3 * S // 10}
    assert "host_gap" not in leaves_of(budget, S)


shares = st.dictionaries(st.sampled_from(CATEGORIES), st.floats(0, 100), max_size=11)


@given(shares, st.integers(1, 10**12), st.floats(0, 2), st.none() | st.floats(0, 1))
def test_leaves_always_fit_into_the_window(budget, window_ns, late, idle):
    found = leaves_of(budget, window_ns, late_share=late, device_idle_share=idle)
    assert found.keys() <= set(CARVED) and all(ns > 0 for ns in found.values())
    assert sum(found.values()) <= window_ns
