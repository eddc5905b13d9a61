"""The lease: one writer, whatever happens to processes and clocks."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path

import pytest

from unidle.errors import LeaseLost, StoreHeld
from unidle.store import lease_owner
from unidle.store.database import Database
from unidle.store.lease_owner import Holder, start_ticks, this_process
from unidle.store.open import open_store
from unidle.store.sql import LEASE_TTL_NS, SqlStore
from unidle.store.sqlite import SqliteDatabase

HOLD = """
import sys
from unidle.store.open import open_store
store = open_store(sys.argv[1], create=True)
print(store.acquire("unidle up").token, flush=True)
sys.stdin.read()
"""


@contextmanager
def another_writer(address: str) -> Iterator[subprocess.Popen[str]]:
    """A process that holds the store until it is told to end."""
    process = subprocess.Popen(
        [sys.executable, "-c", HOLD, address], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
    )
    try:
        assert process.stdout is not None
        assert int(process.stdout.readline()) >= 1
        yield process
    finally:
        process.kill()
        process.communicate()


def test_the_error_names_the_process_that_holds_the_store(durable):
    with another_writer(durable.address) as process:
        store = durable.open()
        with pytest.raises(StoreHeld) as error:
            store.acquire("unidle run")
        assert f"held by unidle up (pid {process.pid} on " in str(error.value)
        assert "stop it" in str(error.value)
        assert f"pid {process.pid}" in store.holder()
        assert store.request("submit", b"{}")  # the inbox stays open


def test_a_holder_that_was_killed_is_replaced_at_once(durable):
    with another_writer(durable.address) as process:
        process.send_signal(signal.SIGKILL)
        process.wait()
    store = durable.open()
    assert store.holder() is None
    assert store.acquire("unidle run").token == 2


def test_a_holder_that_was_killed_and_not_yet_waited_for_is_replaced_too(durable, wait_until):
    with another_writer(durable.address) as process:
        process.send_signal(signal.SIGKILL)
        wait_until(lambda: start_ticks(process.pid) is None, 10)
        assert Path(f"/proc/{process.pid}/stat").exists()  # a zombie
        durable.open().acquire("unidle run")


def test_a_holder_that_is_only_stopped_still_holds(durable):
    with another_writer(durable.address) as process:
        process.send_signal(signal.SIGSTOP)
        with pytest.raises(StoreHeld):
            durable.open().acquire("unidle run")
        process.send_signal(signal.SIGCONT)


def test_a_pid_that_came_back_is_not_the_holder(durable):
    store = durable.open()
    now = this_process("test", 0)
    hold_as(store, replace(now, ticks=now.ticks - 1), 10**9)
    assert durable.open().acquire("unidle run").token == 2


def hold_as(store: SqlStore, holder: Holder, left_ns: int) -> None:
    """Make ``holder`` the writer, its lease ending ``left_ns`` from now."""
    with store.transaction():
        writer = store._writer()
        store._set(writer, token=1, holder=holder.to_json(), expires_ns=writer.now_ns + left_ns)


ELSEWHERE = [
    {"boot": "11111111-2222-3333-4444-555555555555", "host": "node7"},
    {"pid_ns": "pid:[1]", "host": "container"},
    {"ticks": 0},
]


@pytest.mark.parametrize("elsewhere", ELSEWHERE)
def test_a_holder_that_cannot_be_looked_up_is_replaced_only_when_its_lease_ends(durable, elsewhere):
    store = durable.open()
    holder = replace(this_process("unidle up", 0), **elsewhere)
    assert holder.is_alive() is None
    hold_as(store, holder, LEASE_TTL_NS)
    with pytest.raises(StoreHeld, match=holder.host):
        store.acquire("unidle run")
    assert holder.host in store.holder()
    hold_as(store, holder, -1)
    assert store.holder() is None
    assert store.acquire("unidle run").token == 2


def test_a_lease_that_another_version_wrote_is_honoured_until_it_ends(durable):
    store = durable.open()
    with store.transaction():
        writer = store._writer()
        store._set(writer, token=1, holder='{"who": "?"}', expires_ns=writer.now_ns + LEASE_TTL_NS)
    with pytest.raises(StoreHeld, match="another version"):
        store.acquire("unidle run")


def test_appends_extend_the_lease(durable, event):
    store = durable.open()
    lease = store.acquire("test")
    for use in (
        lambda: store.append(lease, [event(1)]),
        lambda: store.renew(lease),
    ):
        before = store._writer().expires_ns
        use()
        assert store._writer().expires_ns > before


def test_a_writer_whose_lease_ended_may_go_on_until_another_takes_over(durable, event):
    store = durable.open()
    lease = store.acquire("test")
    with store.transaction():
        store._set(store._writer(), expires_ns=1)
    assert store.append(lease, [event(1)]) == 1


class Wall:
    """A wall clock that a test sets."""

    def __init__(self) -> None:
        self.ns = 10**18

    def __call__(self) -> int:
        return self.ns


@pytest.mark.parametrize("jump_ns", [-(10**17), -(10**11), 10**11, 10**17])
def test_a_clock_that_jumps_never_makes_two_writers(tmp_path, event, jump_ns):
    wall = Wall()
    SqlStore(made(tmp_path / "s.db")).close()
    first = SqlStore(SqliteDatabase(tmp_path / "s.db", wall_ns=wall))
    second = SqlStore(SqliteDatabase(tmp_path / "s.db", wall_ns=wall))
    hold_as(first, replace(this_process("far", 0), boot="elsewhere"), LEASE_TTL_NS)
    old = first._writer()
    wall.ns += jump_ns
    lease = second.acquire("near")  # by the clock the other's time is over, or can never have been
    with pytest.raises(LeaseLost):
        first._set(old, expires_ns=wall.ns)
    second.append(lease, [event(1)])
    first.close()
    second.close()


def test_a_clock_that_jumps_does_not_unseat_a_holder_on_this_machine(tmp_path, event):
    wall = Wall()
    SqlStore(made(tmp_path / "s.db")).close()
    first = SqlStore(SqliteDatabase(tmp_path / "s.db", wall_ns=wall))
    second = SqlStore(SqliteDatabase(tmp_path / "s.db", wall_ns=wall))
    lease = first.acquire("test")
    for jump_ns in (10**17, -(2 * 10**17)):
        wall.ns += jump_ns
        with pytest.raises(StoreHeld):
            second.acquire("other")
    assert first.append(lease, [event(1)]) == 1
    first.close()
    second.close()


def made(path: Path) -> Database:
    open_store(str(path), create=True).close()
    return SqliteDatabase(path)


def test_of_many_that_take_a_free_store_at_once_one_gets_it(durable):
    durable.open()
    stores = [durable.open() for _ in range(6)]
    start, outcomes = threading.Barrier(len(stores)), []

    def contend(store: SqlStore) -> None:
        start.wait()
        try:
            outcomes.append(store.acquire("test").token)
        except StoreHeld:
            outcomes.append(None)

    threads = [threading.Thread(target=contend, args=[store]) for store in stores]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert len(outcomes) == len(stores)
    assert [token for token in outcomes if token] == [1]


def test_a_process_with_spaces_and_brackets_in_its_name_is_recognised(tmp_path):
    program = tmp_path / "a (b) c"
    program.symlink_to(Path("/bin/sleep").resolve())
    process = subprocess.Popen([program, "60"])
    try:
        ticks = start_ticks(process.pid)
        assert ticks
        assert ticks >= start_ticks(os.getpid())
    finally:
        process.kill()
        process.wait()
    assert start_ticks(process.pid) is None


def test_a_holder_survives_being_written_down():
    holder = this_process("unidle up", 1_700_000_000_000_000_000)
    assert lease_owner.parse(holder.to_json()) == holder
    assert holder.is_alive() is True
    assert holder.words().endswith("since 2023-11-14 22:13:20 UTC)")
    assert lease_owner.parse("not JSON") is None
