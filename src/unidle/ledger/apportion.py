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


def fill(total: int, floors: Sequence[int], caps: Sequence[int], weights: Sequence[int]) -> list[int]:
    """Share ``total`` by weight, with each part between its floor and its cap (water-filling).

    The parts sum to ``total`` if the floors and caps allow it: with ``sum(floors) >= total`` the floors
    are returned, with ``sum(caps) <= total`` the caps. Each round settles the parts that by weight lie
    outside their bounds, on the side that outweighs the other. So no part has to be settled twice, and
    there are at most ``len(weights)`` rounds.
    """
    parts = list(floors)
    open_ = [k for k in range(len(parts)) if caps[k] > floors[k]]
    left = total - sum(floors[k] for k in range(len(parts)) if caps[k] <= floors[k])
    while open_:
        ideal = by_weight(max(left, 0), [weights[k] for k in open_])
        bounded = [min(max(x, floors[k]), caps[k]) for k, x in zip(open_, ideal, strict=True)]
        moved = sum(bounded) - max(left, 0)
        settled = {
            k
            for k, x, y in zip(open_, ideal, bounded, strict=True)
            if (y > x and moved >= 0) or (y < x and moved <= 0)
        }
        for k, y in zip(open_, bounded, strict=True):
            parts[k] = y
        if not settled:
            break
        left -= sum(parts[k] for k in settled)
        open_ = [k for k in open_ if k not in settled]
    return parts


def fill_over(total: int, floors: Sequence[int], caps: Sequence[int], weights: Sequence[int]) -> list[int]:
    """Each part gets its floor; the rest of ``total`` is shared by weight, up to the cap of each part.

    Unlike :func:`fill`, a high floor does not count against the share of the rest.
    """
    rest = max(total - sum(floors), 0)
    more = fill(rest, [0] * len(floors), [max(c - f, 0) for f, c in zip(floors, caps, strict=True)], weights)
    return [f + m for f, m in zip(floors, more, strict=True)]
