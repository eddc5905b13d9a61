"""Damage, cuts, deaths and strangers: nothing is lost, or one clear error says what is."""

from __future__ import annotations

import contextlib
import os
import signal
import socket
import subprocess
import sys
from dataclasses import replace
from functools import partial
from pathlib import Path

import pytest

from rank_wan.pairs import QUICK, SECRET, pair
from rank_wan.relay import Relay
from unidle.span.wan import ChannelLost, Endpoint, PortTaken, Refused


def _flip_at(positions: set[int], count: int, data: bytes) -> bytes:
    """Flip one bit of the bytes at some positions, the first time that any connection carries them."""
    for position in sorted(positions):
        if count <= position < count + len(data):
            positions.discard(position)
            spoilt = bytearray(data)
            spoilt[position - count] ^= 4
            return bytes(spoilt)
    return data


def test_a_flipped_byte_of_a_payload_is_found_and_sent_again() -> None:
    positions = {200_000}
    data = os.urandom(4_000_000)
    with pair(replace(QUICK, flows=1), via=lambda to: Relay(to, partial(_flip_at, positions))) as (
        one,
        other,
    ):
        got = other.recv(1, bytearray(len(data)))
        one.send(1, data).result(60)
        assert got.result(60) == data
        assert not positions
        assert other.stats().crc_failures == 1
        assert one.stats().negative_acks == 1
        assert one.stats().resent_bytes == QUICK.chunk_bytes
        assert one.stats().reconnects == 0


def test_a_flipped_byte_of_a_header_costs_its_flow_and_nothing_else(wait_until) -> None:
    armed: list[int] = []

    def spoil(count: int, data: bytes) -> bytes:
        at = data.find(b"UDLW\x02\x01")  # the first header of a chunk
        if armed and at >= 0 and len(data) > at + 30:
            armed.clear()
            return data[: at + 30] + bytes([data[at + 30] ^ 1]) + data[at + 31 :]
        return data

    data = os.urandom(4_000_000)
    with pair(via=lambda to: Relay(to, spoil)) as (one, other):
        armed.append(1)
        got = other.recv(1, bytearray(len(data)))
        one.send(1, data).result(60)
        assert got.result(60) == data
        assert other.stats().header_failures == 1
        wait_until(lambda: one.stats().reconnects)


def test_a_link_that_damages_everything_is_given_up() -> None:
    def spoil(count: int, data: bytes) -> bytes:
        return data[:-1] + bytes([data[-1] ^ 1]) if len(data) > 10_000 else data

    with pair(replace(QUICK, flows=1, tries=3), via=lambda to: Relay(to, spoil)) as (one, other):
        other.recv(1, bytearray(60_000))
        with pytest.raises(ChannelLost, match="damages what it carries"):
            one.send(1, os.urandom(60_000)).result(60)


def test_cut_connections_lose_and_double_nothing() -> None:
    data = os.urandom(20_000_000)
    relays: list[Relay] = []

    def via(to: tuple[str, int]) -> Relay:
        relays.append(Relay(to))
        return relays[0]

    with pair(via=via) as (one, other):
        for _ in range(4):
            got = other.recv(1, bytearray(len(data)))
            back = one.recv(1, bytearray(1_000_000))
            sent = one.send(1, data)
            other.send(1, data[:1_000_000])
            relays[0].cut()
            assert sent.result(60) == len(data)
            assert got.result(60) == data
            assert back.result(60) == data[:1_000_000]
        assert one.stats().reconnects >= 4
        assert one.stats().sent_bytes == 4 * len(data)
        assert other.stats().received_bytes == 4 * len(data)


def test_a_stalled_link_is_noticed_and_goes_on_when_it_moves(wait_until) -> None:
    relays: list[Relay] = []

    def via(to: tuple[str, int]) -> Relay:
        relays.append(Relay(to))
        return relays[0]

    with pair(replace(QUICK, dead_s=0.3), via=via) as (one, other):
        data = os.urandom(10_000_000)
        got = other.recv(1, bytearray(len(data)))
        relays[0].passed.clear()
        sent = one.send(1, data)
        wait_until(lambda: one.stats().blocked_cut_ns, 60, "all flows to be given up")
        relays[0].passed.set()
        assert got.result(60) == data
        assert sent.result(60) == len(data)
        wait_until(
            lambda: one.stats().reconnects >= 4, 60, "all flows, some of which the data does not need again"
        )


