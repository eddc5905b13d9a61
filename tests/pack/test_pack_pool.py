"""The pool: nothing is given twice, and undo is exact."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from pack import fleets
from pack.fleets import node, part, whole
from unidle.control.replay.packing_peers import BestFit
from unidle.errors import CannotRun
from unidle.jobs.packing import NodeSize, PodDemand
from unidle.place.pack.packer import NodePool, NodeTerms, Packer


def state(pool: NodePool) -> list[list[int]]:
    arrays = (
        pool.cpu_milli,
        pool.memory_mib,
        pool.free_milli,
        pool.largest_milli,
        pool.gpu_milli,
        pool.kinds,
    )
    return [array.ravel().tolist() for array in arrays]


def test_a_gpu_that_is_not_there_is_not_given():
    pool = NodePool([node(gpus=2), node("n1", gpus=4)])
    assert pool.gpu_milli.tolist() == [[1000, 1000, 0, 0], [1000] * 4]
    for absent in (2, 4, -1):
        with pytest.raises(CannotRun, match="node"):
            pool.take(0, (absent,), 1000, 0, 0)
    assert pool.clock == 0


@pytest.mark.parametrize("amounts", [(0, 96_001, 0), (0, 0, 1_001), (1001, 0, 0)])
def test_more_than_is_free_is_refused_and_nothing_is_taken(amounts: tuple[int, int, int]):
    pool = NodePool([node()])
    before = state(pool)
    with pytest.raises(CannotRun):
        pool.take(0, (0,), *amounts)
    assert state(pool) == before


def test_the_same_gpu_is_not_taken_twice_by_one_request():
    with pytest.raises(CannotRun):
        NodePool([node()]).take(0, (1, 1), 400, 0, 0)


@given(fleets.nodes, st.lists(fleets.demands, max_size=30), st.integers(0, 30))
def test_rollback_restores_what_was_free_at_the_checkpoint(
    nodes: list[NodeSize], demands: list[PodDemand], at: int
):
    pool = NodePool(nodes)
    packer = Packer(pool, BestFit())
    mark, before = pool.log.checkpoint(), state(pool)
    for k, demand in enumerate(demands):
        if k == at:
            mark, before = pool.log.checkpoint(), state(pool)
        request = pool.request(demand)
        if (choice := packer.decide(request)) is not None:
            packer.bind(request, choice)
    pool.log.rollback(mark)
    assert state(pool) == before


def test_give_back_is_the_reverse_of_take():
    pool = NodePool([node()])
    before = state(pool)
    pool.take(0, (0, 3), 1000, 5_000, 100)
    assert pool.kinds[0].tolist() == [0, 0, 1, 0, 0, 0, 0, 0, 0]
    pool.give_back(0, (0, 3), 1000, 5_000, 100)
    assert state(pool) == before and pool.clock == 2


def test_masks_follow_models_labels_and_taints():
    nodes = [node("a", model="T4"), node("b", model="A10"), node("c", gpus=0)]
    pool = NodePool(nodes, {"a": ["zone=1", "spot"], "b": ["zone=1"], "c": ["zone=2"]})
    spot, zone_1, zone_9 = pool.bit("spot"), pool.bit("zone=1"), pool.bit("zone=9")

    def allowed(terms: NodeTerms) -> list[str]:
        return [nodes[k].name for k in np.flatnonzero(pool.static_mask(terms))]

    assert allowed(NodeTerms()) == ["a", "b", "c"]
    assert allowed(NodeTerms(require=zone_1)) == ["a", "b"]
    assert allowed(NodeTerms(require=zone_1, avoid=spot)) == ["b"]
    assert allowed(NodeTerms(require=zone_9)) == []
    assert allowed(pool.request(part(500, models=frozenset({"T4"}))).terms) == ["a"]
    assert allowed(pool.request(part(500, models=frozenset({"H100"}))).terms) == []


def test_more_labels_than_one_word_holds_are_told_apart():
    names = [f"n{k}" for k in range(150)]
    pool = NodePool([node(name) for name in names], {name: [f"only={name}"] for name in names})
    for k in (0, 62, 63, 64, 149):
        assert np.flatnonzero(pool.static_mask(NodeTerms(require=pool.bit(f"only=n{k}")))).tolist() == [k]
        assert np.count_nonzero(pool.static_mask(NodeTerms(avoid=pool.bit(f"only=n{k}")))) == 149


def test_fits_looks_at_cpu_and_at_single_gpus():
    pool = NodePool([node(gpus=2)])
    pool.take(0, (0,), 600, 0, 0)
    pool.take(0, (1,), 600, 0, 0)
    fits = [
        bool(pool.fits(pool.request(d))[0])
        for d in (part(400), part(401), whole(1), whole(0), part(1, 96_001))
    ]
    assert fits == [True, False, False, True, False]
