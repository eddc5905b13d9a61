"""Which GPUs of a node are given away."""

from __future__ import annotations

import itertools

from hypothesis import given
from hypothesis import strategies as st

from fleet import topo_outputs
from unidle.fleet.links import PCIE, GpuLinks, closeness, parse_topo
from unidle.place.inner import choose_gpus

PCIE_ONLY = parse_topo(topo_outputs.PCIE_X8)
MIXED = parse_topo(topo_outputs.MIXED)


def chosen(links: GpuLinks, free: list[int], count: int) -> tuple[int, ...] | None:
    choice = choose_gpus(links, free, count)
    return choice.gpus if choice else None


def test_several_take_the_best_connected_set_that_fits():
    assert chosen(PCIE_ONLY, list(range(8)), 2) == (0, 1)
    assert chosen(PCIE_ONLY, list(range(8)), 4) == (0, 1, 2, 3)
    assert chosen(PCIE_ONLY, [0, 2, 4, 5, 6], 2) == (0, 2)
    assert chosen(MIXED, [0, 1, 2, 3], 2) == (0, 1)
    assert chosen(MIXED, [1, 2, 3], 2) == (1, 2)


def test_one_takes_the_worst_connected():
    assert chosen(PCIE_ONLY, list(range(8)), 1) in {(4,), (5,), (6,), (7,)}
    assert chosen(MIXED, [0, 1, 2, 3], 1) == (3,)
    assert chosen(PCIE_ONLY, [0, 1, 2], 1) == (2,)


def test_a_pair_is_taken_from_where_it_leaves_the_best_rest():
    assert chosen(PCIE_ONLY, [0, 1, 2, 3, 4, 5], 2) in {(0, 1), (2, 3)}


def test_gpus_on_switches_stay_on_one_socket():
    links = parse_topo(topo_outputs.H100_X8)
    assert chosen(links, [0, 1, 4, 5, 6, 7], 4) == (4, 5, 6, 7)
    assert chosen(links, [1, 3, 5], 2) == (1, 3)


def test_too_few_free_gpus_are_no_choice():
    assert choose_gpus(MIXED, [0, 1], 3) is None
    assert choose_gpus(MIXED, [0, 1], 0) is None


def test_the_reason_names_the_weakest_link():
    choice = choose_gpus(PCIE_ONLY, list(range(8)), 4)
    assert choice is not None
    assert choice.because.figures == {"gpus": 4, "free": 8, "weakest": "PXB"}


@st.composite
def machines(draw: st.DrawFn) -> GpuLinks:
    n = draw(st.integers(1, 7))
    ways = [["X"] * n for _ in range(n)]
    for a, b in itertools.combinations(range(n), 2):
        ways[a][b] = ways[b][a] = draw(st.sampled_from((*PCIE, "NV2", "NV4")))
    return GpuLinks(
        tuple(range(n)), tuple(map(tuple, ways)), tuple(draw(st.sampled_from((0, 1, None))) for _ in range(n))
    )


@given(links=machines(), data=st.data())
def test_no_free_set_has_a_better_weakest_link(links: GpuLinks, data: st.DataObject):
    free = data.draw(st.lists(st.sampled_from(links.gpus), unique=True, min_size=1))
    count = data.draw(st.integers(1, len(free)))
    found = chosen(links, free, count)
    assert found is not None and len(set(found)) == count and set(found) <= set(free)
    assert chosen(links, free[::-1], count) == found
    if count > 1:
        best = max(
            min(closeness(links.way(a, b)) for a, b in itertools.combinations(s, 2))
            for s in itertools.combinations(free, count)
        )
        assert min(closeness(links.way(a, b)) for a, b in itertools.combinations(found, 2)) == best
