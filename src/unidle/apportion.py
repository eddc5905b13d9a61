"""Whole parts of a whole, by largest remainder: each is rounded down, and what that leaves goes to the largest remainders."""

from __future__ import annotations

from collections.abc import Sequence


def by_weight(total: int, weights: Sequence[int]) -> list[int]:
    """``total`` shared by weight; each part is within 1 of its exact share, and they sum to ``total``.

    All parts are 0 where all weights are. Where ``total`` is at most the sum of the weights no part is larger than its weight.
    """
    whole = sum(weights)
    if whole <= 0:
        return [0] * len(weights)
    return rounded([total * weight for weight in weights], whole, total)


def rounded(numerators: Sequence[int], denominator: int, total: int | None = None) -> list[int]:
    """``numerators[k] / denominator >= 0`` as integers that sum to ``total``; of equal remainders the first is rounded up first.

    ``total`` is at least the sum of all rounded down; without one it is their sum, rounded.
    """
    if total is None:
        total = (2 * sum(numerators) + denominator) // (2 * denominator)
    parts = [number // denominator for number in numerators]
    by_remainder = sorted(range(len(parts)), key=lambda k: (-(numerators[k] % denominator), k))
    for k in by_remainder[: total - sum(parts)]:
        parts[k] += 1
    return parts
