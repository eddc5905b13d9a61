"""Who is stopped where devices are in parts: against all sets of jobs, on small clusters."""

from __future__ import annotations

from itertools import chain, combinations

from hypothesis import given, settings
from hypothesis import strategies as st

from unidle.fleet.queues import QueueSpec
from unidle.place.actions.slices import Room, cheapest_relief, stop_for
from unidle.place.model import Demand, Running
from unidle.place.queue.fair_share import Shares
from unidle.place.queue.state import Cluster
from unidle.place.queue.tree import QueueTree
from unidle.place.queue.victims import Candidates

HOUR = 3_600_000_000_000
NOW = 100 * HOUR


@st.composite
def clusters(draw: st.DrawFn) -> Cluster:
    """Up to three devices on as many nodes, each whole in somebody's hands, or in parts; all started at other times."""
    count = draw(st.integers(1, 3))
    tree = QueueTree.of((QueueSpec("q"),), ("gpu",))
    jobs = []
    for k in range(count):
        users = draw(st.integers(1, 3))
        for u in range(users):
            level = draw(st.sampled_from(["low", "low", "low", "medium"]))
            start, milli = draw(st.integers(0, 99)) * HOUR, 1000 // users
            held = {k: 1} if users == 1 else {}
            parts = {} if users == 1 else {f"n{k}/0": k}
            job = Running(
                f"j{k}{u}", "q", level, start, held, (milli,), parts=parts, parts_milli=milli if parts else 0
            )
            jobs.append(job)
    cluster = Cluster([1] * count, Shares(tree, (1000 * count,), NOW))
    seen: set[str] = set()
    for job in jobs:
        for device, node in job.parts.items():
            if device in seen:
                cluster.free[node] += 1  # its device is taken already
            seen.add(device)
        cluster.start(job)
        for node in job.parts.values():
            cluster.free[node] = 0
    cluster.journal.settle()
    return cluster


def whole(cluster: Cluster, ranks: int) -> Room | None:
    """A device for each rank, on the first nodes that have one."""
    nodes = [k for k, free in enumerate(cluster.free.tolist()) if free > 0][:ranks]
    return Room(dict.fromkeys(nodes, 1), (), (1000 * ranks,)) if len(nodes) == ranks else None


@settings(max_examples=200, deadline=None)
@given(clusters())
def test_a_device_is_made_whole_by_the_jobs_that_lose_least_and_none_is_stopped_in_vain(
    cluster: Cluster,
) -> None:
    demand = Demand("d", "q", "high", 1, 1, (1000,))
    known = Candidates(cluster, NOW)
    before = (cluster.free.tolist(), dict(cluster.users), sorted(cluster.running))
    found = cheapest_relief(cluster, known, demand, lambda _d, _gone: whole(cluster, 1))
    assert (cluster.free.tolist(), dict(cluster.users), sorted(cluster.running)) == before
    assert (cluster.free >= 0).all()
    costs = [_cost(cluster, some) for some in _subsets(cluster) if _frees(cluster, some)]
    if found is None:
        assert not costs
        return
    assert found.cost == min(costs)
    made = stop_for(cluster, demand, found, NOW + HOUR)
    assert all(not job.startswith("d") for job in made.victims)
    assert cluster.holds["d"].devices == found.room.devices
    assert (cluster.free >= 0).all()


def _subsets(cluster: Cluster) -> list[tuple[str, ...]]:
    low = sorted(job for job, run in cluster.running.items() if run.level == "low")
    return list(chain.from_iterable(combinations(low, n) for n in range(1, len(low) + 1)))


def _cost(cluster: Cluster, some: tuple[str, ...]) -> int:
    return sum(cluster.running[job].lost_us(NOW) for job in some)


def _frees(cluster: Cluster, some: tuple[str, ...]) -> bool:
    for job in some:
        cluster.stop(job)
    fits = whole(cluster, 1) is not None
    cluster.journal.back_to(0)
    return fits


def test_only_where_one_who_has_a_part_may_be_stopped_sets_of_jobs_are_tried() -> None:
    tree = QueueTree.of((QueueSpec("p"), QueueSpec("q")), ("gpu",))
    cluster = Cluster([1, 1], Shares(tree, (2000,), NOW))
    cluster.start(Running("whole", "q", "low", 0, {0: 1}, (1000,)))
    cluster.start(Running("firm", "q", "medium", 0, {}, (500,), parts={"n1/0": 1}, parts_milli=500))
    known = Candidates(cluster, NOW)
    leaves = [tree.leaf("p"), tree.leaf("q")]
    assert not known.in_parts(leaves), "one has a part, and may not be stopped"
    cluster.start(Running("low", "q", "low", 0, {}, (500,), parts={"n1/0": 1}, parts_milli=500))
    assert known.in_parts(leaves)
    assert not known.in_parts([tree.leaf("p")])
