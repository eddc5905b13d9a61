"""A list of jobs that have not ended is bounded by those that wait, never by those that run."""

from __future__ import annotations

from unidle.clock import VirtualClock
from unidle.control.loop import Controller
from unidle.control.queries.find import not_ended
from unidle.engine.sim.engine import SimEngine
from unidle.engine.sim.workload import seeded
from unidle.fleet import Device, Fleet, Node
from unidle.jobs import JobSpec
from unidle.place.policy import Unidle
from unidle.store.memory import MemoryStore

FLEET = Fleet(nodes=(Node("n0", "", (Device("n0/0", "n0", 0, "gpu"),)),))


def test_the_running_job_and_the_last_waiting_ones_are_listed_in_order_of_submission() -> None:
    clock = VirtualClock(1_000_000_000)
    store = MemoryStore()
    engine = SimEngine(FLEET, clock, seeded(1, mean_work_s=1e6))
    controller = Controller(store, store.acquire("test"), engine, Unidle(), clock)
    controller.start("test")
    for number in range(20):
        controller.submit(f"j{number}", JobSpec(("train",)))
        controller.turn()
    view = controller.view
    assert view.live == {"j0"}
    assert [job.id for job in not_ended(view, 3)] == ["j0", "j17", "j18", "j19"]
    assert len(not_ended(view)) == 20
