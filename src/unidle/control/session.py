"""A store opened on this machine: lease, local engine and controller, opened and closed together."""

from __future__ import annotations

import os
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Final

from unidle.clock import RealClock, boot_id, boottime_ns
from unidle.control.forecast import Forecaster
from unidle.control.gangs.stacks import GangStacks
from unidle.control.loop import Controller
from unidle.control.nodes.late_detectors import LateDetectors
from unidle.control.nodes.maintenance import NodeCare
from unidle.control.recorder import Watcher
from unidle.control.store_files import make_run_root, refuse_foreign, refuse_strays, say_line, state_dir
from unidle.engine.local.engine import LocalEngine
from unidle.engine.protocol import Engine
from unidle.fleet import Fleet
from unidle.place.policy import Unidle
from unidle.store.protocol import Store
from unidle.view.snapshot import renewed_view

if TYPE_CHECKING:
    from unidle.control.gangs.profiler import Profiler
    from unidle.control.nodes.hooks import Hands
    from unidle.control.retention.policy import Retention
    from unidle.files.fleet_notices import NoticeChannel
    from unidle.notices.dispatcher import NoticeDispatcher
    from unidle.notices.sender import Send
    from unidle.store.protocol import Lease
    from unidle.view.state import View


_STEP_NS: Final = 86_400_000_000_000


@dataclass(frozen=True, slots=True)
class Session:
    controller: Controller
    engine: Engine
    clock: RealClock


@contextmanager
def take_up(
    store: Store, fleet: Fleet, data_dir: Path, purpose: str, watcher: Watcher | None = None,
    channels: Sequence[NoticeChannel] = (), profile_to: str = "", say: Callable[[str], None] | None = None,
) -> Iterator[Session]:  # fmt: skip
    """Hold the store while the block runs. What runs when it ends keeps running. ``channels`` receive notices.

    ``profile_to`` is the store's address with its password (``store.url`` has none). The profiler uses it to record
    running jobs, if the fleet requests that, and so does retention of `unidle up`. ``say`` is called with a line for each file
    that retention cannot delete or compress; without it, the line goes to stderr.

    Errors: :class:`unidle.errors.StoreHeld` when another live writer holds the store; :class:`StoreError` where
    another user owns the store's file or its directory.
    """
    refuse_foreign(store)
    senders = _senders(channels)
    lease = store.acquire(purpose)
    try:
        view = renewed_view(store)
        clock = RealClock(store.last()[1], _clock_of_log(view))
        root = make_run_root(store, data_dir)
        refuse_strays(root, view.jobs)
        desk = _desk(store, lease, senders, view.health)
        engine = LocalEngine(root, fleet, clock)
        detectors = LateDetectors(fleet, state_dir(store, data_dir) / "watch.json", clock.offset_ns)
        profiler = _profiler(profile_to, fleet, root, lease, clock)
        stacks = GangStacks(root)
        retention = _retention(profile_to, purpose, fleet, state_dir(store, data_dir), lease, clock, say)
        controller = Controller(
            store, lease, engine, Unidle(), clock,
            watcher=watcher, view=view, forecaster=Forecaster.of(view), notices=desk, detectors=detectors,
            profiler=profiler, stacks=stacks, retention=retention,
            care=NodeCare(lambda: _hands(state_dir(store, data_dir)), f"{os.getpid()}-{view.seq}"),
        )  # fmt: skip
        try:
            controller.start(f"{purpose} (pid {os.getpid()})", boot_id(), clock.offset_ns)
            detectors.start()
            yield Session(controller, engine, clock)
            controller.stop("done")
            detectors.close(logged=True)
            if desk is not None:
                desk.close(clock.now_ns())
        finally:
            detectors.close()
            stacks.close()
            if retention is not None:
                retention.close()
            if profiler is not None:
                profiler.close()
            engine.close()
            if desk is not None:
                desk.abandon()
    finally:
        store.release(lease)


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


def _profiler(address: str, fleet: Fleet, root: Path, lease: Lease, clock: RealClock) -> Profiler | None:
    if not address or not fleet.profile.on:
        return None
    from unidle.control.gangs.profiler import Orders, Profiler

    orders = Orders(address, str(root), lease.token, clock.offset_ns, fleet.profile)
    return Profiler(orders, root.parent / "profiler.err")


def _retention(
    address: str,
    purpose: str,
    fleet: Fleet,
    state: Path,
    lease: Lease,
    clock: RealClock,
    say: Callable[[str], None] | None,
) -> Retention | None:
    """Only for a service: a command that drives one job leaves the others alone."""
    if not address or purpose != "unidle up" or not fleet.retention.on:
        return None
    from unidle.control.retention.policy import Retention
    from unidle.control.retention.worker import RetentionWorker

    return Retention(state, RetentionWorker(address, state, lease.token), clock, say or say_line)


def _hands(place: Path) -> Hands:
    from unidle.control.nodes.hooks import HookRunner

    return HookRunner(place / "remedies")


def _senders(channels: Sequence[NoticeChannel]) -> list[tuple[NoticeChannel, Send]]:
    if not channels:
        return []
    from unidle.notices.sender import senders

    return senders(channels)


def _desk(
    store: Store, lease: Lease, senders: list[tuple[NoticeChannel, Send]], health: Mapping[str, str]
) -> NoticeDispatcher | None:
    if not senders:
        return None
    from unidle.notices.dispatcher import NoticeDispatcher

    return NoticeDispatcher(store, lease, senders, health)
