"""Small worlds by chance, driven to their ends by the real loop, with or without a controller that dies."""

from __future__ import annotations

import copy
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field, fields, replace
from typing import Any

import msgspec
from hypothesis import strategies as st

from unidle.clock import VirtualClock
from unidle.control.loop import Controller
from unidle.control.replay.simulate import Arrival
from unidle.control.services import ControllerTiming
from unidle.engine.protocol import LiveAttempt, Observation, StartGang, StopGang
from unidle.engine.sim.engine import SimEngine
from unidle.engine.sim.workload import S, SimJob
from unidle.fleet import Device, Fleet, Node
from unidle.guard.lifecycle import next_deadline_ns
from unidle.jobs import JobSpec, Restart
from unidle.ledger.columns import concat, in_order, rows
from unidle.ledger.rows import LedgerRow
from unidle.place.policy import FirstFit
from unidle.store.memory import MemoryStore
from unidle.store.protocol import Lease, Snapshot
from unidle.view.accounts import post_ended
from unidle.view.job_table import JobTable
from unidle.view.removed import RemovedJobs
from unidle.view.source import ledger_source, save_snapshot
from unidle.view.state import View

LONG_NS = 10**17
HANG = 0  # a rank that exits 0 too early leaves a gang that hangs


def fleet_of(*devices: int, kind: str = "gpu", first: int = 0) -> Fleet:
    """Nodes ``n0``, ``n1``, ... with so many devices each."""
    return Fleet(nodes=tuple(node(f"n{first + k}", count, kind) for k, count in enumerate(devices)))


def node(name: str, count: int, kind: str = "gpu") -> Node:
    return Node(name, "", tuple(Device(f"{name}/{k}", name, k, kind) for k in range(count)))  # type: ignore[arg-type]


@dataclass(frozen=True)
class World:
    """What happens from outside: a fleet, jobs and their true behaviour, cancels, node faults."""

    fleet: Fleet
    arrivals: tuple[Arrival, ...]
    behaviour: dict[str, SimJob]
    cancels: tuple[tuple[int, str], ...] = ()
    faults: tuple[tuple[int, str, int], ...] = ()

    def workload(self, command: StartGang) -> SimJob:
        return self.behaviour[command.job]


# -- by chance -----------------------------------------------------------------------------------------

_TIMES = st.integers(0, 60).map(lambda s: 1 + s * S)


@st.composite
def worlds(draw: st.DrawFn) -> World:
    counts = draw(st.lists(st.integers(1, 4), min_size=1, max_size=3))
    kinds = [draw(st.sampled_from(["gpu", "cpu"])) for _ in counts]
    nodes = tuple(node(f"n{k}", count, kinds[k]) for k, count in enumerate(counts))
    names = [f"j{k}" for k in range(draw(st.integers(1, 6)))]
    arrivals = tuple(sorted((Arrival(draw(_TIMES), name, draw(_specs())) for name in names), key=_at))
    cancels = draw(st.lists(st.tuples(_TIMES, st.sampled_from(names)), max_size=2))
    faults = tuple(
        (at, draw(st.sampled_from(nodes)).id, at + draw(st.integers(1, 40)) * S)
        for at in draw(st.lists(_TIMES, max_size=2))
    )
    behaviour = {name: draw(_behaviours()) for name in names}
    return World(Fleet(nodes=nodes), arrivals, behaviour, tuple(sorted(cancels)), faults)


def _at(arrival: Arrival) -> int:
    return arrival.at_ns


@st.composite
def _specs(draw: st.DrawFn) -> JobSpec:
    return JobSpec(
        command=("train",),
        ranks=draw(st.integers(1, 4)),
        devices_per_rank=draw(st.sampled_from([1, 1, 1, 2])),
        device=draw(st.sampled_from(["gpu", "cpu", "any"])),
        priority=draw(st.integers(0, 2)),
        restart=Restart(
            draw(st.integers(0, 3)),
            draw(st.sampled_from([0.0, 1.0, 7.5])),
            draw(st.sampled_from([("any",), ("signal",), (3,), ("exit", "lost")])),
        ),
        checkpoint_path=draw(st.sampled_from([None, "ckpt"])),
        timeout_s=draw(st.sampled_from([None, None, 25.0])),
        queue_timeout_s=draw(st.sampled_from([None, None, 15.0])),
    )


