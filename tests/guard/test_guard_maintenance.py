"""Whether a job ends before its node has to be empty."""

from __future__ import annotations

import pytest

from unidle.guard.maintenance import expected_ns
from unidle.jobs import JobSpec

S = 1_000_000_000


@pytest.mark.parametrize(
    ("estimate_s", "predicted_ns", "timeout_s", "expected"),
    [
        (10.0, 20 * S, 30.0, 10 * S),
        (None, 20 * S, 30.0, 20 * S),
        (None, None, 30.0, 30 * S),
        (None, None, None, None),
    ],
)
def test_the_estimate_counts_before_the_prediction_and_that_before_the_limit(
    estimate_s: float | None, predicted_ns: int | None, timeout_s: float | None, expected: int | None
) -> None:
    spec = JobSpec(("x",), estimate_s=estimate_s, timeout_s=timeout_s)
    assert expected_ns(spec, predicted_ns) == expected
