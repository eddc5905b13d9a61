"""In which orders sites can follow each other: all of few, those near the first of many. Pure."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from itertools import combinations, pairwise, permutations
from typing import Final

ALL_MOST: Final = 5  # sites whose orders are all looked at
_STEPS_MOST: Final = 20_000  # of the search for any order at all

Order = tuple[str, ...]
Joined = Callable[[str, str], bool]


def orders(first: Sequence[str], joined: Joined) -> Iterator[Order]:
    """Those in which each site has a way to the next; ``first`` before all others where it is one of them."""
    found = False
    for order in permutations(first) if len(first) <= ALL_MOST else _near(tuple(first)):
        if _holds(order, joined):
            found = True
            yield order
    if not found and len(first) > ALL_MOST and (other := _any(tuple(first), joined)) is not None:
        yield other


def _holds(order: Order, joined: Joined) -> bool:
    return all(joined(a, b) for a, b in pairwise(order))


def _near(first: Order) -> Iterator[Order]:
    """Each stretch the other way around, each site at another place."""
    seen = {first}
    yield first
    for i, j in combinations(range(len(first) + 1), 2):
        turned = (*first[:i], *reversed(first[i:j]), *first[j:])
        if turned not in seen:
            seen.add(turned)
            yield turned
    for i, name in enumerate(first):
        rest = first[:i] + first[i + 1 :]
        for j in range(len(first)):
            moved = (*rest[:j], name, *rest[j:])
            if moved not in seen:
                seen.add(moved)
                yield moved


def _any(first: Order, joined: Joined) -> Order | None:
    """A way through all sites, those with the fewest ways out next; None where a bounded search finds none."""
    ways = {a: [b for b in first if b != a and joined(a, b)] for a in first}
    steps = 0

    def longer(way: Order, left: frozenset[str]) -> Order | None:
        nonlocal steps
        steps += 1
        if not left:
            return way
        if steps > _STEPS_MOST:
            return None
        onward = [b for b in (ways[way[-1]] if way else first) if b in left]
        for following in sorted(onward, key=lambda b: sum(c in left for c in ways[b])):
            if (found := longer((*way, following), left - {following})) is not None:
                return found
        return None

    return longer((), frozenset(first))
