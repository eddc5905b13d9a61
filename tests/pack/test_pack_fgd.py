"""FGD and the copies measure, against values worked out by hand and against their definitions."""

from __future__ import annotations

import math

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from pack import fleets
from pack.fleets import node, part, whole
from unidle.control.replay.packing_peers import Fgd, Packing
from unidle.jobs.packing import NodeSize, PodDemand
from unidle.place.pack.fragmentation import Copies, CopiesLeft, Fragments
from unidle.place.pack.packer import NodePool, Packer, TargetWorkload, target_workload


def measure(pool: NodePool, target: TargetWorkload) -> list[float]:
    fragments = Fragments(target, pool.widest)
    return [float(f) for f in fragments.of(pool.model, pool.cpu_milli, pool.gpu_milli)]


def target_of(pool: NodePool, *demands: PodDemand) -> TargetWorkload:
    return target_workload(map(pool.request, demands), len(pool.model_names))


def by_definition(pool: NodePool, target: TargetWorkload, k: int) -> float:
    """FGD's F of node k, specification by specification as the paper writes it."""
    free, fragments = pool.gpu_milli[k], 0.0
    for w, share in enumerate(target.share):
        gpus, milli = int(target.gpus[w]), int(target.gpu_milli[w])
        hosts = (
            gpus * milli > 0
            and bool(target.allowed[w][pool.model[k]])
            and pool.cpu_milli[k] >= target.cpu_milli[w]
            and np.count_nonzero(free >= milli) >= gpus
        )
        fragments += share * float(free[free < milli].sum() if hosts else free.sum())
    return fragments


def test_gpus_too_small_for_a_pod_are_fragments():
    pool = NodePool([node(gpus=3)])
    pool.take(0, (0,), 700, 0, 0)
    pool.take(0, (1,), 300, 0, 0)
    assert measure(pool, target_of(pool, part(500))) == pytest.approx([300])  # 300 of 300 + 700 + 1000
    assert measure(pool, target_of(pool, whole(1))) == pytest.approx([1000])
    assert measure(pool, target_of(pool, part(500), whole(1))) == pytest.approx([650])


def test_all_of_a_node_is_fragment_for_a_pod_that_it_cannot_host():
    pool = NodePool([node(cpu=4_000, gpus=2, model="T4")])
    for pod in (whole(4), part(100, cpu=4_001), part(100, models=frozenset({"A10"})), PodDemand(cpu_milli=1)):
        assert measure(pool, target_of(pool, pod)) == pytest.approx([2000])
    assert measure(pool, target_of(pool, whole(2, cpu=4_000))) == pytest.approx([0])


def test_the_score_is_the_published_function_of_the_decrease():
    pool = NodePool([node(gpus=2)])
    pool.take(0, (1,), 500, 0, 0)
    target = target_of(pool, part(500), whole(1))
    request = pool.request(part(500))
    packer = Packer(pool, Fgd(Fragments(target, pool.widest)))
    # Before: 500/2 (the half GPU, for a whole pod). On GPU 1 it goes to 0; on GPU 0 to two halves, 1000/2.
    assert packer.scores(request).tolist() == [int(100 / (1 + math.exp(-0.25)))]
    choice = packer.decide(request)
    assert choice is not None and choice.gpus == (1,)


@given(fleets.nodes, st.lists(fleets.demands, min_size=1, max_size=30))
def test_the_tables_say_what_the_definition_says(nodes: list[NodeSize], demands: list[PodDemand]):
    pool = NodePool(nodes)
    target = target_of(pool, *demands)
    packer = Packer(pool, Fgd(Fragments(target, pool.widest)))
    for demand in demands:
        request = pool.request(demand)
        if (choice := packer.decide(request)) is not None:
            packer.bind(request, choice)
    wanted = [by_definition(pool, target, k) for k in range(len(nodes))]
    assert measure(pool, target) == pytest.approx(wanted, abs=1e-6)


