"""What strangers send to a listening endpoint: none holds a thread, and the peer comes in all the same."""

from __future__ import annotations

import contextlib
import json
import socket
import struct
import threading
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from rank_wan.certificates import certificate
from rank_wan.pairs import QUICK, SECRET
from unidle.span.rank.mesh import contexts
from unidle.span.wan import Endpoint
from unidle.span.wan.frames import VERSION
from waiting import wait_until

SLOW = replace(QUICK, connect_s=2.0)
FITS: dict[str, Any] = {
    "version": VERSION,
    "run": "r",
    "from": "a",
    "to": "b",
    "instance": "i",
    "flow": 0,
    "flows": 1,
    "early": 0,
}


def framed(text: bytes) -> bytes:
    return struct.pack("!4sI", b"UDLH", len(text)) + text


def greeting(**more: Any) -> bytes:
    return framed(
        json.dumps({name: value for name, value in (FITS | more).items() if value is not ...}).encode()
    )


@contextlib.contextmanager
def listening(**more: Any) -> Iterator[Endpoint]:
    with Endpoint("b", run="r", secret=SECRET, listen=("127.0.0.1", 0), settings=SLOW, **more) as b:
        yield b


def sent(b: Endpoint, *messages: bytes) -> None:
    """Send them in a connection of their own, each after an answer, and close it."""
    assert b.address is not None
    with contextlib.suppress(OSError), socket.create_connection(b.address, timeout=5) as link:
        for message in messages:
            link.sendall(message)
            if not link.recv(4096):
                return


def greeters() -> int:
    return sum(thread.name == "wan-greet" for thread in threading.enumerate())


def comes_in(b: Endpoint, **more: Any) -> None:
    """The peer, which knows the secret, is served."""
    assert b.address is not None
    with Endpoint("a", run="r", secret=SECRET, settings=replace(SLOW, flows=2), **more) as a:
        channel = a.connect("b", b.address, tls_name="localhost")
        got = b.accept("a").recv(1)
        channel.send(1, b"hello")
        assert bytes(got.result(60)) == b"hello"


MALFORMED = {
    "no sender": [greeting(**{"from": ..., "to": "c"})],
    "no sender, right address": [greeting(**{"from": ...}), framed(b'{"proof": "x"}')],
    "proof not ASCII": [greeting(), framed(json.dumps({"proof": "é€"}, ensure_ascii=False).encode())],
    "half a surrogate": [greeting(), framed(b'{"proof": "\\ud800"}')],
    "deep": [framed(b"[" * 4000)],
    "numbers that are none": [greeting(flow={}, flows=[], early="x"), framed(b'{"proof": 1}')],
    "a list": [framed(b"[1]")],
    "not UTF-8": [framed(b"\xff\xfe\x00")],
    "nothing": [framed(b"")],
    "a number with ten thousand digits": [framed(b'{"version": ' + b"9" * 4000 + b"}")],
}  # fmt: skip


@pytest.mark.parametrize("what", MALFORMED)
def test_a_malformed_greeting_leaves_no_thread_behind_and_the_peer_comes_in(what: str) -> None:
    with listening() as b:
        for _ in range(70):  # more than greet at once
            sent(b, *MALFORMED[what])
        wait_until(lambda: not greeters(), 60, "the end of their threads")
        assert b.refusals
        comes_in(b)


@given(
    st.lists(st.binary(max_size=40) | st.binary(max_size=40).map(framed) | st.just(greeting()), max_size=3)
)
def test_whatever_bytes_come_their_thread_ends(messages: list[bytes]) -> None:
    with listening() as b:
        assert b.address is not None
        with socket.create_connection(b.address) as link, contextlib.suppress(OSError):
            for message in messages:
                link.sendall(message)
        wait_until(lambda: not greeters(), 60, "the end of its thread")


@contextlib.contextmanager
def dripping(b: Endpoint, count: int, data: bytes) -> Iterator[list[socket.socket]]:
    """Connections that send a byte now and then, for as long as they are let."""
    assert b.address is not None
    stop, links = threading.Event(), [socket.create_connection(b.address) for _ in range(count)]

    def drip() -> None:
        for k in range(len(data)):
            for link in links:
                with contextlib.suppress(OSError):
                    link.send(data[k : k + 1])
            if stop.wait(0.2):
                return

    thread = threading.Thread(target=drip, name="drips")
    thread.start()
    try:
        yield links
    finally:
        stop.set()
        thread.join()
        for link in links:
            link.close()


@pytest.mark.parametrize("tls", [False, True])
def test_slow_strangers_hold_no_thread_for_longer_than_a_greeting_may_take(tls: bool, tmp_path: Path) -> None:
    server = contexts(certificate(tmp_path, "b"))[0] if tls else None
    client = contexts(certificate(tmp_path, "a"))[1] if tls else None
    data = b"\x16\x03\x01\x10\x00" + bytes(400) if tls else greeting()
    with listening(tls_server=server) as b, dripping(b, 150, data) as links:
        comes_in(b, tls_client=client)  # although more of them are there than may be
        wait_until(lambda: not greeters(), 60, "the end of their threads, while they still send")
        assert any(link.fileno() >= 0 for link in links)


def test_the_oldest_of_the_busiest_address_gives_way() -> None:
    with listening() as b:
        assert b.address is not None
        with contextlib.ExitStack() as stack:
            other = stack.enter_context(socket.create_connection(b.address, source_address=("127.0.0.2", 0)))
            wait_until(lambda: greeters() == 1)
            for _ in range(70):
                stack.enter_context(socket.create_connection(b.address))
            wait_until(lambda: greeters() <= 64, 60, "those that gave way")
            other.setblocking(False)
            with pytest.raises(BlockingIOError):
                other.recv(1)  # it is still there