@st.composite
def _behaviours(draw: st.DrawFn) -> SimJob:
    fails = {
        attempt: (
            draw(st.integers(0, 3)),
            draw(st.integers(0, 40)) * S,
            draw(st.sampled_from([-9, 1, 3, HANG])),
        )
        for attempt in draw(st.sets(st.integers(1, 4), max_size=4))
    }
    return SimJob(
        work_ns=draw(st.integers(0, 40)) * S,
        startup_ns=draw(st.integers(0, 5)) * S,
        step_ns=draw(st.sampled_from([0, S, 3 * S])),
        checkpoint_every=draw(st.integers(0, 4)),
        fails=fails,
        checkpoint_ns=draw(st.sampled_from([0, 0, S // 2])),
        restore_ns=draw(st.sampled_from([0, 2 * S])),
        stop_ns=draw(st.sampled_from([0, 0, 4 * S, 30 * S])),
        saves_on_stop=draw(st.booleans()),
        report_every=draw(st.sampled_from([0, 1, 1, 2])),
        comm_ppm=draw(st.sampled_from([0, 0, 300_000, 1_000_000])),
    )


# -- a controller that may die -------------------------------------------------------------------------


class Died(Exception):
    """The controller was killed here."""


@dataclass
class Fate:
    """Counts the moments at which a controller can die, and kills it at the chosen ones."""

    deaths: frozenset[int] = frozenset()
    moment: int = 0

    def pass_(self) -> None:
        self.moment += 1
        if self.moment in self.deaths:
            raise Died


@dataclass
class MortalStore(MemoryStore):
    """The writer can die before and after each transaction."""

    fate: Fate

    def __post_init__(self) -> None:
        super().__init__()

    def append(self, *arguments: Any, **more: Any) -> int:
        self.fate.pass_()
        seq = super().append(*arguments, **more)
        self.fate.pass_()
        return seq

    def save_snapshot(self, lease: Lease, snapshot: Snapshot, *derived: Any) -> None:
        self.fate.pass_()
        super().save_snapshot(lease, snapshot, *derived)
        self.fate.pass_()


class MortalEngine(SimEngine):
    """The controller can die before and after each command, and after it took observations."""

    def __init__(self, fate: Fate, world: World, clock: VirtualClock) -> None:
        super().__init__(world.fleet, clock, world.workload, world.faults)
        self.fate = fate
        self._fleets = 0

    def next_fleet(self, fleets: Sequence[Fleet]) -> None:
        if fleets:
            self._fleet = fleets[self._fleets % len(fleets)]
            self._fleets += 1

    def _doing(self, command: Callable[[], None]) -> None:
        self.fate.pass_()
        command()
        self.fate.pass_()

    def adopt(self, live: Any) -> None:
        adopt: list[LiveAttempt] = list(live)
        self._doing(lambda: super(MortalEngine, self).adopt(adopt))

    def start(self, command: StartGang) -> None:
        self._doing(lambda: super(MortalEngine, self).start(command))

    def stop(self, command: StopGang) -> None:
        self._doing(lambda: super(MortalEngine, self).stop(command))

    def release(self, job: str, attempt: int) -> None:
        self._doing(lambda: super(MortalEngine, self).release(job, attempt))

    def poll(self) -> Any:
        seen: list[Observation] = list(super().poll())
        if seen:
            self.fate.pass_()
        return seen


@dataclass
class Run:
    """A world on its way. ``after_turn`` sees the view whenever the loop has done all it can."""

    world: World
    deaths: frozenset[int] = frozenset()
    snapshots: frozenset[int] = frozenset()  # numbers of turns after which one is saved
    seal_at: int = LONG_NS
    after_turn: Callable[[View], None] = lambda _view: None
    away_ns: int = 0  # how long nobody is there after each death
    fleets: tuple[Fleet, ...] = ()  # what the controllers after the first find
    sighting_every_ns: int = LONG_NS
    fate: Fate = field(init=False)
    store: MortalStore = field(init=False)

    def __post_init__(self) -> None:
        self.fate = Fate(self.deaths)
        self.store = MortalStore(self.fate)
        self._clock = VirtualClock(1)
        self._engine = MortalEngine(self.fate, self.world, self._clock)
        self._turns = 0
        self._asked = 0
        self._lease: Lease | None = None

    def to_the_end(self) -> View:
        while True:
            try:
                controller = self._take_up()
                self._live(controller)
                controller.stop("over")
            except Died:
                continue
            self.store.release(self._lease)
            return controller.view

    def _take_up(self) -> Controller:
        if self._lease is not None:
            self.store.release(self._lease)
            self._clock.advance_to(self._clock.now_ns() + self.away_ns)
            self._engine.next_fleet(self.fleets)
        self._lease = self.store.acquire("test")
        controller = Controller(
            self.store, self._lease, self._engine, FirstFit(), self._clock,
            timing=ControllerTiming(None, self.sighting_every_ns),
        )  # fmt: skip
        controller.start("test")
        for _, ask in self._asks()[: self._asked]:
            ask(controller)  # what was not written is asked again
        return controller

    def _asks(self) -> list[tuple[int, Callable[[Controller], None]]]:
        """What is asked from outside, in order of time; submissions before cancels."""
        submitted = {a.job: a.at_ns for a in self.world.arrivals}
        asks: list[tuple[int, Callable[[Controller], None]]] = [
            *((a.at_ns, lambda c, a=a: c.submit(a.job, a.spec)) for a in self.world.arrivals),
            # 7 ns later: whether a job ends before it is cancelled at the very moment of its end is open
            *((max(at, submitted[j]) + 7, lambda c, j=j: c.cancel(j, "ann")) for at, j in self.world.cancels),
        ]
        return sorted(asks, key=lambda ask: ask[0])

    def _live(self, controller: Controller) -> None:
        asks = self._asks()
        while True:
            wake_ns = self._turn(controller)
            if self._asked < len(asks):
                at_ns, ask = asks[self._asked]
                if self._clock.now_ns() >= at_ns:
                    self._asked += 1
                    ask(controller)
                    continue
                wake_ns = at_ns if wake_ns is None else min(wake_ns, at_ns)
            elif self._over(controller.view):
                return
            self._engine.wait(wake_ns)

    def _turn(self, controller: Controller) -> int | None:
        wake_ns = controller.turn()
        self._turns += 1
        self.after_turn(controller.view)
        if self._turns in self.snapshots:
            save_snapshot(self.store, self._lease, controller.view, seal_at=self.seal_at)
        return wake_ns

    def _over(self, view: View) -> bool:
        if not self._engine.idle:
            return False
        now = self._clock.now_ns()
        going = [job for job in view.jobs.values() if not job.terminal]
        return not any(j.not_before_ns > now or next_deadline_ns(j) is not None for j in going)


# -- what came of it -----------------------------------------------------------------------------------


def ledger_rows(store: MemoryStore, view: View) -> list[LedgerRow]:
    """All rows that stand, by slice and start."""
    source = ledger_source(store, view)
    return list(rows(in_order(concat(list(source.batches(source.extent()))))))


def canonical(view: View) -> bytes:
    """The view as bytes, whatever the order of what has none, and how often it was taken up."""
    indexes: dict[str, Any] = {field.name: None for field in fields(view) if field.name.startswith("_")}
    bare = replace(view, jobs=JobTable(), removed=RemovedJobs(), **indexes)
    plain = msgspec.to_builtins(bare, order="deterministic", enc_hook=lambda _: {})
    plain["jobs"] = msgspec.to_builtins(list(view.jobs.values()), order="deterministic")
    plain["removed"] = msgspec.to_builtins(dict(view.removed))
    for name in ("seq", "running", *indexes):
        del plain[name]
    book = plain["book"]
    book["closed"] = sorted(book["closed"], key=repr)
    for name in ("_index", "_on", "seen_ns"):
        del book[name]
    return msgspec.msgpack.encode(plain)


def unsealed(view: View) -> bytes:
    """As :func:`canonical`, without what depends on whether postings were sealed."""
    view = copy.deepcopy(view)
    post_ended(view)
    plain = msgspec.msgpack.decode(canonical(view))
    for name in ("closed", "sealed", "segments"):
        del plain["book"][name]
    return msgspec.msgpack.encode(plain)


def held(view: View) -> Iterator[tuple[str, int, int, str]]:
    """(slice, from, until, job) of every attempt."""
    for job in view.jobs.values():
        for attempt in job.attempts:
            until = attempt.ended_ns if attempt.ended_ns is not None else LONG_NS
            for place in attempt.places:
                for piece in place.slices:
                    yield piece, attempt.placed_ns, until, job.id
