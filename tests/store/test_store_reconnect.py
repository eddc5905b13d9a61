"""A writer on PostgreSQL whose connection is lost: it continues within its lease, and only with its own token."""

from __future__ import annotations

import socket
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from urllib.parse import parse_qs, urlsplit

import psycopg
import pytest

from places import open_directory
from unidle.errors import ConnectionLost, LeaseLost
from unidle.store.lease_time import LEASE_TTL_NS
from unidle.store.open import open_store
from unidle.store.protocol import Bookmark, NewEvent, Snapshot
from unidle.store.sql import SqlStore


def event(n: int) -> NewEvent:
    return NewEvent(n, "s", n, "k", b"{}")


def cut(store: SqlStore, address: str) -> None:
    """The server ends the store's session."""
    with psycopg.connect(address, autocommit=True) as other:
        backend = store.database.query("SELECT pg_backend_pid()")[0][0]
        other.execute("SELECT pg_terminate_backend(%s, 5000)", [backend])


@pytest.fixture
def own_database(postgres_url: str) -> Iterator[tuple[str, psycopg.Connection]]:
    """A database that can be closed to connections, and a session of the server elsewhere."""
    with psycopg.connect(postgres_url, autocommit=True) as admin:
        admin.execute("CREATE DATABASE reconnect")
        yield postgres_url.replace("/postgres?", "/reconnect?"), admin
        admin.execute("DROP DATABASE reconnect WITH (FORCE)")


USES = {
    "append": lambda s, lease: s.append(lease, [event(2)]),
    "renew": lambda s, lease: s.renew(lease),
    "requests": lambda s, _: s.requests(),
    "owned_by": lambda s, _: s.owned_by("unidle"),
    "snapshot": lambda s, lease: s.save_snapshot(lease, Snapshot(1, 7, b"x")),
    "view row": lambda s, _: s.view_row(7, "job", 1, "a-1"),
    "view rows": lambda s, _: list(s.view_rows(7, "job", 1)),
    "bookmark": lambda s, lease: s.save_bookmark(lease, Bookmark("b", 1, b"x")),
}


@pytest.mark.parametrize("use", USES)
def test_a_writer_whose_connection_is_ended_continues_on_another(postgres_address: str, use: str) -> None:
    store = open_store(postgres_address, create=True)
    lease = store.acquire("test")
    store.append(lease, [event(1)])
    cut(store, postgres_address)
    USES[use](store, lease)
    assert store.append(lease, [event(n) for n in range(3, 5)]) == (4 if use == "append" else 3)
    assert [found.seq for found in store.read()] == list(range(1, 5 if use == "append" else 4))
    store.close()


def test_a_reader_without_a_lease_is_told_at_once(postgres_address: str) -> None:
    store = open_store(postgres_address, create=True)
    cut(store, postgres_address)
    with pytest.raises(ConnectionLost, match="the connection to PostgreSQL is lost"):
        store.requests()
    store.close()


def test_a_server_that_comes_back_within_the_lease_is_waited_for(
    own_database: tuple[str, psycopg.Connection],
) -> None:
    address, admin = own_database
    store = open_store(address, create=True)
    lease = store.acquire("test")
    store.append(lease, [event(1)])
    admin.execute("ALTER DATABASE reconnect ALLOW_CONNECTIONS false")
    backend = store.database.query("SELECT pg_backend_pid()")[0][0]
    admin.execute("SELECT pg_terminate_backend(%s, 5000)", [backend])
    tries = []
    again = store.database.reconnect

    def reconnect() -> None:
        tries.append(1)
        if len(tries) == 3:
            admin.execute("ALTER DATABASE reconnect ALLOW_CONNECTIONS true")
        again()

    store.database.reconnect = reconnect  # type: ignore[method-assign]
    assert store.append(lease, [event(2)]) == 2
    assert len(tries) == 3
    store.close()


