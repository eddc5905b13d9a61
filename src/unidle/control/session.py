"""A store taken up on this machine: lease, local engine and controller, opened and closed together."""

from __future__ import annotations

import hashlib
import os
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

from unidle.clock import RealClock
from unidle.control.loop import Controller, Watcher
from unidle.engine.local.engine import LocalEngine
from unidle.fleet import Fleet
from unidle.place.first_fit import FirstFit
from unidle.store.protocol import Store


@dataclass(frozen=True, slots=True)
class Session:
    controller: Controller
    engine: LocalEngine
    clock: RealClock


def state_dir(store: Store, data_dir: Path) -> Path:
    """Where logs, journals and reports of a store live: beside its file, else under ``data_dir``."""
    if store.url.startswith("sqlite:///"):
        return Path(store.url.removeprefix("sqlite:///") + ".d")
    return data_dir / (hashlib.sha256(store.url.encode()).hexdigest()[:16] + ".d")


def run_root(store: Store, data_dir: Path) -> Path:
    """Where the attempts' logs and journals are."""
    return state_dir(store, data_dir) / "runs"


@contextmanager
def take_up(
    store: Store, fleet: Fleet, data_dir: Path, purpose: str, watcher: Watcher | None = None
) -> Iterator[Session]:
    """Hold the store while the block runs. What runs when it ends keeps running.

    Errors: :class:`unidle.errors.StoreHeld` when another live writer holds the store.
    """
    lease = store.acquire(purpose)
    try:
        clock = RealClock(not_before_ns=store.last()[1])
        root = run_root(store, data_dir)
        root.mkdir(parents=True, exist_ok=True)
        engine = LocalEngine(root, fleet, clock)
        controller = Controller(store, lease, engine, FirstFit(), clock, watcher=watcher)
        try:
            controller.start(f"{purpose} (pid {os.getpid()})")
            yield Session(controller, engine, clock)
            controller.stop("done")
        finally:
            engine.close()
    finally:
        store.release(lease)
