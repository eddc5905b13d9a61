"""Two rounds of pairs name the bad nodes and links, whatever is bad."""

from __future__ import annotations

from itertools import combinations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from unidle.probe.check.bad_pairs import BadPairs, Pair, Wave, first_round, judged, second_round, verdict


def name(count: int) -> list[str]:
    return [f"n{k}" for k in range(count)]


def two_rounds(
    nodes: list[str], bad: set[str], links: set[frozenset[str]]
) -> tuple[BadPairs, dict[Pair, bool], BadPairs]:
    """The verdict, all that was measured, and what the first round alone would say."""
    known: dict[Pair, bool] = {}

    def measure(waves: tuple[Wave, ...]) -> None:
        for wave in waves:
            assert all(set(a).isdisjoint(b) for a, b in combinations(wave, 2))
            for pair in wave:
                assert frozenset(pair) not in {frozenset(p) for p in known}
                known[pair] = bad.isdisjoint(pair) and frozenset(pair) not in links

    measure(first_round(nodes))
    first = verdict(nodes, known)
    measure(second_round(nodes, known))
    return verdict(nodes, known), known, first


@st.composite
def fleets(draw: st.DrawFn) -> tuple[list[str], set[str], set[frozenset[str]]]:
    """Nodes, some of them bad, and bad links: at most one at each node."""
    nodes = name(draw(st.integers(2, 40)))
    bad = set(draw(st.lists(st.sampled_from(nodes), max_size=len(nodes), unique=True)))
    ends = draw(st.permutations(nodes))
    count = draw(st.integers(0, len(nodes) // 2))
    return nodes, bad, {frozenset(ends[2 * k : 2 * k + 2]) for k in range(count)}


@given(fleets())
def test_no_healthy_node_and_no_good_link_is_ever_named(fleet):
    nodes, bad, links = fleet
    found, known, _ = two_rounds(nodes, bad, links)
    assert set(found.bad_nodes) <= bad
    assert {frozenset(pair) for pair in found.bad_links} <= links
    assert set(found.good).isdisjoint(bad)
    assert sorted([*found.bad_nodes, *found.unsure, *found.good]) == sorted(nodes)
    measured = {frozenset(pair) for pair in known}
    well = {frozenset(pair) for pair in found.bad_links}
    assert well == {link for link in links & measured if link <= set(found.good)}


@given(fleets())
def test_all_bad_nodes_are_named_where_two_were_proven_good_in_the_first_round(fleet):
    nodes, bad, links = fleet
    found, _, first = two_rounds(nodes, bad, links)
    if len(first.good) >= 2:
        assert set(found.bad_nodes) == bad
        assert found.unsure == ()


@pytest.mark.parametrize("count", [3, 4, 5, 8, 9, 64])
def test_each_single_bad_node_is_named(count: int):
    nodes = name(count)
    for node in nodes:
        found, _, _ = two_rounds(nodes, {node}, set())
        assert (found.bad_nodes, found.bad_links, found.unsure) == ((node,), (), ())


@pytest.mark.parametrize("count", [4, 5, 8, 9])
def test_each_link_of_the_first_round_is_named_when_it_alone_is_bad(count: int):
    nodes = name(count)
    for pair in [pair for wave in first_round(nodes) for pair in wave]:
        found, _, _ = two_rounds(nodes, set(), {frozenset(pair)})
        assert (found.bad_nodes, found.bad_links) == ((), (pair,))


def test_of_two_nodes_neither_is_named():
    found, _, _ = two_rounds(name(2), {"n0"}, set())
    assert (found.bad_nodes, found.bad_links, found.unsure) == ((), (), ("n0", "n1"))


def test_half_of_the_nodes_bad_one_in_each_pair_are_still_found():
    nodes = name(8)
    found, _, first = two_rounds(nodes, set(nodes[::2]), set())
    assert first.good == ()
    assert set(found.bad_nodes) == set(nodes[::2])


@given(st.integers(2, 300))
def test_rounds_are_few_and_every_node_is_in_the_first(count: int):
    nodes = name(count)
    waves = first_round(nodes)
    assert len(waves) <= 2
    assert {node for wave in waves for pair in wave for node in pair} == set(nodes)


def test_a_pair_is_judged_by_what_was_asked_or_by_the_better_half():
    rates = {("a", "b"): 10.0, ("c", "d"): 9.0, ("e", "f"): 3.0, ("g", "h"): None}
    assert judged(rates) == {("a", "b"): True, ("c", "d"): True, ("e", "f"): False, ("g", "h"): False}
    assert judged(rates, 9.5) == {("a", "b"): True, ("c", "d"): False, ("e", "f"): False, ("g", "h"): False}
    assert judged({("a", "b"): 3.0}) == {("a", "b"): None}
    assert judged({("a", "b"): None}) == {("a", "b"): False}
