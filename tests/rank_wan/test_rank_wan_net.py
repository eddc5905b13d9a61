"""Links of network namespaces that go down, TLS, and whole cells."""

from __future__ import annotations

import contextlib
import os
import ssl
import subprocess
import threading
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

import pytest

import needs
from rank_wan.pairs import QUICK, SECRET, pair
from unidle.drill.lab import Lab
from unidle.engine.local.ranks import netns
from unidle.span.wan import CellChannel, Channel, ChannelLost, Endpoint, Refused, Settings, WanError


@contextlib.contextmanager
def _across(settings: Settings) -> Iterator[tuple[Lab, Channel, Channel]]:
    lab = Lab(["a", "b"])
    with contextlib.ExitStack() as stack:
        stack.callback(lab.close)
        b = netns.within(
            lab.space("b"),
            lambda: Endpoint(
                "b", run="r", secret=SECRET, listen=(lab.address("b"), 29400), settings=settings
            ),
        )
        stack.callback(b.close, 0.2)
        a = netns.within(lab.space("a"), lambda: Endpoint("a", run="r", secret=SECRET, settings=settings))
        stack.callback(a.close, 0.2)
        one, other = a.connect("b", (lab.address("b"), 29400)), b.accept("a")
        one.wait_open(10)
        other.wait_open(10)
        yield lab, one, other


@needs.shaping
@pytest.mark.slow
def test_a_link_that_is_cut_for_five_seconds_goes_on() -> None:
    with _across(replace(QUICK, connect_s=0.5, backoff_most_s=0.3)) as (lab, one, other):
        lab.limit("a", "b", 200_000_000)
        data = os.urandom(20_000_000)
        got = other.recv(1, bytearray(len(data)))
        sent = one.send(1, data)
        lab.cut("b")
        timer = threading.Timer(5.0, lab.mend, ["b"])
        timer.start()
        assert got.result(60) == data
        assert sent.result(60) == len(data)
        timer.join()
        assert one.stats().reconnects >= 1
        assert one.stats().blocked_cut_ns > 1e9


@needs.shaping
def test_a_link_that_is_cut_for_ever_is_one_error_at_both_sides() -> None:
    with _across(replace(QUICK, connect_s=0.3, give_up_s=2.0, dead_s=0.5)) as (lab, one, other):
        lab.limit("a", "b", 50_000_000)
        got = other.recv(1, bytearray(50_000_000))
        sent = one.send(1, bytes(50_000_000))
        lab.cut("b")
        with pytest.raises(ChannelLost, match=r"b at .*:29400 was cut for .* bytes outstanding"):
            sent.result(60)
        with pytest.raises(ChannelLost, match=r"a was cut for .*1 posted buffers not full"):
            got.result(60)


def _certificates(place: Path) -> tuple[ssl.SSLContext, ssl.SSLContext]:
    key, cert = place / "key.pem", place / "cert.pem"
    subprocess.run(
        f"openssl req -x509 -newkey rsa:2048 -nodes -keyout {key} -out {cert} -days 2 -subj /CN=localhost"
        " -addext subjectAltName=DNS:localhost".split(),
        check=True,
        capture_output=True,
    )
    server = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    server.load_cert_chain(cert, key)
    return server, ssl.create_default_context(cafile=str(cert))


def test_over_tls_what_is_sent_arrives_and_a_stranger_does_not_come_in(tmp_path: Path) -> None:
    server, client = _certificates(tmp_path)
    data = os.urandom(10_000_000)
    with pair(tls=(server, client)) as (one, other):
        got = other.recv(1, bytearray(len(data)))
        back = one.recv(2, bytearray(len(data)))
        one.send(1, data)
        other.send(2, data)
        assert got.result(60) == data
        assert back.result(60) == data
    with (
        pytest.raises(Refused, match=r"tls: b at .*authority"),
        pair(tls=(server, ssl.create_default_context())),
    ):
        pass


@contextlib.contextmanager
def cells(size: int) -> Iterator[tuple[list[CellChannel], list[CellChannel]]]:
    """Two cells on the loopback: ``a0`` to ``a2`` and ``b0`` to ``b2``."""
    names = [f"{site}{place}" for site in "ab" for place in range(size)]
    with contextlib.ExitStack() as stack:
        ends = {
            name: Endpoint(
                name, run="r", secret=SECRET, listen=("127.0.0.1", 0), settings=replace(QUICK, flows=2)
            )
            for name in names
        }
        for end in ends.values():
            stack.callback(end.close, 1)

        def joined(a: str, b: str) -> Channel:
            """The channel of ``a`` to ``b``; the lesser name connects."""
            address = ends[b].address
            assert address is not None
            return ends[a].connect(b, address) if a < b else ends[a].accept(b)

        cells: dict[str, list[CellChannel]] = {"a": [], "b": []}
        for site, far in (("a", "b"), ("b", "a")):
            for place in range(size):
                me = f"{site}{place}"
                local = {k: joined(me, f"{site}{k}") for k in range(size) if k != place}
                cell = CellChannel(place, joined(me, f"{far}{place}"), local, piece_bytes=64 << 10, depth=4)
                stack.callback(cell.close, 1)
                cells[site].append(cell)
        yield cells["a"], cells["b"]


def test_a_cell_of_three_scatters_over_all_its_links_and_gathers() -> None:
    with cells(3) as (near, far):
        data = [os.urandom(3_000_000 + place) for place in range(3)]
        got = [far[place].recv("x", bytearray(len(data[place]))) for place in range(3)]
        back = near[2].recv("y", bytearray(1000), origin=1)
        sent = [near[place].send("x", data[place], pieces=50 * place) for place in range(3)]
        far[1].send("y", data[0][:1000], to=2)
        for place in range(3):
            assert got[place].result(60) == data[place]
            assert sent[place].result(60) == len(data[place])
        assert back.result(60) == data[0][:1000]
        parts = [cell._wan.stats().sent_bytes for cell in near]
        assert max(parts) - min(parts) < 0.1 * sum(parts)  # each link carried its part
        assert sum(parts) < 1.01 * sum(map(len, data))


def test_a_cell_keeps_the_order_of_a_tag_and_holds_what_comes_early_within_a_bound() -> None:
    with cells(2) as (near, far):
        sent = [near[0].send(7, bytes([k]) * 100_000) for k in range(20)]
        got = [far[0].recv(7, bytearray(100_000)) for _ in range(20)]
        assert [future.result(60)[0] for future in got] == list(range(20))
        assert all(future.result(60) == 100_000 for future in sent)


def test_a_cell_that_loses_a_node_fails_on_all_its_nodes() -> None:
    with cells(3) as (near, far):
        waiting = far[0].recv(1, bytearray(10))
        near[2].close(0.2)
        with pytest.raises(WanError):
            waiting.result(60)
