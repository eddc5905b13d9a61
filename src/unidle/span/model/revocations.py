"""Spot devices that are taken away: the expected time of an iteration with lost work and restarts.

Devices are revoked independently at constant rates, and one that goes stops the whole iteration. Work is saved after
every ``t`` seconds, each save takes ``w``, a restart ``u``, and a revocation during a restart begins it again. With
``r`` revocations a second over all devices in use, ``t`` seconds of work then take::

    exp(r u) (exp(r (t + w)) - 1) / r

in the mean: the "complete" model of Daly, "A higher order estimate of the optimum checkpoint interval for restart
dumps" (2006), exact for exponential times to failure; for small r it is Young's (1974) t + w + r t (t/2 + u).
"""

from __future__ import annotations

import math
from dataclasses import dataclass

HOUR_S = 3600.0


@dataclass(frozen=True, slots=True)
class Saving:
    """``every_s``: of work between two checkpoints; ``save_s``: work held up by one; ``restart_s``: until work resumes."""

    every_s: float
    save_s: float = 0.0
    restart_s: float = 0.0


def stretch(saving: Saving, revocations_per_hour: float, iteration_s: float = 0.0) -> float:
    """The expected time of work over the time it takes undisturbed; infinite where it is beyond all measure.

    ``iteration_s``: work is saved between iterations, never more often than one ends.
    """
    work = max(saving.every_s, iteration_s)
    rate, segment = revocations_per_hour / HOUR_S, work + saving.save_s
    if rate == 0:
        return segment / work
    try:
        return math.exp(rate * saving.restart_s) * math.expm1(rate * segment) / (rate * work)
    except OverflowError:
        return math.inf


def repeats(saving: Saving, revocations_per_hour: float, iteration_s: float = 0.0) -> float:
    """How often work is done in the mean until it is saved: bytes that leave a site are paid for each time."""
    work = max(saving.every_s, iteration_s)
    exponent = revocations_per_hour / HOUR_S * (work + saving.save_s)
    if exponent == 0:
        return 1.0
    try:
        return math.expm1(exponent) / exponent
    except OverflowError:
        return math.inf
