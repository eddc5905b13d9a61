"""How often to save: pure functions of what a save costs and how often a job fails.

A job that saves every ``t`` seconds of work, each save holding it up for ``w``, with mean time to failure
``m``, restart ``u`` and detection ``d``, spends this part of its time on work that counts (the expected
effective training time ratio of Kokolis et al., "Revisiting Reliability in Large-Scale Machine Learning
Research Clusters", 2024, with N*r = 1/m)::

    ettr(t) = (1 - (u + d + t/2) / m) / (1 + w / t)

Its maximum has a closed form; Young's sqrt(2*w*m) (1974) is its limit for w, u and d that are small compared with m.
"""

from __future__ import annotations

import math
from dataclasses import dataclass

from unidle.errors import BadInput


@dataclass(frozen=True, slots=True)
class Costs:
    """What saving and failing cost, all in seconds; ``least_s``: the time in which one save can be durable."""

    stall_s: float
    mttf_s: float
    restart_s: float = 60.0
    detect_s: float = 5.0
    least_s: float = 0.0

    def __post_init__(self) -> None:
        for name in ("stall_s", "restart_s", "detect_s", "least_s"):
            if not (math.isfinite(getattr(self, name)) and getattr(self, name) >= 0):
                raise BadInput(
                    "must be 0 or more seconds",
                    field=name,
                    value=getattr(self, name),
                    remedy="give a duration",
                )
        if not (math.isfinite(self.mttf_s) and self.mttf_s > 0):
            raise BadInput("must be above 0", field="mttf_s", value=self.mttf_s, remedy="give seconds")


def ettr(interval_s: float, costs: Costs) -> float:
    """The expected part of the time that is work that counts, 0 to 1, when saving every ``interval_s``."""
    if interval_s <= 0:
        return 0.0
    lost = (costs.restart_s + costs.detect_s + interval_s / 2) / costs.mttf_s
    return max(0.0, (1 - lost) / (1 + costs.stall_s / interval_s))


def young(costs: Costs) -> float:
    """Young's interval in seconds."""
    return math.sqrt(2 * costs.stall_s * costs.mttf_s)


def best_interval(costs: Costs) -> float:
    """The interval in seconds with the highest :func:`ettr` among those of at least ``least_s``.

    The derivative is zero where t^2 + 2wt - 2wm(1 - (u+d)/m) = 0; left of it the ratio rises, right of it it falls,
    so where that is shorter than storage can follow, storage's time is best.
    """
    w, m = costs.stall_s, costs.mttf_s
    left = m - costs.restart_s - costs.detect_s
    if left <= 0:
        return max(costs.least_s, young(costs))  # it fails before it has restarted: no interval helps
    # the root, without the cancellation of -w + sqrt(w^2 + ...)
    best = 2 * w * left / (w + math.sqrt(w * w + 2 * w * left)) if w > 0 else 0.0
    return max(costs.least_s, best)


def observed_mttf(failures: int, seconds: float, prior_s: float, prior_failures: float = 1.0) -> float:
    """Mean time to failure from what was seen, in seconds, with a prior that counts as ``prior_failures`` failures.

    The mean of the gamma posterior of the rate, inverted: with nothing seen it is the prior's.
    """
    return (seconds + prior_s * prior_failures) / (failures + prior_failures)
