"""Stores written event by event: jobs that ended long ago, without running them."""

from __future__ import annotations

import time
from collections.abc import Iterable
from pathlib import Path

from sim.worlds import fleet_of
from unidle.events import types as ev
from unidle.events.marks import Mark
from unidle.jobs import JobSpec, RankPlace, Reason
from unidle.store.open import open_store
from unidle.store.protocol import NewEvent

WHY = Reason("test", "as told")


def write_log(store: Path, events: Iterable[ev.Event]) -> None:
    """A new store with a fleet of two devices on one node, and these events."""
    told = [ev.ControllerStarted("test", 1, 10**9), ev.FleetSeen(fleet_of(2)), *events]
    opened = open_store(str(store), create=True)
    lease = opened.acquire("test")
    now = time.time_ns()
    opened.append(lease, [NewEvent(now + k, "test", k, *ev.encode(event)) for k, event in enumerate(told)])
    opened.release(lease)
    opened.close()


def job_events(job: str, state: ev.EndState | None = "succeeded", **spec: object) -> list[ev.Event]:
    """A job from its submission to its end; None: it waits. Its name is the id's first part."""
    name = job.split("-")[0]
    events: list[ev.Event] = [ev.JobSubmitted(job, JobSpec(("true",), name=name, **spec))]  # type: ignore[arg-type]
    if state is not None:
        events.append(ev.AttemptPlaced(job, 1, (RankPlace(0, "n0", ("n0/0",)),), WHY))
        events.append(ev.RankSaw(job, 1, 0, 0, (Mark("spawn", 1, pid=1), Mark("exit", 2, code=0))))
        events.append(ev.AttemptEnded(job, 1, state, WHY))
        events.append(ev.JobEnded(job, state, WHY))
    return events
