"""Small things to plan for, by chance."""

from __future__ import annotations

import random
from itertools import combinations

from unidle.span.model.link import WanLink
from unidle.span.plan.offer import PlanRequest, SiteOffer


def small_case(seed: int) -> PlanRequest:
    """One to three sites with few devices; speeds, prices, links and memory differ."""
    chance = random.Random(seed)
    names = "abc"[: chance.randint(1, 3)]
    hidden, sequence, layers = 64, 32, chance.randint(2, 5)
    state = 16 * 12 * hidden**2
    kept = 34 * sequence * hidden
    cap = chance.choice([None, 3 * (state + kept) + 8 * 2 * sequence * hidden])
    offers = tuple(
        SiteOffer(
            name, chance.randint(1, 4), chance.choice([1.0, 2.0, 5.0]), chance.choice([0.5, 1.0, 2.0]), cap
        )
        for name in names
    )
    links = tuple(
        WanLink(
            a,
            b,
            chance.choice([0, 1000, 40_000]),
            chance.choice([0.05, 1.0, 20.0]),
            None,
            chance.choice([0.0, 5.0]),
        )
        for a, b in combinations(names, 2)
        if chance.random() < 0.8
    )
    return PlanRequest(
        layers, hidden, sequence, 2, chance.choice([1, 2, 4]), offers, links,
        chance.choice([None, 10.0]), 0, state,
    )  # fmt: skip
