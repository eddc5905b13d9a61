"""What queues used before: the same from any way to fold the same log, and an average that halves."""

from __future__ import annotations

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from unidle.control.replay.simulate import Arrival, simulate
from unidle.engine.sim.workload import S, SimJob
from unidle.events import types as ev
from unidle.fleet import Device, Fleet, Node
from unidle.fleet.queues import QueueSpec, UsageDecay
from unidle.jobs import JobSpec, RankPlace, Reason, Select, Where
from unidle.place.scheduler import Scheduler
from unidle.store.memory import MemoryStore
from unidle.view.fold import apply, fold
from unidle.view.snapshot import decode, encode
from unidle.view.state import View
from unidle.view.usage import decay_ppb

HOUR = 3_600 * S
BECAUSE = Reason("test", "")


def fleet(half_life_ns: int = HOUR) -> Fleet:
    devices = tuple(Device(f"n/{k}", "n", k, "gpu", "H100") for k in range(4))
    queues = (QueueSpec("a"), QueueSpec("b"))
    return Fleet(nodes=(Node("n", "", devices),), queues=queues, history=UsageDecay(half_life_ns))


def told(*events: tuple[int, ev.Event]) -> View:
    view = View()
    for time_ns, event in events:
        apply(view, event, view.seq + 1, time_ns)
    return view


def placed(job: str, *devices: int) -> ev.AttemptPlaced:
    places = tuple(RankPlace(rank, "n", (f"n/{k}",)) for rank, k in enumerate(devices))
    return ev.AttemptPlaced(job, 1, places, BECAUSE)


def average(view: View, queue: str, now_ns: int) -> dict[str, int]:
    return view.usage.queues[queue].average_ppb(now_ns, view.fleet.history.half_life_ns)


def test_use_counts_half_as_much_after_a_half_life():
    view = told(
        (1, ev.FleetSeen(fleet())),
        (1, ev.JobSubmitted("j", JobSpec(("x",), ranks=4, queue="a"))),
        (1, placed("j", 0, 1, 2, 3)),
        (1 + HOUR, ev.AttemptEnded("j", 1, "succeeded", BECAUSE)),
    )
    assert average(view, "a", 1 + HOUR) == {"gpu": 2_000_000_000}
    assert average(view, "a", 1 + 2 * HOUR) == {"gpu": 1_000_000_000}
    assert average(view, "a", 1 + 100 * HOUR) == {"gpu": 0}


def test_a_model_counts_by_itself_for_jobs_that_name_it():
    spec = JobSpec(("x",), ranks=2, queue="b", where=Where(models=Select(include=("H100",))))
    view = told((1, ev.FleetSeen(fleet())), (1, ev.JobSubmitted("j", spec)), (1, placed("j", 0, 1)))
    assert average(view, "b", 1 + HOUR) == {"gpu": 1_000_000_000, "gpu:H100": 1_000_000_000}


def test_another_half_life_holds_from_when_it_is_seen():
    view = told(
        (1, ev.FleetSeen(fleet())),
        (1, ev.JobSubmitted("j", JobSpec(("x",), ranks=4, queue="a"))),
        (1, placed("j", 0, 1, 2, 3)),
        (1 + HOUR, ev.FleetSeen(fleet(2 * HOUR))),
        (1 + HOUR, ev.AttemptEnded("j", 1, "succeeded", BECAUSE)),
    )
    assert average(view, "a", 1 + 3 * HOUR) == {"gpu": 1_000_000_000}


@given(st.integers(0, 10**18), st.integers(1, 10**18))
def test_decay_is_that_of_a_half_life(past_ns: int, half_life_ns: int):
    assert decay_ppb(past_ns, half_life_ns) == pytest.approx(
        1e9 * 2 ** -(past_ns / half_life_ns), rel=1e-6, abs=1.5
    )


jobs = st.lists(
    st.tuples(
        st.integers(0, 500), st.integers(1, 4), st.integers(1, 300), st.sampled_from("ab"), st.sampled_from(["low", "high"])
    ),
    min_size=1, max_size=10,
)  # fmt: skip


@settings(max_examples=40, deadline=None)
@given(jobs, st.sets(st.integers(1, 200), max_size=4))
def test_the_same_log_in_pieces_and_through_snapshots_gives_the_same_history(drawn, cuts: set[int]):
    store = MemoryStore()
    arrivals = [
        Arrival(1 + at_s * S, f"j{k}", JobSpec(("x",), ranks=ranks, queue=queue, preemption=level))  # type: ignore[arg-type]
        for k, (at_s, ranks, _, queue, level) in enumerate(drawn)
    ]
    works = {f"j{k}": SimJob(work_s * S, step_ns=S) for k, (_, _, work_s, _, _) in enumerate(drawn)}
    view = simulate(store, fleet(100 * S), arrivals, lambda c: works[c.job], Scheduler())
    again = View()
    for cut in (*sorted(cuts), 10**9):
        log = [event for event in store.read(after=again.seq) if event.seq <= cut]
        snapshot = decode(encode(fold(again, log)))
        assert snapshot is not None
        again = snapshot
    assert (again.usage, again.speeds) == (view.usage, view.speeds)
    # and it is the average that it should be, but for what is rounded off
    end_ns, half = view.time_ns, 100 * S
    for name, use in view.usage.queues.items():
        exact = 0.0
        for job in (j for j in view.jobs.values() if j.spec.queue == name):
            for a in job.attempts:
                ended_ns = a.ended_ns if a.ended_ns is not None else end_ns
                weights = 2 ** -((end_ns - ended_ns) / half) - 2 ** -((end_ns - a.placed_ns) / half)
                exact += job.spec.devices * weights
        assert use.average_ppb(end_ns, half)["gpu"] / 1e9 == pytest.approx(exact, abs=1e-6)
    assert all(milli == 0 for use in view.usage.queues.values() for milli in use.used_milli.values())
