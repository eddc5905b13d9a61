"""The clock of the log: a step of the wall clock within one boot leaves no time unseen."""

from __future__ import annotations

import time
from contextlib import closing
from pathlib import Path

import pytest

from unidle.clock import RealClock, boot_id, boottime_ns
from unidle.control.loop import Controller
from unidle.control.session import take_up
from unidle.engine.local.engine import LocalEngine
from unidle.fleet import Device, Fleet, Node
from unidle.place.policy import Unidle
from unidle.store.open import open_store
from unidle.view.snapshot import load_view

FLEET = Fleet(nodes=(Node("n0", "", (Device("n0/0", "n0", 0, "cpu"),)),))
HOUR_NS = 3_600_000_000_000


def _served_before(path: Path, behind_ns: int) -> None:
    """A controller was here while the wall clock was behind today's by so much."""
    with closing(open_store(str(path), create=True)) as store:
        clock = RealClock(0, time.time_ns() - boottime_ns() - behind_ns)
        engine = LocalEngine(path.with_name("runs"), FLEET, clock)
        controller = Controller(store, store.acquire("test"), engine, Unidle(), clock)
        controller.start("test", boot_id(), clock.offset_ns)
        controller.stop("done")


def _serve(path: Path) -> None:
    with closing(open_store(str(path), create=False)) as store, take_up(store, FLEET, path.parent, "test"):
        pass


@pytest.mark.parametrize("hours", [1, 20])
def test_a_wall_clock_that_jumped_ahead_leaves_no_time_unseen(tmp_path: Path, hours: int) -> None:
    path = tmp_path / "store.db"
    _served_before(path, hours * HOUR_NS)
    _serve(path)
    with closing(open_store(str(path), create=False, read_only=True)) as store:
        view = load_view(store)
    assert sum(end - start for start, end in view.book.gaps) < HOUR_NS
    assert view.time_ns - view.first_ns < HOUR_NS


def test_a_clock_that_was_wrong_by_days_is_corrected(tmp_path: Path) -> None:
    path = tmp_path / "store.db"
    _served_before(path, 48 * HOUR_NS)
    _serve(path)
    with closing(open_store(str(path), create=False, read_only=True)) as store:
        view = load_view(store)
    assert view.time_ns - view.first_ns > 47 * HOUR_NS
