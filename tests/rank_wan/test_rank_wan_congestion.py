"""Which congestion control flows use, by what the kernel has."""

from __future__ import annotations

import socket
import subprocess
from collections.abc import Callable, Iterator
from dataclasses import replace
from pathlib import Path

import pytest

import needs
from rank_wan.pairs import QUICK, pair
from unidle.drill.lab import Lab
from unidle.engine.local.ranks import netns
from unidle.errors import BadInput
from unidle.span.rank.environment import congestion_of_run
from unidle.span.wan import sockets
from unidle.span.wan.sockets import control

AVAILABLE = Path("/proc/sys/net/ipv4/tcp_available_congestion_control").read_text().split()


@pytest.fixture
def default() -> Iterator[Callable[[str], str]]:
    """A namespace whose kernel has this default: its name."""
    lab = Lab(["a"])

    def set_to(name: str) -> str:
        space = lab.space("a")
        command = f"ip netns exec {space} sysctl -qw net.ipv4.tcp_congestion_control={name}"
        subprocess.run(command.split(), check=True)
        return space

    yield set_to
    lab.close()


@needs.shaping
@needs.own_mounts
@pytest.mark.parametrize("pauses", [name for name in ("bbr", "reno") if name in AVAILABLE])
def test_where_the_default_pauses_flows_get_one_that_does_not(
    default: Callable[[str], str], monkeypatch: pytest.MonkeyPatch, pauses: str
) -> None:
    monkeypatch.setattr(sockets, "_PAUSES", pauses)
    monkeypatch.setattr(sockets, "_STEADY", ("no-such", "cubic"))
    assert netns.within(default(pauses), control) == "cubic"


@needs.shaping
@needs.own_mounts
def test_any_other_default_is_left_alone(default: Callable[[str], str]) -> None:
    assert netns.within(default("reno"), control) == ""


def test_flows_have_what_is_wanted() -> None:
    with pair(replace(QUICK, congestion=control("reno"))) as (one, other):
        assert other.recv(1, bytearray(3)) is not None
        assert one.send(1, b"abc").result(60) == 3
        for channel in (one, other):
            used = {
                f.link.getsockopt(socket.IPPROTO_TCP, socket.TCP_CONGESTION, 16).rstrip(b"\0")
                for f in channel._flows.values()
            }
            assert used == {b"reno"}


def test_one_that_is_not_here_is_bad_input(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("UNIDLE_SPAN_CONGESTION", "carrier-pigeon")
    with pytest.raises(
        BadInput, match=r"UNIDLE_SPAN_CONGESTION: .*reno.*'carrier-pigeon'.*name one of these"
    ):
        congestion_of_run()
    monkeypatch.setenv("UNIDLE_SPAN_CONGESTION", "reno")
    assert congestion_of_run() == "reno"
