"""A store opened on this machine: lease, local engine and controller, opened and closed together."""

from __future__ import annotations

import os
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Final

from unidle.clock import RealClock, boot_id, boottime_ns
from unidle.control.forecast import Forecaster
from unidle.control.gangs.local_stacks import LocalStacks
from unidle.control.gangs.stacks import GangStacks
from unidle.control.loop import Controller
from unidle.control.nodes.late_detectors import LateDetectors
from unidle.control.nodes.maintenance import NodeMaintenance
from unidle.control.recorder import Watcher
from unidle.control.services import ControllerServices
from unidle.control.store_files import make_run_root, refuse_foreign, refuse_strays, say_line, state_dir
from unidle.engine.local.engine import LocalEngine
from unidle.engine.protocol import Engine
from unidle.errors import StoreHeld
from unidle.fleet import Fleet
from unidle.place.policy import Unidle
from unidle.store.protocol import Store
from unidle.view.snapshot import renewed_view

if TYPE_CHECKING:
    from unidle.control.gangs.profiler import Profiler
    from unidle.control.retention.policy import Retention
    from unidle.engine.node_commands import NodeCommands
    from unidle.files.fleet_notices import NoticeChannel
    from unidle.notices.dispatcher import NoticeDispatcher
    from unidle.notices.sender import Send
    from unidle.store.protocol import Lease
    from unidle.view.state import View


_STEP_NS: Final = 86_400_000_000_000


@dataclass(frozen=True, slots=True)
class ControllerSession:
    controller: Controller
    engine: Engine
    clock: RealClock


@dataclass(frozen=True, slots=True)
class HeldStore:
    """A store of which this process is the writer. ``root`` has the run directories, ``state`` what is next to them."""

    store: Store
    lease: Lease
    purpose: str
    view: View
    clock: RealClock
    root: Path
    state: Path


@contextmanager
def take_up(
    store: Store, fleet: Fleet, data_dir: Path, purpose: str, watcher: Watcher | None = None,
    channels: Sequence[NoticeChannel] = (), profile_to: str = "", say: Callable[[str], None] | None = None,
) -> Iterator[ControllerSession]:  # fmt: skip
    """Hold the store while the block runs. What runs when it ends keeps running. ``channels`` receive notices.

    ``profile_to`` is the store's address with its password (``store.url`` has none). The profiler uses it to record
    running jobs, if the fleet requests that, and so does retention of `unidle up`. ``say`` is called with a line for each file
    that retention cannot delete or compress; without it, the line goes to stderr.

    Errors: :class:`unidle.errors.StoreHeld` when another live writer holds the store; :class:`StoreError` where
    another user owns the store's file or its directory.
    """
    senders = senders_of(channels)
    with held_store(store, data_dir, purpose) as held:
        root, clock = held.root, held.clock
        refuse_strays(root, held.view.jobs)
        engine = LocalEngine(root, fleet, clock)
        detectors = LateDetectors(fleet, held.state / "watch.json", clock.offset_ns)
        services = _services(held, fleet, detectors, senders, profile_to, say)
        with driven(held, engine, services, watcher) as session:
            yield session


@contextmanager
def held_store(
    store: Store, data_dir: Path, purpose: str, standby: Callable[[str], None] | None = None
) -> Iterator[HeldStore]:
    """The store with its lease and the view of its log. ``standby``: called between two tries while another writer holds it,
    with its name. Errors: as of :func:`take_up`."""
    refuse_foreign(store)
    _forget_password()
    lease = _acquired(store, purpose, standby)
    try:
        view = renewed_view(store)
        clock = RealClock(store.last()[1], _clock_of_log(view))
        root = make_run_root(store, data_dir)
        yield HeldStore(store, lease, purpose, view, clock, root, state_dir(store, data_dir))
    finally:
        store.release(lease)


def _acquired(store: Store, purpose: str, standby: Callable[[str], None] | None) -> Lease:
    while True:
        try:
            return store.acquire(purpose)
        except StoreHeld as error:
            if standby is None:
                raise
            standby(error.problem)


