"""Where a step of a span run went: what fillers used comes out of its bubble, then out of its waits for other sites."""

from __future__ import annotations

import itertools

import pytest

from unidle.span.rank.member import spans


def lengths(exposed: int, filled: int, discarded: int) -> dict[str, int]:
    """A step of 100: computation in [0, 30) and [80, 100), so 50 of waits."""
    step = {
        "begin_ns": 0,
        "end_ns": 100,
        "exposed_wan_ns": exposed,
        "filled_ns": filled,
        "discarded_ns": discarded,
    }
    rows = [{"op": "F", "start_ns": 0, "end_ns": 30}, {"op": "B", "start_ns": 80, "end_ns": 100}]
    found = spans(step, rows)
    assert all(one[1] == other[0] for one, other in itertools.pairwise(found))
    assert all(0 <= start < end <= 100 for start, end, _ in found)
    return {what: end - start for start, end, what in found}


@pytest.mark.parametrize(
    ("exposed", "filled", "discarded", "expected"),
    [
        (10, 0, 0, {"wan": 10, "bubble": 40}),
        (10, 25, 5, {"fill": 25, "discarded": 5, "wan": 10, "bubble": 10}),
        (10, 45, 0, {"fill": 45, "wan": 5}),
        (10, 45, 20, {"fill": 45, "discarded": 5}),
        (0, 500, 0, {"fill": 50}),
    ],
)
def test_what_fillers_used_is_never_more_than_the_waits(
    exposed: int, filled: int, discarded: int, expected: dict[str, int]
) -> None:
    assert lengths(exposed, filled, discarded) == expected
