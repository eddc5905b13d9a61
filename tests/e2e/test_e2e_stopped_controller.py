"""A controller that is stopped for longer than its lease: another one takes the jobs, and the first writes nothing more."""

from __future__ import annotations

import signal
from pathlib import Path

from e2e.commands import ask, start
from e2e.gangs import assert_nothing_runs, jobs_of, running, wait_for_state, write_job
from unidle.store.open import open_store
from waiting import wait_until


def test_a_controller_that_was_stopped_is_replaced_and_ends_with_code_4(tmp_path: Path) -> None:
    store = tmp_path / "s.db"
    file = write_job(tmp_path / "long.yaml", "sleep 600", ranks=2)
    with running("run", file, "--store", store, "--cpu-devices", 2) as first:
        job = wait_for_state(store, "long", "running")
        first.send_signal(signal.SIGSTOP)
        second = None
        try:

            def serves() -> bool:
                nonlocal second
                if second is None or second.poll() is not None:  # refused while the lease lasts
                    second = start("up", "--store", store, "--cpu-devices", 2)
                return f"pid {second.pid} " in (held_by(store) or "")

            wait_until(serves, 60, "the second controller")
            last = last_seq(store)
            first.send_signal(signal.SIGCONT)
            assert first.wait(60) == 4
            assert first.stderr is not None
            assert "lost the store to unidle up" in first.stderr.read().decode()
            with_first = [event for event in events(store, last) if f"pid {first.pid}" in event]
            assert not with_first
            assert ask("cancel", job.id, "--store", store)["state"] == "cancelled"
            assert len(jobs_of(store)["long"].attempts) == 1
        finally:
            if second is not None:
                second.terminate()
                second.wait(60)
    assert_nothing_runs(job.id)


def held_by(store: Path) -> str | None:
    opened = open_store(str(store), create=False, read_only=True)
    try:
        return opened.holder()
    finally:
        opened.close()


def last_seq(store: Path) -> int:
    opened = open_store(str(store), create=False, read_only=True)
    try:
        return opened.last()[0]
    finally:
        opened.close()


def events(store: Path, after: int) -> list[str]:
    opened = open_store(str(store), create=False, read_only=True)
    try:
        return [event.body.decode() for event in opened.read(after)]
    finally:
        opened.close()
