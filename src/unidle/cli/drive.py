"""Getting something done on a store that may or may not have a controller."""

from __future__ import annotations

import time

from unidle.cli.common import data_dir, read_view
from unidle.errors import StoreHeld
from unidle.fleet import Fleet
from unidle.store.protocol import Store

_ASK_EVERY_S = 0.1


def settle(store: Store, job_id: str) -> str:
    """Wait until the job has ended and return its state.

    Where nobody drives the store this process does, for as long as it takes: a job whose controller
    is gone can be cancelled, too.
    """
    while True:
        try:
            return _drive(store, job_id)
        except StoreHeld:
            job = read_view(store).jobs.get(job_id)
            if job is not None and job.terminal:
                return job.state
            time.sleep(_ASK_EVERY_S)


def _drive(store: Store, job_id: str) -> str:
    from unidle.control.session import take_up

    fleet = read_view(store).fleet
    with take_up(store, fleet if fleet.nodes else Fleet(), data_dir(), "unidle cancel") as session:
        controller = session.controller
        controller.pause()
        controller.run(lambda: job_id in controller.view.jobs and controller.view.jobs[job_id].terminal)
        return controller.view.jobs[job_id].state
