"""The lease: one writer, whatever happens to processes and clocks."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import threading
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from dataclasses import replace
from pathlib import Path

import pytest

from unidle.clock import boottime_ns
from unidle.errors import LeaseLost, StoreHeld
from unidle.store import lease_owner
from unidle.store.database import Database
from unidle.store.lease_owner import Holder, start_ticks, this_process
from unidle.store.lease_time import LEASE_TTL_NS, LeaseTime
from unidle.store.open import open_store
from unidle.store.protocol import Lease
from unidle.store.sql import SqlStore
from unidle.store.sqlite import SqliteDatabase
from waiting import wait_until

HOLD = """
import sys
from unidle.store.open import open_store
from unidle.store.protocol import NewEvent
store = open_store(sys.argv[1], create=True)
lease = store.acquire("unidle up")
print(lease.token, flush=True)
for line in sys.stdin:
    try:
        print(store.append(lease, [NewEvent(1, "s", 1, "k", b"{}")]), flush=True)
    except Exception as error:
        print(type(error).__name__, flush=True)
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
        wait_until(lambda: start_ticks(process.pid) is None, 60)
        assert Path(f"/proc/{process.pid}/stat").exists()  # a zombie
        durable.open().acquire("unidle run")


def test_a_holder_that_is_only_stopped_still_holds(durable):
    with another_writer(durable.address) as process:
        process.send_signal(signal.SIGSTOP)
        with pytest.raises(StoreHeld):
            durable.open().acquire("unidle run")
        process.send_signal(signal.SIGCONT)


def test_a_holder_that_stays_stopped_is_replaced_and_writes_nothing_when_it_wakes_up(durable, event):
    with another_writer(durable.address) as process:
        assert process.stdin is not None
        assert process.stdout is not None
        process.send_signal(signal.SIGSTOP)
        store = durable.open()
        lease = taken(store)
        assert lease.token == 2
        process.send_signal(signal.SIGCONT)
        process.stdin.write("append\n")
        process.stdin.flush()
        assert process.stdout.readline() == "LeaseLost\n"
        assert store.append(lease, [event(2)]) == 1
        assert [found.source_seq for found in store.read()] == [2]


def taken(store: SqlStore) -> Lease:
    """The lease, once the store gives it."""

    def lease() -> Lease | None:
        with suppress(StoreHeld):
            return store.acquire("unidle run")
        return None

    found = wait_until(lease, 60, "the lease of a stopped writer to end")
    assert found is not None
    return found


def test_a_lease_is_renewed_while_the_writer_does_something_else(durable, wait_until):
    store = durable.open()
    lease = store.acquire("test")
    before = store.writer.read().expires_ns
    watching = durable.open()
    wait_until(lambda: watching.writer.read().expires_ns > before, 60)
    store.release(lease)
    assert watching.writer.read().expires_ns == 0
    assert not [thread for thread in threading.enumerate() if thread.name == "unidle-lease"]


def test_a_writer_that_lives_here_and_renews_is_not_replaced_though_its_lease_seems_over(durable):
    first, second = durable.open(), durable.open()
    lease = first.acquire("test")
    with second.transaction():  # as if the clock had been set
        second.writer.set(second.writer.read(), expires_ns=1)
    with pytest.raises(StoreHeld):
        second.acquire("other")
    assert first.writer.read().token == lease.token


def test_a_writer_that_is_confirmed_extends_a_lease_that_is_half_over(durable):
    store = durable.open()
    lease = store.acquire("test")
    store._stop_renewing()
    before = store.writer.read().expires_ns
    store.confirm(lease)
    assert store.writer.read().expires_ns == before  # it is fresh
    make_old(store)
    assert not store.is_fresh(lease)
    store.confirm(lease)
    assert store.writer.read().expires_ns > before
    assert store.is_fresh(lease)


def test_a_writer_that_was_replaced_is_not_confirmed(durable):
    store, other = durable.open(), durable.open()
    lease = store.acquire("test")
    store._stop_renewing()
    with other.transaction():
        other.writer.set(other.writer.read(), holder=None, expires_ns=0)
    other.acquire("other")
    make_old(store)
    with pytest.raises(LeaseLost):
        store.confirm(lease)
    assert not store.is_fresh(lease)


def make_old(store: SqlStore) -> None:
    """As if the process had been stopped since the last extension for half of the lease."""
    store._time.__init__()
    store._time.extended(boottime_ns() - LEASE_TTL_NS // 2)


def test_the_time_of_a_lease_never_goes_back():
    time = LeaseTime()
    assert not time.is_held
    assert not time.is_fresh
    now = boottime_ns()
    time.extended(now)
    time.extended(now - LEASE_TTL_NS)  # by a transaction that began before, and ended later
    assert time.is_fresh
    time.ended()
    assert not time.is_fresh


def test_a_writer_of_an_earlier_start_of_a_container_is_waited_for_and_replaced(durable):
    store = durable.open()
    before = replace(this_process("unidle up", 0), pid_ns="pid:[1]")
    assert before.is_of_earlier_start()
    hold_as(store, before, LEASE_TTL_NS)
    assert store.acquire("unidle up").token == 2


def test_a_writer_renews_on_two_connections_at_once(durable, event):
    store = durable.open()
    lease = store.acquire("test")
    store._stop_renewing()
    stop = threading.Event()
    failed: list[BaseException] = []

    def renew() -> None:
        other = store._another_connection()
        try:
            while not stop.is_set():
                other.extend()
        except BaseException as error:
            failed.append(error)
        finally:
            other.close()

    thread = threading.Thread(target=renew)
    thread.start()
    try:
        for n in range(1, 101):
            assert store.append(lease, [event(n)]) == n
    finally:
        stop.set()
        thread.join()
    assert not failed
    assert store.last()[0] == 100


def test_a_pid_that_came_back_is_not_the_holder(durable):
    store = durable.open()
    now = this_process("test", 0)
    hold_as(store, replace(now, ticks=now.ticks - 1), 10**9)
    assert durable.open().acquire("unidle run").token == 2


def hold_as(store: SqlStore, holder: Holder, left_ns: int) -> None:
    """Make ``holder`` the writer, its lease ending ``left_ns`` from now."""
    with store.transaction():
        writer = store.writer.read()
        store.writer.set(writer, token=1, holder=holder.to_json(), expires_ns=writer.now_ns + left_ns)


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
        writer = store.writer.read()
        store.writer.set(writer, token=1, holder='{"who": "?"}', expires_ns=writer.now_ns + LEASE_TTL_NS)
    with pytest.raises(StoreHeld, match="another version"):
        store.acquire("unidle run")


def test_appends_extend_the_lease(durable, event):
    store = durable.open()
    lease = store.acquire("test")
    for use in (
        lambda: store.append(lease, [event(1)]),
        lambda: store.renew(lease),
    ):
        before = store.writer.read().expires_ns
        use()
        assert store.writer.read().expires_ns > before


def test_a_writer_whose_lease_ended_may_go_on_until_another_takes_over(durable, event):
    store = durable.open()
    lease = store.acquire("test")
    with store.transaction():
        store.writer.set(store.writer.read(), expires_ns=1)
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
    old = first.writer.read()
    wall.ns += jump_ns
    lease = second.acquire("near")  # by the clock the other's time is over, or can never have been
    with pytest.raises(LeaseLost):
        first.writer.set(old, expires_ns=wall.ns)
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
