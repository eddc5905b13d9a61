"""Strangers and slow ones: what they may hold, and for how long. Peers that are welcome are served meanwhile."""

from __future__ import annotations

import socket
import time
from contextlib import ExitStack, suppress
from pathlib import Path

import pytest

from hub.dialer import RawClient, box, polled, running
from unidle.errors import CannotRun
from unidle.hub import frames
from unidle.hub.protocol import Joined, Left, Received
from unidle.hub.server import HubServer
from waiting import wait_until

SECOND = 1_000_000_000


def silent(hub: HubServer, stack: ExitStack, source: str) -> RawClient:
    return stack.enter_context(RawClient(hub, source))


def test_a_thousand_connections_that_say_nothing_do_not_keep_a_box_out(tmp_path: Path) -> None:
    with running(tmp_path, grace_ns=SECOND // 10) as hub, ExitStack() as stack:
        for number in range(1000):
            silent(hub, stack, f"127.0.{number // 50}.{1 + number % 50}")
        began = time.monotonic()
        with box(hub, source="127.1.0.1"):
            assert time.monotonic() - began < 60
        counts = hub.refusals.counts()
        assert counts["slots"] > 0 and set(counts) <= {"slots", "late"}


def test_one_address_has_eight_places_and_leaves_the_others_free(tmp_path: Path) -> None:
    with running(tmp_path) as hub, ExitStack() as stack:
        many = [silent(hub, stack, "127.0.0.9") for _ in range(40)]
        wait_until(lambda: hub.refusals.counts() == {"address": 32})
        assert sum(client.ended() for client in many[8:]) == 32
        with box(hub, source="127.0.0.10"):
            pass
        many[0].sock.close()
        wait_until(lambda: hub.refusals.counts().get("tls") == 1)
        with box(hub, source="127.0.0.9"):
            pass


@pytest.mark.parametrize("with_tls", [False, True])
def test_tls_and_hello_have_one_deadline(with_tls: bool, tmp_path: Path) -> None:
    with running(tmp_path, hello_ns=SECOND // 2) as hub, RawClient(hub) as client:
        if with_tls:
            client.tls()
            client.sock.sendall(b"\0\0\0\x09{")  # a byte now and then does not help
            assert client.next()["why"] == "no hello in time"
        assert client.ended()
        assert hub.refusals.counts() == {"late": 1}


def test_what_is_no_tls_is_closed(tmp_path: Path) -> None:
    with running(tmp_path) as hub, RawClient(hub) as client:
        client.sock.sendall(b"GET / HTTP/1.1\r\n\r\n" + b"\x1b[2J" * 9)
        wait_until(lambda: hub.refusals.counts() == {"tls": 1})
        assert all(refusal.why.isprintable() for refusal in hub.refusals.last())


def test_refusals_are_bounded(tmp_path: Path) -> None:
    with running(tmp_path) as hub:
        for _ in range(300):
            hub.refusals.add(1, "token", "127.0.0.1", "x" * 10_000 + "\x1b", "n\x1b[2J")
        last = hub.refusals.last()
        assert len(last) == 200 and hub.refusals.counts() == {"token": 300}
        assert all(len(each.why) == 200 and each.node == "n?[2J" for each in last)


def test_who_does_not_read_is_closed_at_eight_mebibytes_and_send_never_waits(tmp_path: Path) -> None:
    with running(tmp_path) as hub, box(hub) as client, box(hub, "n2") as other:
        peers = {}
        while len(peers) < 2:
            peers.update({e.peer.node: e.peer.id for e in polled(hub, Joined) if isinstance(e, Joined)})
        large = frames.Run(1, 7, "check", {"text": "x" * 900_000})
        began = time.monotonic()
        left = []
        for _ in range(40):  # above the 8 MiB of the hub and the few of the kernel
            hub.send(peers["n1"], large)
        assert time.monotonic() - began < 60
        wait_until(lambda: left.extend(e for e in hub.poll() if isinstance(e, Left)) or left)
        assert left[0].peer == peers["n1"] and hub.refusals.counts() == {"unread": 1}
        hub.send(peers["n1"], large)  # one that is gone
        hub.send(peers["n2"], frames.Run(2, 7, "check"))
        assert other.until("run")["id"] == 2
        assert client.sock.fileno() >= 0


def test_a_half_open_connection_is_closed_when_its_lease_is_over(tmp_path: Path) -> None:
    with running(tmp_path, every_ns=SECOND // 20, deadline_ns=SECOND, least_silence_ns=SECOND) as hub:
        with box(hub) as client:
            peer = polled(hub, Joined)[0].peer.id
            client.pong(client.until("ping")["n"])
            wait_until(lambda: client.until("ping")["ack"] == 1)
            acknowledged_ns = hub.acknowledged_ns(peer)
            left = polled(hub, Left)[-1]
            assert (left.why, left.on_purpose) == ("it answers no ping", False)
            # it can still be asked when the lease of the client is over at the latest
            assert hub.acknowledged_ns(peer) == acknowledged_ns
            assert hub.offset(peer) is None
        assert hub.refusals.counts() == {"silent": 1}


def test_a_taken_port_is_one_error(tmp_path: Path) -> None:
    with socket.create_server(("127.0.0.1", 0)) as taken:
        port = taken.getsockname()[1]
        with pytest.raises(CannotRun) as caught, running(tmp_path, f"127.0.0.1:{port}"):
            pass
    assert caught.value.exit_code == 3
    assert caught.value.line() == (
        f"--listen: cannot listen: address already in use (got '127.0.0.1:{port}'); "
        "another process has this port: end it, or choose another port"
    )


def test_a_client_whose_frames_are_not_polled_is_not_read_and_loses_nothing(tmp_path: Path) -> None:
    with (
        running(tmp_path, unpolled_bytes=200_000, unpolled_of_peer=50_000) as hub,
        box(hub, "n2") as quiet,
        box(hub) as client,
    ):
        client.sock.settimeout(0.5)
        mark = {"k": "note", "t": 1, "text": "x" * 900}
        sent = 0
        with suppress(TimeoutError):
            while sent < 100_000:
                client.send({"f": "marks", "attempt": 1, "rank": 0, "first": sent, "marks": [mark]})
                sent += 1
        assert sent < 20_000  # 18 MB: what the hub holds, and the buffers of the kernel
        for _ in range(3):  # pings and pongs of the others go on
            ping = quiet.until("ping")
            quiet.pong(ping["n"])
            assert ping["fence"] == 7
        firsts = []

        def more() -> bool:
            firsts.extend(
                e.frame.first
                for e in hub.poll()
                if isinstance(e, Received) and isinstance(e.frame, frames.Marks)
            )
            return len(firsts) >= sent

        wait_until(more)
        assert firsts[:sent] == list(range(sent))
        assert Left not in map(type, hub.poll())
