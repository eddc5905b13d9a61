"""``python -m unidle.api.serve``: the controller of a store, for as long as a Python process needs one.

A process of its own, so that the caller's signals, forks and long computations do not reach it. Standard input has one
JSON object a line: first the :class:`ServeOrder`, then ``{"job": ID}`` for each job that belongs to the caller, and
``{"kill": ID}``. Standard output has one line once the store is held, ``{"serving": PID}`` or an error, and ``{"stays": N}`` each time
when the first N jobs of the caller have ended and those of others have not.

When standard input ends, the caller has: its jobs are cancelled. The process ends when its caller's jobs have ended and
nothing else of the store is left to run.
"""

from __future__ import annotations

import json
import os
import sys
from collections.abc import Callable
from typing import TYPE_CHECKING, Any

import msgspec

from unidle.errors import UnidleError

if TYPE_CHECKING:
    from unidle.control.loop import Controller
    from unidle.files.fleet_notices import NoticeChannel
    from unidle.fleet import Fleet
    from unidle.store.protocol import Store


class ServeOrder(msgspec.Struct, frozen=True):
    """What to serve. ``place`` false: only end jobs, on the fleet recorded in the store.

    ``needed``: CPU devices that the first job needs, if no number is given.
    """

    store: str
    fleet: str | None = None
    cpu_devices: int | None = None
    profile: bool = False
    place: bool = True
    needed: int = 0

    def alike(self, other: ServeOrder) -> bool:
        """Whether both are for the same devices, without regard to what a job needs."""
        return msgspec.structs.replace(self, needed=0) == msgspec.structs.replace(other, needed=0)


def main() -> None:
    """Serve as ordered, and answer on standard output."""
    try:
        with open(0, "rb", buffering=0, closefd=False) as orders:  # takes one line, and leaves those after it
            order = msgspec.json.decode(orders.readline(), type=ServeOrder)
        _serve(order)
    except UnidleError as error:
        _answer({"kind": type(error).__name__, **error.to_json()})
        sys.exit(error.exit_code)


def _answer(line: dict[str, Any]) -> None:
    sys.stdout.write(json.dumps(line) + "\n")
    sys.stdout.flush()


def _serve(order: ServeOrder) -> None:
    from unidle.api.fleets import looked_at
    from unidle.api.stores import data_dir
    from unidle.control.session import take_up
    from unidle.store.open import open_store

    store = open_store(order.store, create=False)
    fleet, channels = _fleet(order, store)
    fleet = looked_at(fleet) if order.profile else fleet
    opened = take_up(store, fleet, data_dir(), "unidle.run", channels=channels, profile_to=order.store)
    with opened as session:
        _answer({"serving": os.getpid()})
        if not order.place:
            session.controller.pause()
        session.controller.run(_until(session.controller, Caller(), place=order.place))
    store.close()


def _fleet(order: ServeOrder, store: Store) -> tuple[Fleet, tuple[NoticeChannel, ...]]:
    from unidle.api.fleets import find_fleet_and_channels
    from unidle.api.stores import read_view

    if order.place:
        return find_fleet_and_channels(order.fleet, order.cpu_devices, order.needed)
    return read_view(store).fleet, ()


class Caller:
    """Messages of the caller, read without waiting."""

    def __init__(self) -> None:
        self._rest = b""
        self.jobs: list[str] = []
        self.gone = False
        os.set_blocking(0, False)

    def kills(self) -> list[str]:
        """Read new messages; return the jobs to kill at once."""
        kills = []
        while not self.gone:
            try:
                chunk = os.read(0, 65536)
            except BlockingIOError:
                break
            self.gone = not chunk
            *lines, self._rest = (self._rest + chunk).split(b"\n")
            for line in map(json.loads, lines):
                if "job" in line:
                    self.jobs.append(line["job"])
                elif "kill" in line:
                    kills.append(line["kill"])
        return kills


def _until(controller: Controller, caller: Caller, *, place: bool) -> Callable[[], bool]:
    stays = -1  # what was answered last

    def done() -> bool:
        nonlocal stays
        view = controller.view
        changed = False
        for job in caller.kills():
            if job in view.jobs and not view.jobs[job].terminal:
                _kill(controller, job)
                changed = True
        mine = [view.jobs.open[job] for job in caller.jobs if job in view.jobs.open]
        for one in mine if caller.gone else ():
            if one.cancel_by is None:
                controller.cancel(one.id, "the end of the process that ran it")
                changed = True
        if changed:
            controller.turn()
        waits = any(job not in view.jobs for job in caller.jobs)  # still in the inbox
        if mine or waits:
            stays = -1
            return False
        if not place or controller.idle():
            return True
        if stays != len(caller.jobs) and not caller.gone:
            stays = len(caller.jobs)
            _answer({"stays": stays})
        return False

    return done


def _kill(controller: Controller, job: str) -> None:
    """End it without grace. A gang that is killed before it was cancelled would have failed, and might start again."""
    if controller.view.jobs[job].cancel_by is None:
        controller.cancel(job, "the process that ran it")
        controller.turn()
    controller.kill(job)


if __name__ == "__main__":
    main()