_PEER = """
import os, sys
from unidle.span.wan import Endpoint, Settings
endpoint = Endpoint("b", run="r", secret=b"of this test", listen=("127.0.0.1", 0), settings=Settings(early_bytes=1 << 20))
channel = endpoint.accept("a")
print(endpoint.address[1], flush=True)
got = channel.recv(1, bytearray(1 << 28))
channel.wait_open(20)
print("open", flush=True)
while channel.stats().received_chunks < 3: pass
print("some", flush=True)
got.result()
"""


def test_a_peer_killed_in_the_middle_of_a_message_is_one_error() -> None:
    source = str(Path(sys.modules["unidle"].__path__[0]).parent)
    command = [sys.executable, "-c", _PEER]
    with subprocess.Popen(
        command, stdout=subprocess.PIPE, text=True, env={**os.environ, "PYTHONPATH": source}
    ) as peer:
        assert peer.stdout is not None
        port = int(peer.stdout.readline())
        with Endpoint("a", run="r", secret=SECRET, settings=replace(QUICK, give_up_s=4)) as a:
            channel = a.connect("b", ("127.0.0.1", port))
            sent = channel.send(1, bytes(1 << 28))
            waiting = channel.recv(2)
            assert peer.stdout.readline() == "open\n"
            assert peer.stdout.readline() == "some\n"
            peer.send_signal(signal.SIGKILL)
            with pytest.raises(
                ChannelLost, match=r"b at 127.0.0.1:\d+ was cut for .* bytes outstanding"
            ) as error:
                sent.result(60)
            with pytest.raises(ChannelLost):
                waiting.result(0)
            assert "1 posted buffers not full" in str(error.value)


def test_a_peer_that_was_started_again_is_not_taken_for_the_first() -> None:
    with Endpoint("b", run="r", secret=SECRET, listen=("127.0.0.1", 0), settings=QUICK) as b:
        assert b.address is not None
        first = b.accept("a")
        waiting = first.recv(1)
        old = Endpoint("a", run="r", secret=SECRET, settings=QUICK)
        old.connect("b", b.address).wait_open(10)
        with Endpoint("a", run="r", secret=SECRET, settings=QUICK) as again:
            channel = again.connect("b", b.address)
            channel.wait_open(10)
            with pytest.raises(ChannelLost, match="a was started again"):
                waiting.result(60)
            channel.send(1, b"of the second")
            assert bytes(b.accept("a").recv(1).result(60)) == b"of the second"
            old.close(0.1)


@pytest.mark.parametrize(
    ("run", "secret", "peer", "says"),
    [
        ("other", SECRET, "b", "two runs on one port"),
        ("r", b"wrong", "b", "does not know the secret"),
        ("r", SECRET, "c", "is 'b'|this is 'b'"),
    ],
)
def test_a_stranger_is_refused_on_both_sides(
    run: str, secret: bytes, peer: str, says: str, wait_until
) -> None:
    with (
        Endpoint("b", run="r", secret=SECRET, listen=("127.0.0.1", 0), settings=QUICK) as b,
        Endpoint("a", run=run, secret=secret, settings=QUICK) as a,
    ):
        assert b.address is not None
        with pytest.raises(Refused, match=says):
            a.connect(peer, b.address).send(1, b"hello").result(60)
        wait_until(lambda: b.refusals)
        assert "a" in b.refusals[0]


def test_two_runs_cannot_listen_on_one_port() -> None:
    with Endpoint("b", run="r", secret=SECRET, listen=("127.0.0.1", 0), settings=QUICK) as b:
        assert b.address is not None
        with pytest.raises(
            PortTaken, match=f"listen: port {b.address[1]} of 127.0.0.1 is taken; another run"
        ):
            Endpoint("b", run="r2", secret=SECRET, listen=b.address)


def test_what_speaks_another_protocol_is_turned_away(wait_until) -> None:
    with Endpoint("b", run="r", secret=SECRET, listen=("127.0.0.1", 0), settings=QUICK) as b:
        assert b.address is not None
        with socket.create_connection(b.address) as link:
            link.sendall(b"GET / HTTP/1.1\r\n\r\n")
            with contextlib.suppress(ConnectionResetError):
                assert link.recv(100) == b""
        wait_until(lambda: b.refusals)
        assert "does not speak this protocol" in b.refusals[0]
