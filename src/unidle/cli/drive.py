"""Getting something done on a store that may or may not have a controller."""

from __future__ import annotations

import time
from collections.abc import Callable
from contextlib import suppress

from unidle.cli.common import data_dir, read_view
from unidle.errors import StoreError, StoreHeld
from unidle.fleet import Fleet
from unidle.store.protocol import Store
from unidle.view.state import View

_ASK_EVERY_S = 0.1


def settle(store: Store, job_id: str, request: int | None = None) -> str:
    """Wait until the job has ended and return its state; with ``request``, at most until that was answered.

    If no process drives the store, this process does, for as long as it takes: a job whose controller is gone can
    be cancelled, too.
    """

    def settled(view: View) -> bool:
        job = view.jobs.get(job_id)
        if job is not None and job.terminal:
            return True
        if request is None or store.is_waiting(request):
            return False
        return job is None or job.cancel_by is None

    def state_of(view: View) -> str | None:
        return view.jobs[job_id].state if job_id in view.jobs and settled(view) else None

    return _until(store, state_of, "unidle cancel")


def answered(store: Store, request: int, purpose: str) -> None:
    """Wait until a request left the inbox. If no process drives the store, this process does, as ``purpose``."""
    _until(store, lambda _: None if store.is_waiting(request) else "done", purpose)


def done_by_controller(
    store: Store, request: int, purpose: str, done: Callable[[View], bool], what: str
) -> None:
    """As :func:`answered`. Errors: :class:`StoreError` if ``what`` was not done: an old controller has no such request."""
    answered(store, request, purpose)
    if not done(read_view(store)):
        raise StoreError(
            f"the controller did not {what}", field=store.url,
            remedy="restart `unidle up` with this version of unidle, then try again",
        )  # fmt: skip


def _until(store: Store, found: Callable[[View], str | None], purpose: str) -> str:
    """The first result of ``found`` that is not empty. The log of another controller is followed, not read again."""
    from unidle.view.fold import fold
    from unidle.view.snapshot import load_view

    view: View | None = None
    while True:
        if store.holder() is None:
            with suppress(StoreHeld):
                return _drive(store, found, purpose)
        view = load_view(store) if view is None else fold(view, store.read(after=view.seq))
        if (said := found(view)) is not None:
            return said
        time.sleep(_ASK_EVERY_S)


def _drive(store: Store, found: Callable[[View], str | None], purpose: str) -> str:
    from unidle.control.session import take_up

    fleet = read_view(store).fleet
    with take_up(store, fleet if fleet.nodes else Fleet(), data_dir(), purpose) as session:
        controller = session.controller
        controller.pause()
        controller.run(lambda: found(controller.view) is not None)
        return found(controller.view) or ""
