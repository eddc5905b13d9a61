"""Who is stopped where devices are in parts: against all sets of jobs, on small clusters."""

from __future__ import annotations

from itertools import chain, combinations

from hypothesis import given, settings
from hypothesis import strategies as st

from unidle.fleet.queues import QueueSpec
from unidle.place.actions.make_room import cheapest_relief, stop_for
from unidle.place.model import Demand, Running
from unidle.place.queue.fair_share import FairShare
from unidle.place.queue.state import Allocations
from unidle.place.queue.tree import QueueTree
from unidle.place.queue.victims import Candidates
from unidle.place.slices.fit import StartRoom

HOUR = 3_600_000_000_000
NOW = 100 * HOUR


@st.composite
def clusters(draw: st.DrawFn) -> Allocations:
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
    state = Allocations([1] * count, FairShare(tree, (1000 * count,), NOW))
    seen: set[str] = set()
    for job in jobs:
        for device, node in job.parts.items():
            if device in seen:
                state.free[node] += 1  # its device is taken already
            seen.add(device)
        state.start(job)
        for node in job.parts.values():
            state.free[node] = 0
    state.log.commit()
    return state


def whole(state: Allocations, ranks: int) -> StartRoom | None:
    """A device for each rank, on the first nodes that have one."""
    nodes = [k for k, free in enumerate(state.free.tolist()) if free > 0][:ranks]
    return StartRoom(dict.fromkeys(nodes, 1), (), (1000 * ranks,)) if len(nodes) == ranks else None


@settings(max_examples=200, deadline=None)
@given(clusters())
def test_a_device_is_made_whole_by_the_jobs_that_lose_least_and_none_is_stopped_in_vain(
    state: Allocations,
) -> None:
    demand = Demand("d", "q", "high", 1, 1, (1000,))
    known = Candidates(state, NOW)
    before = (state.free.tolist(), dict(state.users), sorted(state.running))
    found = cheapest_relief(state, known, demand, lambda _d, _gone: whole(state, 1))
    assert (state.free.tolist(), dict(state.users), sorted(state.running)) == before
    assert (state.free >= 0).all()
    costs = [_cost(state, some) for some in _subsets(state) if _frees(state, some)]
    if found is None:
        assert not costs
        return
    assert found.cost == min(costs)
    made = stop_for(state, demand, found, NOW + HOUR)
    assert all(not job.startswith("d") for job in made.victims)
    assert state.holds["d"].devices == found.room.devices
    assert (state.free >= 0).all()


def _subsets(state: Allocations) -> list[tuple[str, ...]]:
    low = sorted(job for job, run in state.running.items() if run.level == "low")
    return list(chain.from_iterable(combinations(low, n) for n in range(1, len(low) + 1)))


def _cost(state: Allocations, some: tuple[str, ...]) -> int:
    return sum(state.running[job].lost_us(NOW) for job in some)


def _frees(state: Allocations, some: tuple[str, ...]) -> bool:
    for job in some:
        state.stop(job)
    fits = whole(state, 1) is not None
    state.log.rollback(0)
    return fits


def test_only_where_one_who_has_a_part_may_be_stopped_sets_of_jobs_are_tried() -> None:
    tree = QueueTree.of((QueueSpec("p"), QueueSpec("q")), ("gpu",))
    state = Allocations([1, 1], FairShare(tree, (2000,), NOW))
    state.start(Running("whole", "q", "low", 0, {0: 1}, (1000,)))
    state.start(Running("firm", "q", "medium", 0, {}, (500,), parts={"n1/0": 1}, parts_milli=500))
    known = Candidates(state, NOW)
    leaves = [tree.leaf("p"), tree.leaf("q")]
    assert not known.in_parts(leaves), "one has a part, and may not be stopped"
    state.start(Running("low", "q", "low", 0, {}, (500,), parts={"n1/0": 1}, parts_milli=500))
    assert known.in_parts(leaves)
    assert not known.in_parts([tree.leaf("p")])