@contextmanager
def driven(
    held: HeldStore, engine: Engine, services: ControllerServices, watcher: Watcher | None = None
) -> Iterator[ControllerSession]:
    """A controller on the store, from its start to its end. What the services have running ends with it."""
    clock, detectors = held.clock, services.detectors
    controller = Controller(held.store, held.lease, engine, Unidle(), clock, services, view=held.view)
    if watcher is not None:
        controller.watch(watcher)
    try:
        controller.start(f"{held.purpose} (pid {os.getpid()})", boot_id(), clock.offset_ns)
        if detectors is not None:
            detectors.start()
        yield ControllerSession(controller, engine, clock)
        controller.stop("done")
        if detectors is not None:
            detectors.close(logged=True)
        if services.notices is not None:
            services.notices.close(clock.now_ns())
    finally:
        _close(services, engine)


def _services(
    held: HeldStore, fleet: Fleet, detectors: LateDetectors, senders: list[tuple[NoticeChannel, Send]], address: str,
    say: Callable[[str], None] | None,
) -> ControllerServices:  # fmt: skip
    view, state = held.view, held.state
    return ControllerServices(
        NodeMaintenance(lambda: _commands(state, held.clock.offset_ns), name_of_controller(view)),
        Forecaster.of(view),
        dispatcher(held, senders),
        detectors,
        _profiler(held, fleet, address),
        GangStacks(LocalStacks(held.root)),
        retention_of(held, address, say) if fleet.retention.on else None,
    )


def _close(services: ControllerServices, engine: Engine) -> None:
    """End what the services have running, however the session ended."""
    for service in (services.detectors, services.stacks, services.retention, services.profiler):
        if service is not None:
            service.close()
    engine.close()
    if services.notices is not None:
        services.notices.abandon()


def _forget_password() -> None:
    """Processes that this one starts (supervisors, the profiler, hooks) do not have an address with a password in their
    environment. Those that need the address receive it over a pipe.
    """
    scheme, _, rest = os.environ.get("UNIDLE_STORE", "").partition("://")
    user, at, _ = rest.rpartition("@")
    if scheme and ((at and ":" in user) or "password=" in rest):
        del os.environ["UNIDLE_STORE"]


def _clock_of_log(view: View) -> int | None:
    """The offset of the log's clock where it still holds; None where the wall clock gives another.

    What still runs keeps the clock that it was given. Otherwise a step of the wall clock within one boot does not reach
    the log, if it is no longer than a day: time that never passed would stay ``unseen``. A longer one
    corrects a clock that was never set.
    """
    if view.boot != boot_id():
        return None
    step_ns = abs(time.time_ns() - boottime_ns() - view.clock_offset_ns)
    return view.clock_offset_ns if view.live or step_ns <= _STEP_NS else None


def _profiler(held: HeldStore, fleet: Fleet, address: str) -> Profiler | None:
    if not address or not fleet.profile.on:
        return None
    from unidle.control.gangs.profiler import Profiler
    from unidle.scope.continuous.process import ProfilerOrders

    root, profile = held.root, fleet.profile
    orders = ProfilerOrders(address, str(root), held.lease.token, held.clock.offset_ns, profile)
    return Profiler(orders, root.parent / "profiler.err")


def retention_of(held: HeldStore, address: str, say: Callable[[str], None] | None) -> Retention | None:
    """Only for a service: a command that drives one job leaves the others alone."""
    if not address or held.purpose != "unidle up":
        return None
    from unidle.control.retention.policy import Retention
    from unidle.control.retention.worker import RetentionWorker

    worker = RetentionWorker(address, held.state, held.lease.token)
    return Retention(held.state, worker, held.clock, say or say_line)


def name_of_controller(view: View) -> str:
    """No other controller of the store has it."""
    return f"{os.getpid()}-{view.seq}"


def _commands(place: Path, offset_ns: int) -> NodeCommands:
    from unidle.engine.local.commands.runner import LocalCommands

    return LocalCommands(place / "remedies", offset_ns)


def senders_of(channels: Sequence[NoticeChannel]) -> list[tuple[NoticeChannel, Send]]:
    """Each channel with what sends to it."""
    if not channels:
        return []
    from unidle.notices.sender import senders

    return senders(channels)


def dispatcher(held: HeldStore, senders: list[tuple[NoticeChannel, Send]]) -> NoticeDispatcher | None:
    """What sends notices; None without channels."""
    if not senders:
        return None
    from unidle.notices.dispatcher import NoticeDispatcher

    return NoticeDispatcher(held.store, held.lease, senders, held.view.health)
