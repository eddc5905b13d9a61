"""Run the live loop against the simulated engine: given arrivals, a virtual clock, a store in memory."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from dataclasses import dataclass
from typing import Final

from unidle.clock import VirtualClock
from unidle.control.forecast import Forecaster
from unidle.control.loop import Controller
from unidle.control.recorder import Watcher
from unidle.control.services import ControllerServices, ControllerTiming
from unidle.engine.sim.engine import SimEngine
from unidle.engine.sim.workload import Fault, Workload
from unidle.fleet import Fleet
from unidle.guard.lifecycle import next_deadline_ns
from unidle.jobs import JobSpec
from unidle.place.protocol import Policy
from unidle.store.protocol import Store
from unidle.view.fold import collector_paused
from unidle.view.state import View

_YEAR_NS: Final = 365 * 86_400 * 1_000_000_000
_LOOKS_IN_VAIN: Final = 1_000


@dataclass(frozen=True, slots=True)
class Arrival:
    """A job that is submitted at ``at_ns``, and withdrawn at ``leaves_ns`` if it has not ended by then."""

    at_ns: int
    job: str
    spec: JobSpec
    leaves_ns: int | None = None


Ask = tuple[int, Callable[[Controller], None]]


@dataclass(frozen=True, slots=True)
class SimulationOptions:
    """``detect_ns`` as in ``SimEngine``. At ``until_ns`` the simulation stops, even if jobs still run or wait.

    ``policy_name`` is the policy's name in the log; ``watcher`` receives every event (see ``Controller.watch``); ``saves_together`` as in ``SimEngine``;
    with ``never_idle`` no gang is ever idle, and none is watched.
    """

    detect_ns: int = 0
    start_ns: int = 1
    until_ns: int | None = None
    forecaster: Forecaster | None = None
    policy_name: str = ""
    watcher: Watcher | None = None
    saves_together: bool = False
    never_idle: bool = False


_USUAL: Final = SimulationOptions()


@collector_paused()
def simulate(
    store: Store, fleet: Fleet, arrivals: Iterable[Arrival], workload: Workload, policy: Policy,
    faults: Iterable[Fault] = (), options: SimulationOptions = _USUAL,
) -> View:  # fmt: skip
    """Drive all arrivals to their ends and return the final view; everything is in ``store`` too.

    The same arguments give the same log, byte by byte. ``faults`` as in ``SimEngine``.
    """
    clock = VirtualClock(options.start_ns)
    engine = SimEngine(fleet, clock, workload, faults, options.detect_ns, options.saves_together)
    services = ControllerServices(forecaster=options.forecaster)
    timing = ControllerTiming(None, _YEAR_NS, watch_idle=not options.never_idle)
    controller = Controller(store, store.acquire("simulate"), engine, policy, clock, services, timing)
    if options.watcher is not None:
        controller.watch(options.watcher)
    controller.start("simulate", policy_name=options.policy_name)
    until_ns = options.until_ns
    for at_ns, ask in _asks(arrivals):
        if until_ns is not None and at_ns > until_ns:
            break
        _turn_until(controller, engine, clock, at_ns)
        ask(controller)
    _to_the_end(controller, engine, clock, until_ns)
    engine.tell()
    controller.turn()
    controller.stop("the simulation is over")
    return controller.view


def _turn_until(controller: Controller, engine: SimEngine, clock: VirtualClock, at_ns: int) -> None:
    while True:
        wake_ns = controller.turn()
        if clock.now_ns() >= at_ns:
            return
        engine.wait(at_ns if wake_ns is None else min(wake_ns, at_ns))


def _to_the_end(controller: Controller, engine: SimEngine, clock: VirtualClock, until_ns: int | None) -> None:
    seq, looks = 0, 0  # how often the policy looked again in vain, when nothing else happens any more
    while True:
        wake_ns = controller.turn()
        now_ns = clock.now_ns()
        seq, looks = controller.view.seq, (looks + 1 if controller.view.seq == seq else 0)
        looks_again = controller.looks_again and looks < _LOOKS_IN_VAIN
        if (_over(controller.view, engine, now_ns) and not looks_again) or (
            until_ns is not None and now_ns >= until_ns
        ):
            return
        engine.wait(min((t for t in (wake_ns, until_ns) if t is not None), default=None))


def _asks(arrivals: Iterable[Arrival]) -> list[Ask]:
    """Submissions and withdrawals by time; a job is submitted before it is withdrawn."""
    asks: list[Ask] = []
    for arrival in sorted(arrivals, key=lambda a: a.at_ns):
        asks.append((arrival.at_ns, _submit(arrival)))
        if arrival.leaves_ns is not None:
            asks.append((max(arrival.leaves_ns, arrival.at_ns), _withdraw(arrival.job)))
    return sorted(asks, key=lambda ask: ask[0])


def _submit(arrival: Arrival) -> Callable[[Controller], None]:
    return lambda controller: controller.submit(arrival.job, arrival.spec)


def _withdraw(job: str) -> Callable[[Controller], None]:
    return lambda controller: controller.cancel(job, "its user")


def _over(view: View, engine: SimEngine, now_ns: int) -> bool:
    """Nothing runs and nothing waits, or nothing will ever happen to what does."""
    if not engine.idle:
        return not view.live and not view.waiting and not view.fillers.waiting
    waiting = [view.jobs[job] for queue in view.waiting.values() for _, _, job in queue]
    waiting += [view.jobs[job] for job in sorted(view.fillers.waiting)]
    going = [*waiting, *(view.jobs[job] for job in view.live)]
    return not any(job.not_before_ns > now_ns or next_deadline_ns(job) is not None for job in going)
