"""``unidle up``: serves a store."""

from __future__ import annotations

import os
import sys
from collections.abc import Callable, Iterator
from typing import TYPE_CHECKING, Annotated, Final

import typer

from unidle.api.fleets import find_fleet_and_channels, looked_at, with_devices_of_jobs
from unidle.api.stores import make_parent
from unidle.cli.common import (
    CpuDevicesOption,
    FleetOption,
    StoreModeOption,
    StoreOption,
    clock_time,
    data_dir,
    mode_of,
    store_address,
)
from unidle.cli.run import (
    ProfileOption,
    ProgressOption,
    Signals,
    caught,
    progress_of,
    told_what_is_left,
)
from unidle.words import counted, does

if TYPE_CHECKING:
    from unidle.cli.live import Live, Progress
    from unidle.control.session import ControllerSession
    from unidle.files.fleet_notices import NoticeChannel
    from unidle.fleet import Fleet
    from unidle.view.state import View

_NAMED: Final = 8  # adopted jobs that are named


def register(app: typer.Typer) -> None:
    """Add this room's command."""
    app.command("up")(up)


def up(
    store: StoreOption = None,
    fleet: FleetOption = None,
    cpu_devices: CpuDevicesOption = None,
    until_idle: Annotated[bool, typer.Option("--until-idle", help="Stop when no job is left.")] = False,
    profile: ProfileOption = False,
    progress: ProgressOption = "auto",
    mode: StoreModeOption = "0600",
) -> None:
    """Drive the jobs of a store until stopped. Jobs that still run are adopted.

    SIGTERM leaves the ranks running for the next `unidle up`. Ctrl-C stops them and puts their jobs back into the
    queue; a second Ctrl-C kills them at once.
    """
    found, channels = find_fleet_and_channels(fleet, cpu_devices)
    found = looked_at(found) if profile else found
    discovered = fleet is None and cpu_devices is None
    address = store_address(store)
    sys.exit(_up(found, channels, address, until_idle, progress_of(progress), discovered, mode_of(mode)))


def _up(
    fleet: Fleet, channels: tuple[NoticeChannel, ...], address: str, until_idle: bool, progress: Progress, discovered: bool, mode: int
) -> int:  # fmt: skip
    from unidle.cli.live import Live
    from unidle.control.heap import map_large_blocks
    from unidle.control.session import take_up
    from unidle.store.open import open_store

    map_large_blocks()
    live = Live(progress)
    make_parent(address)
    store = open_store(address, create=True, mode=mode)
    fleet = with_devices_of_jobs(fleet, store) if discovered else fleet
    opened = take_up(
        store, fleet, data_dir(), "unidle up", channels=channels, profile_to=address, say=live.warning
    )
    with caught() as signals, opened as session:
        controller = session.controller
        controller.watch(lambda event, _time: live.tell(controller.view, event))
        devices = counted(len(fleet.devices()), "device")
        live.hint(f"serving {address} with {devices} (pid {os.getpid()}); Ctrl-C stops")
        for line in adopted(controller.view):
            live.hint(line)
        with told_what_is_left(controller, live, address):
            controller.run(_serving(session, signals, live, until_idle))
    store.close()
    return 130 if signals.interrupts else 0


def adopted(view: View) -> Iterator[str]:
    """What a controller found running and waiting as it started: which jobs, how many ranks, since when."""
    live = sorted((view.jobs.open[name].attempts[-1].placed_ns, name) for name in view.live)
    for placed_ns, name in live[:_NAMED]:
        ranks = view.jobs.open[name].attempts[-1].ranks
        up = sum(rank.spawn_ns is not None and not rank.ended for rank in ranks)
        text = counted(len(ranks), "rank") if up == len(ranks) else f"{up} of {counted(len(ranks), 'rank')}"
        yield f"adopted {name}: {text}, running since {clock_time(placed_ns)}"
    if len(live) > _NAMED:
        yield f"adopted {counted(len(live) - _NAMED, 'more job')}"
    if waiting := len(view.jobs.open) - len(live):
        yield f"{counted(waiting, 'job')} {does(waiting, 'wait')}"


def _serving(
    session: ControllerSession, signals: Signals, live: Live, until_idle: bool
) -> Callable[[], bool]:
    controller = session.controller
    asked = 0

    def done() -> bool:
        nonlocal asked
        if signals.terminates:
            return True
        if signals.interrupts > asked:
            if asked == 0:
                controller.drain()
                live.hint("stopping every gang; Ctrl-C again kills at once")
            else:
                for job in sorted(controller.view.live):
                    controller.kill(job)
            asked = signals.interrupts
            controller.turn()
        if asked:
            return not controller.view.live
        return until_idle and controller.idle()

    return done