def test_after_the_lease_the_writer_gives_up(own_database: tuple[str, psycopg.Connection]) -> None:
    address, admin = own_database
    store = open_store(address, create=True)
    lease = store.acquire("test")
    backend = store.database.query("SELECT pg_backend_pid()")[0][0]
    admin.execute("ALTER DATABASE reconnect ALLOW_CONNECTIONS false")
    admin.execute("SELECT pg_terminate_backend(%s, 5000)", [backend])
    began_s = time.monotonic()
    with pytest.raises(
        ConnectionLost, match="could not be restored before half of the lease was over"
    ) as error:
        store.append(lease, [event(1)])
    assert error.value.exit_code == 4
    assert time.monotonic() - began_s < LEASE_TTL_NS / 1e9  # nobody else can have the store yet
    with pytest.raises(ConnectionLost):
        store.confirm(lease)
    store.close()


def test_a_writer_that_only_waits_learns_that_its_lease_is_not_renewed(
    own_database: tuple[str, psycopg.Connection], wait_until
) -> None:
    address, admin = own_database
    store = open_store(address, create=True)
    lease = store.acquire("test")
    store.confirm(lease)
    assert store.is_fresh(lease)
    admin.execute("ALTER DATABASE reconnect ALLOW_CONNECTIONS false")
    admin.execute("SELECT pg_terminate_backend(pid, 5000) FROM pg_stat_activity WHERE datname = 'reconnect'")
    wait_until(lambda: not store.is_fresh(lease), 60)
    with pytest.raises(ConnectionLost):
        store.confirm(lease)
    store.close()


def test_a_writer_that_was_replaced_meanwhile_writes_nothing(postgres_address: str) -> None:
    store, other = open_store(postgres_address, create=True), open_store(postgres_address, create=False)
    lease = store.acquire("test")
    with other.transaction():  # as after its time on another machine
        other.writer.set(other.writer.read(), holder=None, expires_ns=0)
    taken = other.acquire("other")
    cut(store, postgres_address)
    with pytest.raises(LeaseLost):
        store.append(lease, [event(1)])
    assert other.append(taken, [event(1)]) == 1
    store.close()
    other.close()


@contextmanager
def answers_lost(address: str, place: Path) -> Iterator[tuple[str, threading.Event]]:
    """The address of a proxy that, while the event is set, ends the connection in the place of a commit's answer."""
    server = parse_qs(urlsplit(address).query)["host"][0]
    losing, listener = threading.Event(), socket.socket(socket.AF_UNIX)
    listener.bind(str(place / ".s.PGSQL.5432"))
    listener.listen()

    def serve(client: socket.socket) -> None:
        upstream = socket.socket(socket.AF_UNIX)
        upstream.connect(f"{server}/.s.PGSQL.5432")
        commits = threading.Event()

        def back() -> None:
            with suppress(OSError):
                while data := upstream.recv(65536):
                    if commits.is_set():
                        break
                    client.sendall(data)
                client.shutdown(socket.SHUT_RDWR)

        answer = threading.Thread(target=back)
        answer.start()
        with suppress(OSError):
            while data := client.recv(65536):
                if losing.is_set() and b"COMMIT" in data:
                    losing.clear()
                    commits.set()
                upstream.sendall(data)
            upstream.shutdown(socket.SHUT_RDWR)
        answer.join()
        client.close()
        upstream.close()

    def accept() -> None:
        with suppress(OSError):
            while True:
                client, _ = listener.accept()
                threads.append(threading.Thread(target=serve, args=[client]))
                threads[-1].start()

    threads = [threading.Thread(target=accept)]
    threads[0].start()
    try:
        yield address.replace(server, str(place)), losing
    finally:
        listener.shutdown(socket.SHUT_RDWR)
        for thread in threads:
            thread.join()
        listener.close()


def test_an_append_whose_answer_was_lost_is_not_made_twice(postgres_address: str) -> None:
    with open_directory() as place, answers_lost(postgres_address, place) as (address, losing):
        store = open_store(address, create=True)
        lease = store.acquire("test")
        request = store.request("submit", b"{}")
        store.append(lease, [event(1)])
        losing.set()
        assert store.append(lease, [event(2), event(3)], done_requests=[request]) == 3
        assert not losing.is_set()  # the answer was lost
        assert store.requests() == []
        assert store.append(lease, [event(4)]) == 4
        assert [found.time_ns for found in store.read()] == [1, 2, 3, 4]
        store.close()
