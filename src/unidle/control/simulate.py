"""Run the live loop against the simulated engine: given arrivals, a virtual clock, a store in memory."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from typing import Final

from unidle.clock import VirtualClock
from unidle.control.loop import Controller
from unidle.engine.sim.engine import SimEngine
from unidle.engine.sim.workload import Workload
from unidle.fleet import Fleet
from unidle.guard.lifecycle import next_deadline_ns
from unidle.jobs import JobSpec
from unidle.place.plan import Policy
from unidle.store.protocol import Store
from unidle.view.state import View

_YEAR_NS: Final = 365 * 86_400 * 1_000_000_000


@dataclass(frozen=True, slots=True)
class Arrival:
    """A job that is submitted at ``at_ns``."""

    at_ns: int
    job: str
    spec: JobSpec


def simulate(
    store: Store,
    fleet: Fleet,
    arrivals: Iterable[Arrival],
    workload: Workload,
    policy: Policy,
    *,
    faults: Iterable[tuple[int, str, int]] = (),
    start_ns: int = 1,
) -> View:
    """Drive all arrivals to their ends and return the final view; everything is in ``store`` too.

    The same arguments give the same log, event by event. ``faults`` as in ``SimEngine``.
    """
    clock = VirtualClock(start_ns)
    engine = SimEngine(fleet, clock, workload, faults)
    controller = Controller(
        store, store.acquire("simulate"), engine, policy, clock,
        inbox_every_ns=None, sighting_every_ns=_YEAR_NS,
    )  # fmt: skip
    controller.start("simulate")
    for arrival in sorted(arrivals, key=lambda a: a.at_ns):
        while True:
            wake_ns = controller.turn()
            if clock.now_ns() >= arrival.at_ns:
                break
            engine.wait(arrival.at_ns if wake_ns is None else min(wake_ns, arrival.at_ns))
        controller.submit(arrival.job, arrival.spec)
    controller.run(lambda: _over(controller.view, engine, clock.now_ns()))
    controller.stop("the simulation is over")
    return controller.view


def _over(view: View, engine: SimEngine, now_ns: int) -> bool:
    """Nothing runs and nothing waits, or nothing will ever happen to what does."""
    if not engine.idle:
        return not view.live and not view.waiting
    waiting = [view.jobs[job] for queue in view.waiting.values() for _, _, job in queue]
    going = [*waiting, *(view.jobs[job] for job in view.live)]
    return not any(job.not_before_ns > now_ns or next_deadline_ns(job) is not None for job in going)
