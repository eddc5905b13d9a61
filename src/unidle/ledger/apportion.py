"""Whole parts that add up: what rounding down leaves goes to the largest remainders, the first of equals first."""

from __future__ import annotations

from collections.abc import Sequence


def by_weight(total: int, weights: Sequence[int]) -> list[int]:
    """``total`` in parts proportional to ``weights``; all are 0 where the weights are.

    Each part is within 1 of its exact share. Where ``total`` is at most the sum of the weights no part is larger than
    its weight.
    """
    whole = sum(weights)
    if whole <= 0:
        return [0] * len(weights)
    return _divided([total * weight for weight in weights], whole, total)


def quotients(numerators: Sequence[int], denominator: int) -> list[int]:
    """Each ``numerators[i] / denominator >= 0`` as an integer; they sum to the rounded total."""
    total = (2 * sum(numerators) + denominator) // (2 * denominator)
    return _divided(numerators, denominator, total)


def _divided(numerators: Sequence[int], denominator: int, total: int) -> list[int]:
    parts = [n // denominator for n in numerators]
    by_remainder = sorted(range(len(parts)), key=lambda k: (-(numerators[k] % denominator), k))
    for k in by_remainder[: total - sum(parts)]:
        parts[k] += 1
    return parts
