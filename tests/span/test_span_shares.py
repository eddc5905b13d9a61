"""Unequal pipelines share a batch by their speed."""

from __future__ import annotations

from collections.abc import Iterator

import pytest
from hypothesis import given
from hypothesis import strategies as st

from unidle.errors import BadInput
from unidle.span.shares import shares, weights


def ways(batch: int, pipelines: int) -> Iterator[tuple[int, ...]]:
    if pipelines == 1:
        yield (batch,)
        return
    for first in range(1, batch - pipelines + 2):
        for rest in ways(batch - first, pipelines - 1):
            yield (first, *rest)


@given(
    st.lists(st.sampled_from([0.01, 0.3, 1.0, 1.5, 2.0, 7.0, 100.0]), min_size=1, max_size=4),
    st.integers(0, 9),
)
def test_no_other_way_lets_the_slowest_pipeline_end_sooner(speeds: list[float], more: int) -> None:
    batch = len(speeds) + more

    def ends(way: tuple[int, ...]) -> float:
        return max(count / speed for count, speed in zip(way, speeds, strict=True))

    found = shares(speeds, batch)
    assert sum(found) == batch and min(found) >= 1
    assert ends(found) == min(map(ends, ways(batch, len(speeds))))


def test_shares_follow_the_speeds() -> None:
    assert shares([2, 1], 12) == (8, 4)
    assert shares([1, 1, 1], 7) == (3, 2, 2)
    assert shares([1000, 1], 2) == (1, 1)
    assert shares([3, 1] * 500, 4_000_000)[:2] == (6000, 2000)


@given(
    st.lists(st.floats(-5, 5), min_size=1, max_size=12), st.lists(st.floats(0.1, 9), min_size=1, max_size=4)
)
def test_weighted_means_are_the_gradient_of_the_whole_batch(values: list[float], speeds: list[float]) -> None:
    speeds = speeds[: len(values)]
    counts = shares(speeds, len(values))
    first, total = 0, 0.0
    for count, weight in zip(counts, weights(counts), strict=True):
        total += weight * sum(values[first : first + count]) / count
        first += count
    assert total == pytest.approx(sum(values) / len(values), abs=1e-9)


def test_what_cannot_be_shared_is_refused() -> None:
    for speeds, batch in (([], 3), ([1, 0], 3), ([1, 1], 1)):
        with pytest.raises(BadInput):
            shares(speeds, batch)
