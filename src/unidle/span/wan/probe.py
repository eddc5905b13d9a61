"""Both sides of `unidle span probe`: round trips, and what 1, 2, 4, ... flows carry together, through the transport itself."""

from __future__ import annotations

import itertools
import threading
import time
from collections import deque
from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import Final

from unidle.span.wan.api import ChannelLost, Settings, WanError
from unidle.span.wan.channel import Channel
from unidle.span.wan.endpoint import Endpoint

RUN: Final = "unidle-span-probe"
SERVER: Final = "probed"
FLOWS: Final = (1, 2, 4, 8, 16, 32, 64)
SETTINGS: Final = Settings(chunk_bytes=256 << 10, window_bytes=128 << 20, give_up_s=10)
_BLOCK: Final = 4 << 20
_DEPTH: Final = 32
_SETTLE: Final = 0.5  # part of each try that is not counted: flows find their rate
_SLICES: Final = 5


@dataclass(frozen=True, slots=True)
class PathSample:
    """Round trips in nanoseconds; bits a second by number of flows; segments, and those of them sent again."""

    round_trips_ns: tuple[int, ...]
    rates: dict[int, tuple[float, ...]]
    segments: int
    retransmitted: int


class Served:
    """The side that answers, until :meth:`close`. Errors: as of :class:`Endpoint`."""

    def __init__(self, address: tuple[str, int], secret: bytes) -> None:
        self._endpoint = Endpoint(SERVER, run=RUN, secret=secret, listen=address, settings=SETTINGS)
        self._stopping = False
        self._threads = [
            threading.Thread(
                target=self._serve, args=(flows, work), name=f"probe-{work.__name__}-{flows}", daemon=True
            )
            for flows in FLOWS
            for work in (_echo, _sink)
        ]
        for thread in self._threads:
            thread.start()

    @property
    def address(self) -> tuple[str, int]:
        assert self._endpoint.address is not None
        return self._endpoint.address

    @property
    def refusals(self) -> list[str]:
        """Refused peers, and the reasons."""
        return list(self._endpoint.refusals)

    def wait(self) -> None:
        """Serve until something interrupts."""
        for thread in self._threads:
            thread.join()

    def close(self) -> None:
        self._stopping = True
        self._endpoint.close(0.1)
        for thread in self._threads:
            thread.join()

    def _serve(self, flows: int, work: Callable[[Channel], None]) -> None:
        while not self._stopping:
            try:
                work(self._endpoint.accept(f"probe-{flows}"))
            except WanError:
                time.sleep(0.05)  # that probe is over, and nothing asks for the next one yet


def _echo(channel: Channel) -> None:
    while True:
        channel.send("pong", channel.recv("ping").result())


def _sink(channel: Channel) -> None:
    """One buffer for all: the data is not read."""
    buffer = bytearray(_BLOCK)
    posted = deque(channel.recv("data", buffer) for _ in range(_DEPTH))
    while True:
        posted.popleft().result()
        posted.append(channel.recv("data", buffer))


def measure(
    address: tuple[str, int],
    secret: bytes,
    *,
    seconds: float,
    pings: int,
    most_flows: int,
    grows: Callable[[float, float], bool],
    congestion: str = "",
    told: Callable[[str], None] = lambda _: None,
) -> PathSample:
    """Measure towards a :class:`Served`. The number of flows increases as long as ``grows(before, after)`` is
    true, and once more.

    ``congestion``: as of :class:`Settings`; this side sends what is measured.

    Errors: :class:`WanError`.
    """
    settings = replace(SETTINGS, congestion=congestion)
    trips: tuple[int, ...] = ()
    rates: dict[int, tuple[float, ...]] = {}
    segments = again = 0
    best, flat = 0.0, 0
    for flows in FLOWS:
        if flows > most_flows or flat > 1:
            break
        with Endpoint(f"probe-{flows}", run=RUN, secret=secret, settings=settings) as endpoint:
            channel = endpoint.connect(SERVER, address, flows=flows)
            _wait_all(channel, flows)
            if not trips:
                trips = _round_trips(channel, pings)
                told(f"round trips: {pings}")
            rates[flows] = _rates(channel, seconds)
            for info in channel.tcp_infos():
                segments, again = segments + info.segments, again + info.retransmitted
            channel.close(0)  # what is on its way need not arrive
        reached = sum(rates[flows]) / _SLICES
        told(f"flows {flows}: {reached / 1e6:.1f} Mbit/s")
        flat = 0 if grows(best, reached) else flat + 1
        best = max(best, reached)
    return PathSample(trips, rates, segments, again)


def _wait_all(channel: Channel, flows: int) -> None:
    channel.wait_open(SETTINGS.give_up_s + 1)
    deadline = time.monotonic() + SETTINGS.give_up_s
    while channel.flows_open < flows and channel.error is None:
        if time.monotonic() > deadline:
            raise ChannelLost(
                f"only {channel.flows_open} of {flows} flows could be opened; does a firewall limit them?"
            )
        time.sleep(0.005)


def _round_trips(channel: Channel, pings: int) -> tuple[int, ...]:
    found = []
    for _ in range(pings + 2):  # the first ones open what is opened at need
        begun = time.monotonic_ns()
        answer = channel.recv("pong")
        channel.send("ping", b"ping")
        answer.result(60)
        found.append(time.monotonic_ns() - begun)
    return tuple(found[2:])


def _rates(channel: Channel, seconds: float) -> tuple[float, ...]:
    """Bits a second that the peer settled, in slices of the time after all flows found their rate."""
    buffer = bytes(_BLOCK)
    going = deque(channel.send("data", buffer) for _ in range(_DEPTH))
    begun = time.monotonic_ns()
    marks = [int(seconds * 1e9 * (_SETTLE + (1 - _SETTLE) * k / _SLICES)) for k in range(_SLICES + 1)]
    seen: list[tuple[int, int]] = []
    while len(seen) < len(marks):
        while going and going[0].done():
            going.popleft().result()
            going.append(channel.send("data", buffer))
        if channel.error is not None:
            raise channel.error
        now = time.monotonic_ns()
        if now - begun >= marks[len(seen)]:
            seen.append((now, channel.stats().sent_bytes))
        time.sleep(0.002)
    pairs = itertools.pairwise(seen)
    return tuple(max((b - a) * 8e9 / (late - early), 1.0) for (early, a), (late, b) in pairs)
