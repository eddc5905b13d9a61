"""Which GPUs of a node are given away."""

from __future__ import annotations

import itertools
from dataclasses import replace

from hypothesis import given
from hypothesis import strategies as st

from fleet import topo_outputs
from unidle.fleet import Device, Node
from unidle.fleet.links import PCIE, GpuLinks, closeness, parse_topo
from unidle.place.nodes.links import NodeLinks, choose_gpus

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
        ways[a][b] = ways[b][a] = draw(st.sampled_from((*PCIE, "NV2", "NV4", "XGMI", "NA")))
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


def measure(links: GpuLinks, free: list[int], chosen: tuple[int, ...]) -> tuple[int, ...]:
    """What sets compare by, the greater the better (see ``choose_gpus``), counted pair by pair."""
    pairs = [closeness(links.way(a, b)) for a, b in itertools.combinations(chosen, 2)]
    rest = [gpu for gpu in free if gpu not in chosen]
    stay = sum(closeness(links.way(a, b)) for a, b in itertools.combinations(rest, 2))
    touched = len({links.numa[links.gpus.index(gpu)] for gpu in chosen})
    return (min(pairs, default=0), sum(pairs), -touched, stay)


@given(links=machines(), data=st.data())
def test_no_set_is_better_by_the_measure_itself(links: GpuLinks, data: st.DataObject):
    free = sorted(data.draw(st.lists(st.sampled_from(links.gpus), unique=True, min_size=1)))
    count = data.draw(st.integers(1, len(free)))
    found = chosen(links, free, count)
    every = list(itertools.combinations(free, count))
    assert found in every
    best = max(measure(links, free, each) for each in every)
    assert measure(links, free, found) == best
    assert found == min(each for each in every if measure(links, free, each) == best)


@given(links=machines(), data=st.data())
def test_seats_are_free_gpus_and_no_two_ranks_share_one(links: GpuLinks, data: st.DataObject):
    node = node_with(links)
    free = data.draw(st.lists(st.sampled_from(links.gpus), unique=True))
    each = data.draw(st.integers(1, 3))
    groups = tuple(data.draw(st.lists(st.integers(1, 3), min_size=1, max_size=3)))
    mask = sum(1 << gpu for gpu in free)
    inner = NodeLinks({"links": links})
    seats = inner.seats(node, mask, groups, each)
    assert (
        seats
        == inner.seats(node, mask, groups, each)
        == NodeLinks({"links": links}).seats(node, mask, groups, each)
    )
    if sum(groups) * each > len(free):
        assert seats is None
        return
    assert seats is not None
    assert [len(bits) for bits in seats.ranks] == [each] * sum(groups)
    taken = [bit.bit_length() - 1 for bits in seats.ranks for bit in bits]
    assert all(bit == 1 << bit.bit_length() - 1 for bits in seats.ranks for bit in bits)
    assert len(set(taken)) == len(taken) and set(taken) <= set(free)
    assert tuple(sorted(taken)) == chosen(links, free, len(taken))


def node_with(links: GpuLinks, cut: tuple[int, ...] = ()) -> Node:
    halves = (500_000, 500_000)
    devices = (
        Device(f"n/{k}", "n", k, "gpu", slices_ppm=halves if k in cut else (1_000_000,)) for k in links.gpus
    )
    return Node("n", "", tuple(devices), gpu_links="links")


def test_bits_are_of_the_nodes_slices_not_of_its_gpus():
    inner = NodeLinks({"links": MIXED})
    cut = node_with(MIXED, cut=(0,))  # bits 0 and 1 are its halves
    seats = inner.seats(cut, 0b11100, (1,), 2)
    assert seats is not None and seats.ranks == ((0b100, 0b1000),)
    assert inner.seats(cut, 0b11101, (1,), 2) is None


def test_nodes_that_are_wired_alike_share_what_was_found_out():
    inner = NodeLinks({"links": MIXED})
    one = inner.seats(node_with(MIXED), 0b1111, (2,), 1)
    other = inner.seats(replace(node_with(MIXED), id="m"), 0b1111, (2,), 1)
    assert one is other is not None
    assert inner.seats(replace(node_with(MIXED), id="k", gpu_links=""), 0b1111, (2,), 1) is None


def test_large_nodes_get_whole_islands():
    ways = tuple(
        tuple("X" if i == k else "NV4" if i // 4 == k // 4 else "SYS" for k in range(16)) for i in range(16)
    )
    links = GpuLinks(tuple(range(16)), ways)
    assert chosen(links, [1, 2, 3, *range(5, 16)], 8) == tuple(range(8, 16))
    assert chosen(links, list(range(16)), 4) == (0, 1, 2, 3)
    wide = GpuLinks(
        tuple(range(64)),
        tuple(
            tuple("X" if i == k else "NV4" if i // 8 == k // 8 else "SYS" for k in range(64))
            for i in range(64)
        ),
    )
    assert chosen(wide, list(range(3, 64)), 8) == tuple(range(8, 16))