@given(fleets.nodes, st.lists(fleets.demands, min_size=1, max_size=20), fleets.demands)
def test_growth_is_what_the_measure_grows_by(
    nodes: list[NodeSize], demands: list[PodDemand], last: PodDemand
):
    pool = NodePool(nodes)
    target = target_of(pool, *demands)
    fragments, copies = Fragments(target, pool.widest), Copies(target)
    left = CopiesLeft(copies, pool)
    packer = Packer(pool, Fgd(fragments))
    for demand in demands:
        if (choice := packer.decide(pool.request(demand))) is not None:
            packer.bind(pool.request(demand), choice)
    request = pool.request(last)
    if (choice := packer.decide(request)) is None:
        return
    at = np.array([choice.node])
    memory = pool.memory_mib[at]

    def now() -> tuple[float, float]:
        model, cpu, gpu = pool.model[at], pool.cpu_milli[at], pool.gpu_milli[at]
        usable = copies.usable(model, cpu, memory, copies.by_gpus(gpu))
        return float(fragments.of(model, cpu, gpu)[0]), float(gpu.sum() - usable[0])

    place = (0, choice.gpus[0]) if request.part else (0,)
    growth = fragments.growth(pool, request, at)[place], left.loss(request, at)[place]
    before = now()
    packer.bind(request, choice)
    memory = memory - left.memory_mib(request)  # in its steps
    after = now()
    assert growth == pytest.approx((after[0] - before[0], after[1] - before[1]), abs=1e-6)


def test_the_target_workload_covers_95_percent_of_the_pods():
    pool = NodePool([node()])
    target = target_of(pool, *[part(500)] * 80, *[whole(1)] * 15, *[whole(2)] * 3, *[whole(8)] * 2)
    assert target.gpus.tolist() == [1, 1] and target.gpu_milli.tolist() == [500, 1000]
    assert target.share.tolist() == pytest.approx([80 / 95, 15 / 95])


def test_copies_see_cpu_that_runs_out_before_the_gpus_do():
    pool = NodePool([node(cpu=12_000, gpus=4)])
    copies = Copies(target_of(pool, part(500, cpu=4_000)))
    usable = copies.usable(pool.model, pool.cpu_milli, pool.memory_mib, copies.by_gpus(pool.gpu_milli))
    assert usable.tolist() == [1500]  # 3 copies by CPU, 8 by GPUs


def test_copies_see_memory_that_runs_out_before_the_gpus_do():
    pool = NodePool([node(memory=900, gpus=4), node("n1", memory=0, gpus=4)])
    copies = Copies(target_of(pool, part(500, memory_mib=250), part(500, memory_mib=350)))
    usable = copies.usable(pool.model, pool.cpu_milli, pool.memory_mib, copies.by_gpus(pool.gpu_milli))
    assert usable.tolist() == pytest.approx([1500, 0], abs=5)  # 300 MiB in the mean: 3 copies, 8 by GPUs
    careless = Copies(target_of(pool, part(500)))
    usable = careless.usable(pool.model, pool.cpu_milli, pool.memory_mib, careless.by_gpus(pool.gpu_milli))
    assert usable.tolist() == [4000, 4000]  # who asks for no memory is not bounded by it


def test_memory_makes_few_classes_of_requests():
    pool = NodePool([node(memory=64_000)])
    left = CopiesLeft(Copies(target_of(pool, part(500))), pool)
    counted = {left.memory_mib(pool.request(part(500, memory_mib=mib))) for mib in range(64_001)}
    assert len(counted) == 65 and min(counted) == 0 and max(counted) == 64_000
    assert all(
        left.memory_mib(pool.request(part(500, memory_mib=mib))) >= mib for mib in range(0, 64_000, 77)
    )


def test_growth_counts_pods_of_several_gpus_by_what_the_nodes_cpu_still_hosts():
    pool = NodePool([node(cpu=8_000, gpus=3)])
    target = target_of(pool, whole(2, cpu=4_000), whole(3, cpu=8_000), part(500))
    fragments = Fragments(target, pool.widest)
    request = pool.request(part(500, cpu=4_000))
    before = measure(pool, target)[0]
    growth = fragments.growth(pool, request, np.array([0]))[0]
    pool.take(0, (1,), 500, 4_000, 0)
    assert growth[1] == pytest.approx(measure(pool, target)[0] - before)
    assert by_definition(pool, target, 0) == pytest.approx(measure(pool, target)[0])


def test_packing_fills_the_gpu_with_the_least_room_first():
    pool = NodePool([node("n0", gpus=2), node("n1", gpus=2)])
    pool.take(0, (0,), 100, 0, 0)
    pool.take(1, (0,), 600, 0, 0)
    scores, _ = Packing().score(pool, pool.request(part(300)), np.array([0, 1]))
    assert scores[1] > scores[0]
