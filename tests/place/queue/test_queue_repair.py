"""Consolidation and repair: moving little, and only where that pays."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest
import yaml
from hypothesis import given
from hypothesis import strategies as st

from place.queues import HOUR, anywhere, shares, within
from unidle.fleet.queues import Migration, QueueSpec
from unidle.jobs import Reason
from unidle.place.actions.make_room import consolidate
from unidle.place.gang.repair import Repair, repair
from unidle.place.model import Demand, Fits, Running
from unidle.place.queue.state import Allocations
from unidle.place.session import Consolidation

NOW = 10 * HOUR


def run(job: str, devices: dict[int, int], each: int = 1, level="medium", **known) -> Running:
    ranks = sum(devices.values()) // each
    return Running(job, "q", level, 0, devices, (1000,), ranks=ranks, each=each, **known)


def movable(job: str, devices: dict[int, int], saved_s: int = 60, **known) -> Running:
    fields = {"checkpoints": True, "last_saved_ns": NOW - saved_s * 10**9, "restart_ns": 30 * 10**9, **known}
    return run(job, devices, **fields)


def cluster_of(free: list[int], *running: Running) -> Allocations:
    devices = np.array(free)
    for held in running:
        for node, count in held.devices.items():
            devices[node] += count
    return Allocations(devices, shares(QueueSpec("q"), gpus=1000), running)


def gang(run_: Running) -> Fits:
    return anywhere(run_.ranks)


def moved(state: Allocations, ranks: int, each: int, wait_ns: int = HOUR, **rules) -> Consolidation | Reason:
    demand = Demand("new", "q", "medium", ranks, each, (1000,))
    return consolidate(state, demand, anywhere(ranks), gang, NOW, wait_ns, migration=Migration(**rules))


# -- consolidation -----------------------------------------------------------------------------------


def test_a_job_is_not_moved_to_a_node_whose_cpu_others_have():
    def run(name: str, node: int, devices: int, cpu_milli: int, *, moves: bool) -> Running:
        return Running(
            name, "q", "low", 0, {node: devices}, (devices * 1000,), checkpoints=moves, save_ns=10**9, each=devices,
            asks=(cpu_milli, 0),
        )  # fmt: skip

    running = [
        run("small", 0, 1, 4000, moves=True),
        run("greedy", 1, 3, 32_000, moves=False),
        run("modest", 2, 3, 8000, moves=False),
    ]
    hosts = np.array([[32_000] * 3, [1 << 40] * 3])
    state = Allocations(np.array([4, 4, 4]), shares(QueueSpec("q"), gpus=1000), running, hosts)
    demand = Demand("new", "q", "medium", 4, 1, (4000,))
    each_node = [(0, 1), (1, 2), (2, 3)]
    answer = consolidate(state, demand, within(4, each_node), gang, NOW, HOUR, domains=each_node)
    assert isinstance(answer, Consolidation)
    assert [(hold.job, hold.devices) for hold in answer.moves] == [("small", {2: 1})]


def test_the_job_is_moved_whose_move_loses_least():
    state = cluster_of(
        [2, 2, 2], movable("a", {0: 2}, 600), movable("b", {1: 2}, 60), movable("c", {2: 2}, 900)
    )
    answer = moved(state, 1, 4)
    assert isinstance(answer, Consolidation)
    assert [(hold.job, dict(hold.devices)) for hold in answer.moves] == [("b", {0: 2})]
    assert dict(answer.hold.devices) == {1: 4}
    assert answer.price_us == (60 + 30) * 2 * 1_000_000
    assert answer.gain_us == 4 * 3600 * 1_000_000


def test_a_move_that_costs_more_than_it_wins_is_refused_and_changes_nothing():
    state = cluster_of([2, 2], movable("a", {0: 2}, 600), movable("b", {1: 2}, 600))
    before = state.free.tolist()
    answer = moved(state, 1, 4, wait_ns=60 * 10**9)
    assert isinstance(answer, Reason)
    assert answer.code == "too_dear"
    assert state.free.tolist() == before
    assert set(state.running) == {"a", "b"}


def test_jobs_that_cannot_checkpoint_and_high_jobs_stay():
    state = cluster_of([2, 2], run("a", {0: 2}), movable("b", {1: 2}, level="high"))
    answer = moved(state, 1, 4)
    assert isinstance(answer, Reason)
    assert answer.code == "no_moves"


def test_a_job_that_finds_no_other_place_is_not_moved():
    state = cluster_of(
        [2, 1, 2], movable("cheap", {0: 3}, 1, each=3), movable("b", {1: 2}, 60), movable("c", {2: 2}, 90)
    )
    answer = moved(state, 1, 4)  # without cheap's node: 5 devices, but nowhere else has room for 3
    assert isinstance(answer, Consolidation)
    assert [hold.job for hold in answer.moves] == ["c"]


def test_saving_on_request_makes_a_move_cheap():
    state = cluster_of([2, 2], movable("a", {0: 2}, 36_000, save_ns=5 * 10**9), movable("b", {1: 2}, 600))
    answer = moved(state, 1, 4)
    assert isinstance(answer, Consolidation)
    assert [hold.job for hold in answer.moves] == ["a"]


def test_no_more_jobs_are_moved_than_allowed():
    held = [movable(f"j{k}", {k // 2: 1}) for k in range(4)]
    answer = moved(cluster_of([2, 2, 4], *held), 2, 4, moves_most=1)
    assert isinstance(answer, Reason)
    assert answer.code == "too_many_moves"


@given(
    st.lists(st.tuples(st.integers(0, 3), st.integers(1, 3), st.integers(1, 600)), max_size=8),
    st.integers(1, 4),
)
def test_consolidation_keeps_every_gang_whole_and_the_books_right(rows, ranks):
    free, held = [4] * 4, []
    for k, (node, size, saved) in enumerate(rows):
        if free[node] >= size:
            free[node] -= size
            held.append(movable(f"j{k}", {node: size}, saved))
    state = cluster_of(free, *held)
    before, running = state.free.tolist(), dict(state.running)
    answer = moved(state, ranks, 4)
    used = np.zeros(4, np.int64)
    for thing in (*state.running.values(), *state.holds.values()):
        for node, count in thing.devices.items():
            used[node] += count
    assert (used + state.free == state.devices).all() and (state.free >= 0).all()
    if isinstance(answer, Reason):
        assert (before, running) == (state.free.tolist(), state.running)
        return
    assert answer.price_us <= answer.gain_us
    assert sum(answer.hold.devices.values()) == ranks * 4
    for hold in answer.moves:
        assert sum(hold.devices.values()) == running[hold.job].size


# -- repair ------------------------------------------------------------------------------------------

LEAVES = [np.array([0, 0, 0, 1, 1, 1, 2, 2]), np.array([0, 0, 0, 0, 0, 0, 1, 1])]


def fixed(jobs, failed, free, fits: Callable[[Running], Fits] = gang) -> dict[str, Repair | Reason]:
    return repair(jobs, failed, np.array(free), LEAVES, fits)


def test_survivors_stay_and_spares_come_from_their_leaf():
    found = fixed([run("a", {0: 4, 1: 4})], {1}, [0, 0, 4, 4, 4, 4, 4, 4])
    a = found["a"]
    assert isinstance(a, Repair)
    assert (a.keep, a.add, a.moved, a.tier) == ({0: 4}, {2: 4}, 0, 0)


def test_without_spares_in_the_leaf_the_next_tier_is_used():
    a = fixed([run("a", {0: 4, 1: 4})], {1}, [0, 0, 2, 4, 0, 0, 4, 4])["a"]
    assert isinstance(a, Repair)
    assert (a.keep, a.add, a.tier) == ({0: 4}, {3: 4}, 1)


def test_several_nodes_fail_at_once_and_each_gang_gets_the_spares_of_its_leaf():
    jobs = [run("big", {0: 4, 3: 4, 4: 4}), run("small", {5: 4, 1: 4})]
    found = fixed(jobs, {0, 5}, [0, 0, 4, 0, 0, 0, 4, 0])
    big, small = found["big"], found["small"]
    assert isinstance(big, Repair) and isinstance(small, Repair)
    assert (big.add, small.add) == ({6: 4}, {2: 4})  # node 2 is in the leaf of small's survivor on 1


def test_the_high_job_chooses_first_among_those_of_a_leaf():
    jobs = [run("low", {0: 4, 3: 4}, level="low"), run("high", {0: 4, 4: 4}, level="high")]
    found = fixed(jobs, {0}, [0, 0, 0, 0, 0, 4, 0, 0])
    assert isinstance(found["high"], Repair)
    low = found["low"]
    assert isinstance(low, Reason)
    assert low.code == "no_spare"


def test_a_gang_that_must_stay_in_one_leaf_moves_whole_when_its_leaf_has_no_spares():
    leaves = [(0, 3), (3, 6), (6, 8)]
    a = fixed([run("a", {0: 2, 1: 2})], {1}, [0, 0, 0, 4, 0, 0, 2, 0], lambda r: within(r.ranks, leaves))["a"]
    assert isinstance(a, Repair)
    assert (a.keep, a.add, a.moved) == ({}, {3: 4}, 2)


def test_a_gang_without_survivors_is_placed_anew():
    a = fixed([run("a", {0: 4})], {0}, [4, 0, 4, 0, 0, 0, 0, 0])["a"]
    assert isinstance(a, Repair)
    assert (a.keep, a.add) == ({}, {2: 4})


def test_jobs_that_lost_nothing_are_left_alone():
    assert set(fixed([run("a", {0: 4}), run("b", {1: 4})], {0}, [0, 0, 4, 0, 0, 0, 0, 0])) == {"a"}


@given(st.data())
def test_repair_never_uses_a_failed_node_or_a_device_twice_and_never_halves_a_gang(data):
    free = data.draw(st.lists(st.integers(0, 4), min_size=8, max_size=8))
    jobs = []
    for k in range(data.draw(st.integers(0, 5))):
        each = data.draw(st.sampled_from([1, 2]))
        nodes = data.draw(st.lists(st.integers(0, 7), min_size=1, max_size=4, unique=True))
        jobs.append(run(f"j{k}", {n: each * data.draw(st.integers(1, 2)) for n in nodes}, each))
    failed = data.draw(st.sets(st.integers(0, 7), max_size=4))
    use = data.draw(st.sampled_from([None, [(0, 3), (3, 6), (6, 8)]]))
    found = fixed(jobs, failed, free, lambda r: within(r.ranks, use))
    left = np.array(free)
    for job in jobs:
        answer = found.get(job.job)
        assert (answer is not None) == any(n in failed for n in job.devices)
        if not isinstance(answer, Repair):
            continue
        kept, added = sum(answer.keep.values()), sum(answer.add.values())
        assert kept + added == job.ranks
        assert not failed & (set(answer.keep) | set(answer.add))
        for node, ranks in answer.keep.items():
            assert ranks * job.each <= job.devices[node]
        for node, ranks in answer.add.items():
            left[node] -= ranks * job.each
        for node, devices in job.devices.items():
            if node not in failed:
                left[node] += devices - answer.keep.get(node, 0) * job.each
        assert fixed(jobs, failed, free, lambda r: within(r.ranks, use)) == found
    assert (left[[n for n in range(8) if n not in failed]] >= 0).all()


REPAIRS = sorted((Path(__file__).parents[2] / "scenarios" / "repair").glob("*.yaml"))


@pytest.mark.parametrize("path", REPAIRS, ids=[path.stem for path in REPAIRS])
def test_a_repair_goes_as_its_scenario_says(path: Path):
    """A file holds the leaf and spine of each node, free devices, jobs, failed nodes and what is expected."""
    given_ = yaml.safe_load(path.read_text())
    jobs = [run(j["job"], j["devices"], j.get("each", 1), j.get("level", "medium")) for j in given_["jobs"]]
    tiers = [np.array(given_["leaves"]), np.array(given_["spines"])]
    found = repair(
        jobs,
        given_["failed"],
        np.array(given_["free"]),
        tiers,
        lambda r: within(r.ranks, given_.get("within")),
    )
    assert set(found) == set(given_["expect"])
    for job, expected in given_["expect"].items():
        answer = found[job]
        seen = (
            {"code": answer.code} if isinstance(answer, Reason) else {k: getattr(answer, k) for k in expected}
        )
        assert seen == expected, f"{job}: {answer}"
