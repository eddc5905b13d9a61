"""Which of many nodes, or which link between two, is bad: in two rounds of measurements between pairs. Pure.

In the first round every node is measured with one other. A node that did well in any pair is proven good. In the
second round each of the others is measured with two nodes that are proven good. Then

- a node that did badly with two nodes proven good, and well with none, is bad;
- a pair that did badly although both of its nodes are proven good has a bad link;
- what remains is undecided and is not named: with only two nodes, for example, the bad one cannot be determined.

As long as no node has two bad links, no healthy node is named; and where any two nodes were proven good in the first
round, all bad nodes are named and nothing remains.
"""

from __future__ import annotations

import statistics
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Final

Pair = tuple[str, str]
Wave = tuple[Pair, ...]
USUAL: Final = 0.7  # of the usual rate: below it a pair did badly


@dataclass(frozen=True, slots=True)
class BadPairs:
    """``unsure``: nodes that did badly and could not be tried with enough good ones."""

    bad_nodes: tuple[str, ...]
    bad_links: tuple[Pair, ...]
    unsure: tuple[str, ...]
    good: tuple[str, ...]


def first_round(nodes: Sequence[str]) -> tuple[Wave, ...]:
    """Waves of pairs that share no node: every node in one pair, the odd one out with the first."""
    pairs = list(zip(nodes[::2], nodes[1::2], strict=False))
    waves = [tuple(pairs)] if pairs else []
    if len(nodes) > 2 and len(nodes) % 2:
        waves.append(((nodes[0], nodes[-1]),))
    return tuple(waves)


def all_pairs(nodes: Sequence[str]) -> tuple[Wave, ...]:
    """Waves in which every two nodes meet once: what two rounds leave out is the link of two nodes that are good."""
    seats: list[str | None] = [*nodes] if len(nodes) % 2 == 0 else [*nodes, None]
    count, waves = len(seats), []
    for _ in range(count - 1):
        pairs = ((seats[k], seats[count - 1 - k]) for k in range(count // 2))
        waves.append(tuple((min(a, b), max(a, b)) for a, b in pairs if a is not None and b is not None))
        seats = [seats[0], seats[-1], *seats[1:-1]]
    return tuple(waves)


def second_round(nodes: Sequence[str], did_well: Mapping[Pair, bool | None]) -> tuple[Wave, ...]:
    """Pairs each suspect with two proven good nodes that are new to it; without proven nodes, with other suspects.

    None in ``did_well``: the pair was measured, but had nothing to be compared with.
    """
    tried = {frozenset(pair) for pair in did_well}
    good = _proven(did_well)
    proven = [node for node in nodes if node in good]
    suspects = [node for node in nodes if node not in good]
    if proven:
        return _waves(_with_good(suspects, proven, tried))
    count = len(nodes)
    around = ((nodes[k], nodes[(k + step) % count]) for step in (2, 3) for k in range(count))
    fresh = {frozenset(pair): pair for pair in around if pair[0] != pair[1] and frozenset(pair) not in tried}
    return _waves(fresh.values())


def verdict(nodes: Sequence[str], did_well: Mapping[Pair, bool | None]) -> BadPairs:
    """What both rounds say together (see the module)."""
    good = _proven(did_well)
    against: dict[str, set[str]] = {node: set() for node in nodes}
    for (a, b), well in did_well.items():
        if well is False:
            against[a] |= {b} & good
            against[b] |= {a} & good
    rest = [node for node in nodes if node not in good]
    return BadPairs(
        tuple(node for node in rest if len(against[node]) >= 2),
        tuple(pair for pair, well in did_well.items() if well is False and good.issuperset(pair)),
        tuple(node for node in rest if len(against[node]) < 2),
        tuple(node for node in nodes if node in good),
    )


def judged(rates: Mapping[Pair, float | None], least: float | None = None) -> dict[Pair, bool | None]:
    """Whether each pair did well: at least ``least``, else nearly as well as the better half of all pairs.

    None as a rate: the two did not reach each other. None as the answer: one pair alone has nothing to be compared
    with.
    """
    told = sorted((rate for rate in rates.values() if rate is not None), reverse=True)
    if least is None and len(told) < 2:
        return {
            pair: None if rate is not None and len(rates) < 2 else rate is not None
            for pair, rate in rates.items()
        }
    bar = least if least is not None else USUAL * statistics.median(told[: (len(told) + 1) // 2])
    return {pair: rate is not None and rate >= bar for pair, rate in rates.items()}


def _proven(did_well: Mapping[Pair, bool | None]) -> frozenset[str]:
    return frozenset(node for pair, well in did_well.items() if well for node in pair)


def _with_good(suspects: Sequence[str], proven: Sequence[str], tried: set[frozenset[str]]) -> list[Pair]:
    found: list[Pair] = []
    at = 0  # goes around, so that the good ones share the work
    for suspect in suspects:
        partners = 0
        for _ in range(len(proven)):
            if partners == 2:
                break
            partner = proven[at % len(proven)]
            at += 1
            if frozenset((suspect, partner)) not in tried:
                found.append((suspect, partner))
                partners += 1
    return found


def _waves(pairs: Iterable[Pair]) -> tuple[Wave, ...]:
    """Each pair in the first wave that has neither of its nodes."""
    waves: list[list[Pair]] = []
    busy: list[set[str]] = []
    for pair in pairs:
        k = next((k for k, nodes in enumerate(busy) if nodes.isdisjoint(pair)), len(waves))
        if k == len(waves):
            waves.append([])
            busy.append(set())
        waves[k].append(pair)
        busy[k].update(pair)
    return tuple(map(tuple, waves))
