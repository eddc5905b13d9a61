"""Who may be stopped: the columns that are kept, and room that is made where CPU and memory count, too."""

from __future__ import annotations

from itertools import combinations

import numpy as np
from hypothesis import given, settings
from hypothesis import strategies as st

from place.queues import anywhere, shares
from unidle.fleet.queues import QueueSpec
from unidle.place.actions.preempt import preempt
from unidle.place.model import Demand, Running, Stoppable, rows_of
from unidle.place.queue.state import Allocations, ranks_on, requested
from unidle.place.session import Preemption

NOW = 10_000_000
NODES, PER, CPUS = 3, 4, 16

runs = st.builds(
    lambda name, level, started, saved, least, save, devices: Running(
        f"r{name:02d}", "q", level, started, devices, (sum(devices.values()) * 1000,), saved, least, 5_000,
        save_ns=save, asks=(1000, 7),
    ),
    st.integers(0, 40), st.sampled_from(["low", "low", "medium"]), st.integers(0, NOW),
    st.none() | st.integers(0, NOW), st.sampled_from([0, 1, NOW]), st.none() | st.integers(0, NOW),
    st.dictionaries(st.integers(0, 5), st.integers(1, 4), min_size=1, max_size=3),
)  # fmt: skip


@given(
    st.lists(runs, max_size=20, unique_by=lambda run: run.job),
    st.lists(st.lists(st.integers(0, 19), max_size=6), max_size=4),
)
def test_kept_columns_are_those_of_who_runs(all_runs: list[Running], rounds: list[list[int]]) -> None:
    known = dict.fromkeys(run.job for run in all_runs[::2])
    running = {run.job: run for run in all_runs if run.job in known}
    kept = Stoppable(running.values(), lambda _: 3)
    for flips in rounds:
        for k in flips:
            if k < len(all_runs):
                run = all_runs[k]
                gone = running.pop(run.job, None)
                if gone is None:
                    running[run.job] = run
                kept.change(run.job, None if gone else run)
        rows = kept.rows()
        expected = sorted((run for run in running.values() if not run.firm), key=lambda run: run.job)
        fresh = rows_of(expected, lambda _: 3)
        assert rows.jobs == expected
        assert all((a == b).all() for a, b in zip(rows[1:], fresh[1:], strict=True))
        assert rows.cost(NOW).tolist() == [run.lost_us(NOW) for run in expected]
        may = rows.since_ns <= NOW
        assert may.tolist() == [
            run.started_ns < NOW and run.started_ns + run.min_runtime_ns <= NOW for run in expected
        ]


@st.composite
def crowded(draw: st.DrawFn) -> tuple[Allocations, Demand]:
    """Jobs that hold devices and cores on three nodes, and a high job that asks for both."""
    state = Allocations(
        np.full(NODES, PER), shares(QueueSpec("q"), gpus=NODES * PER),
        hosts=np.array([[CPUS * 1000] * NODES, [64] * NODES]),
    )  # fmt: skip
    for k in range(draw(st.integers(1, 7))):
        node, devices = draw(st.integers(0, NODES - 1)), draw(st.integers(1, 2))
        asks = (draw(st.integers(0, 8)) * 1000, draw(st.integers(0, 32)))
        run = Running(
            f"r{k}", "q", draw(st.sampled_from(["low", "low", "low", "medium"])), 0, {node: devices}, (devices * 1000,),
            last_saved_ns=draw(st.integers(0, NOW - 1)), ranks=devices, asks=asks,
        )  # fmt: skip
        fits = ranks_on(state.hosts, run.asks, NODES)[node] >= devices
        if state.free[node] >= devices and fits:
            state.start(run)
    ranks = draw(st.integers(1, 4))
    asks = (draw(st.integers(0, 8)) * 1000, draw(st.integers(0, 32)))
    return state, Demand("new", "q", "high", ranks, 1, (ranks * 1000,), asks=asks)


def some_choice_makes_room(state: Allocations, demand: Demand) -> bool:
    low = [run for run in state.running.values() if not run.firm]
    for size in range(len(low) + 1):
        for chosen in combinations(low, size):
            free, hosts = state.free.copy(), state.hosts.copy()
            for run in chosen:
                for node, devices in run.devices.items():
                    free[node] += devices
                    hosts[:, node] += requested(run.asks, devices)
            room = np.minimum(free, ranks_on(hosts, demand.asks, NODES))
            if anywhere(demand.ranks)(room) is not None:
                return True
    return False


@settings(max_examples=200, deadline=None)
@given(crowded())
def test_room_is_made_of_devices_cores_and_memory_whenever_stopping_some_makes_it(
    world: tuple[Allocations, Demand],
) -> None:
    state, demand = world
    possible = some_choice_makes_room(state, demand)
    answer = preempt(state, demand, anywhere(demand.ranks), NOW)
    assert isinstance(answer, Preemption) == possible
    if isinstance(answer, Preemption):
        assert sum(answer.hold.devices.values()) == demand.ranks
        assert (state.free >= 0).all()
        assert (state.hosts >= 0).all()
