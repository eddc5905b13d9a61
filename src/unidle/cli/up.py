"""``unidle up``: serves a store."""

from __future__ import annotations

import os
import sys
from collections.abc import Callable
from typing import TYPE_CHECKING, Annotated

import typer

from unidle.cli.common import CpuDevicesOption, FleetOption, StoreOption, data_dir, store_address
from unidle.cli.run import (
    ProfileOption,
    ProgressOption,
    Signals,
    caught,
    find_fleet_and_channels,
    looked_at,
    make_parent,
    progress_of,
    told_what_is_left,
)
from unidle.words import counted

if TYPE_CHECKING:
    from unidle.cli.live import Live, Progress
    from unidle.control.session import Session
    from unidle.files.fleet_notices import Channel
    from unidle.fleet import Fleet


def register(app: typer.Typer) -> None:
    """Add this room's command."""
    app.command("up")(up)


def up(
    store: StoreOption = None,
    fleet: FleetOption = None,
    cpu_devices: CpuDevicesOption = None,
    until_idle: Annotated[
        bool, typer.Option("--until-idle", help="Stop when no job is left to drive.")
    ] = False,
    profile: ProfileOption = False,
    progress: ProgressOption = "auto",
) -> None:
    """Serve this store: adopt what runs on it and drive every job, until stopped.

    SIGTERM leaves the ranks running for the next `unidle up`. Ctrl-C stops them and puts their jobs back into the
    queue; a second Ctrl-C kills them at once.
    """
    found, channels = find_fleet_and_channels(fleet, cpu_devices)
    found = looked_at(found) if profile else found
    sys.exit(_up(found, channels, store_address(store), until_idle, progress_of(progress)))


def _up(fleet: Fleet, channels: tuple[Channel, ...], address: str, until_idle: bool, mode: Progress) -> int:
    from unidle.cli.live import Live
    from unidle.control.session import take_up
    from unidle.store.open import open_store

    live = Live(mode)
    make_parent(address)
    store = open_store(address, create=True)
    opened = take_up(store, fleet, data_dir(), "unidle up", channels=channels, profile_to=address)
    with caught() as signals, opened as session:
        controller = session.controller
        controller.watch(lambda event, _time: live.tell(controller.view, event))
        devices = counted(len(fleet.devices()), "device")
        live.hint(f"serving {address} with {devices} (pid {os.getpid()}); Ctrl-C stops")
        with told_what_is_left(controller, live, address):
            controller.run(_serving(session, signals, live, until_idle))
    store.close()
    return 130 if signals.interrupts else 0


def _serving(session: Session, signals: Signals, live: Live, until_idle: bool) -> Callable[[], bool]:
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
