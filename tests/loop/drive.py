"""Drives a fleet, jobs and what happens to them through the real loop: Controller, simulated engine, policy, store."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field

from loopcheck import Checker
from unidle.clock import VirtualClock
from unidle.control.forecast import Forecaster
from unidle.control.loop import Controller
from unidle.control.services import ControllerServices, ControllerTiming
from unidle.engine.protocol import StartGang
from unidle.engine.sim.engine import SimEngine
from unidle.engine.sim.workload import SimJob
from unidle.events import types as ev
from unidle.fleet import Fleet
from unidle.place.policy import Unidle
from unidle.place.protocol import Policy
from unidle.store.memory import MemoryStore
from unidle.store.protocol import Lease, Store
from unidle.view.snapshot import load_view
from unidle.view.state import View

LONG_NS = 10**17
Asked = Callable[["Loop"], None]


@dataclass
class Loop:
    """A controller on a simulated engine; everything that it wrote is checked after each turn."""

    fleet: Fleet
    behaviour: Mapping[str, SimJob]
    start_ns: int
    faults: Iterable[tuple[int, str, int]] = ()
    store: Store = field(default_factory=MemoryStore)
    policy: Callable[[], Policy] = Unidle
    checker: Checker = field(default_factory=Checker)
    engine: SimEngine = field(init=False)
    kind: type[SimEngine] = SimEngine
    events: list[tuple[int, ev.Event]] = field(default_factory=list)

    def __post_init__(self) -> None:
        self.clock = VirtualClock(self.start_ns)
        self.engine = self.kind(self.fleet, self.clock, self._works, tuple(self.faults))
        self._read = 0
        self._lease: Lease | None = None
        self._wake_ns: int | None = None
        self.take_up()

    def _works(self, command: StartGang) -> SimJob:
        return self.behaviour[command.job]

    @property
    def view(self) -> View:
        return self.controller.view

    @property
    def now_ns(self) -> int:
        return self.clock.now_ns()

    def take_up(self) -> None:
        """A controller takes up the store. The one before, if any, was killed: it writes no word."""
        if self._lease is not None:
            self.store.release(self._lease)
        self._lease = self.store.acquire("test")
        view = load_view(self.store)
        self.controller = Controller(
            self.store, self._lease, self.engine, self.policy(), self.clock,
            ControllerServices(forecaster=Forecaster.of(view)), ControllerTiming(None, LONG_NS), view,
        )  # fmt: skip
        self.controller.start("test")

    def turn(self) -> None:
        """One turn of the controller; what it wrote goes to the checker."""
        self._wake_ns = self.controller.turn()
        for stored in self.store.read(after=self._read):
            event = ev.decode(stored.kind, stored.body, stored.seq)
            self._read = stored.seq
            self.events.append((stored.time_ns, event))
            self.checker.see(event, stored.time_ns)

    def settle(self) -> None:
        """Turn until nothing more happens at this moment."""
        while True:
            seq = self.view.seq
            self.turn()
            if self.view.seq == seq and (self._wake_ns is None or self._wake_ns > self.now_ns):
                self.checker.settled(self.now_ns)
                return

    def to(self, at_ns: int) -> None:
        """Let time pass until ``at_ns``, and let all happen that happens then."""
        self.settle()
        while self.now_ns < at_ns:
            self.engine.wait(at_ns if self._wake_ns is None else min(self._wake_ns, at_ns))
            self.settle()

    def to_the_end(self, until_ns: int) -> None:
        """Until all jobs are over, or ``until_ns``."""
        self.settle()
        while self.view.jobs.open and self.now_ns < until_ns:
            self.engine.wait(until_ns if self._wake_ns is None else min(self._wake_ns, until_ns))
            self.settle()

    def log(self) -> list[tuple[int, str, bytes]]:
        """Everything that was written, to compare."""
        return [(e.time_ns, e.kind, e.body) for e in self.store.read() if e.kind != "controller_started"]
