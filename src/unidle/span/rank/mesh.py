"""The channels of a rank, with TLS where the plan has it: to the stages before and after, to the same stage of other
pipelines, and within its cell.
"""

from __future__ import annotations

import json
import ssl
import threading
from collections.abc import Mapping
from concurrent.futures import Future
from dataclasses import replace
from typing import Any, Final

from unidle.errors import BadInput
from unidle.span.rank.clocks import PeerClock
from unidle.span.rank.environment import congestion_of_run
from unidle.span.rank.plan import PlanDevice, RunPlan, StageLink
from unidle.span.wan import CellChannel, Channel, ChannelLost, Endpoint, Settings
from unidle.span.wan.endpoint import laned


def contexts(given: Mapping[str, str] | None) -> tuple[ssl.SSLContext | None, ssl.SSLContext | None]:
    """TLS contexts of the server side and the client side: both present a certificate of the authority.

    ``given``: paths of ``certificate``, ``key`` and ``authority``; nothing for no TLS. Errors: BadInput.
    """
    if given is None:
        return None, None
    try:
        server = ssl.create_default_context(ssl.Purpose.CLIENT_AUTH, cafile=given["authority"])
        server.verify_mode = ssl.CERT_REQUIRED
        client = ssl.create_default_context(ssl.Purpose.SERVER_AUTH, cafile=given["authority"])
        for context in (server, client):
            context.load_cert_chain(given["certificate"], given["key"])
    except (KeyError, OSError) as error:
        raise BadInput(
            f"cannot be used: {error}", field="tls", value=dict(given), remedy="name a certificate, its key and the authority of both, as PEM files"
        ) from None  # fmt: skip
    return server, client


_PEER_FLOWS: Final = 2
_ASIDE: Final = "aside"
_ASIDE_S: Final = 30.0  # not every site need reach every other


class PeerWire:
    """Connection to one stage of the same pipeline: over a separate channel, or in turns over those of the cell."""

    def __init__(
        self, other: PlanDevice, link: StageLink, channel: Channel, cell: CellChannel | None
    ) -> None:
        self.other, self.link, self.channel, self.cell = other, link, channel, cell
        self.clock: PeerClock | None = None

    @property
    def ahead_ns(self) -> int:
        """How far the other's monotonic clock is ahead of this one."""
        return self.clock.ahead_ns if self.clock is not None else 0

    def send(self, tag: str, buffer: Any, not_before_ns: int = 0) -> Future[int]:
        if self.cell is not None:
            return self.cell.send(tag, buffer, pieces=self.link.pieces, not_before_ns=not_before_ns)
        return self.channel.send(tag, buffer, not_before_ns)

    def turn_ns(self, size: int, cell: int) -> int:
        """How long after its first pipeline this one sends where all of a cell have so many bytes at the same moment.

        One slot for each: what a transfer takes over all links of the cell. Needs the rate of the link; 0 without it.
        """
        rate = self.link.rate_bytes_per_s * cell
        return self.cell.index * size * 1_000_000_000 // rate if self.cell is not None and rate else 0

    def recv(self, tag: str, into: Any) -> Future[memoryview]:
        return self.cell.recv(tag, into) if self.cell is not None else self.channel.recv(tag, into)


class Mesh:
    """All channels of one device. Made before the model is, so that no peer waits for who builds it.

    Errors: :class:`unidle.span.wan.PortTaken`, ``OSError``, BadInput.
    """

    def __init__(
        self, plan: RunPlan, me: PlanDevice, secret: str, give_up_s: float = 30.0, start_s: float = 300.0
    ) -> None:
        self.plan, self.me = plan, me
        self._cells: list[CellChannel] = []
        self._channels: dict[tuple[str, str], Channel] = {}
        self.wires: dict[int, PeerWire] = {}
        self.peers: dict[int, Channel] = {}
        self._asides: dict[int, Channel] = {}
        self._lock = threading.Lock()
        server, client = contexts(plan.tls)
        self._start_s = start_s
        settings = Settings(
            flows=_PEER_FLOWS, congestion=congestion_of_run(), give_up_s=give_up_s, dead_s=max(1.0, min(5.0, give_up_s)),
            first_s=start_s,
        )  # fmt: skip
        self.endpoint = Endpoint(
            me.name, run=f"{plan.run}/{plan.attempt}", secret=secret.encode(), listen=me.address, settings=settings,
            settings_of=self._settings_of(settings), tls_server=server, tls_client=client,
        )  # fmt: skip
        for stage in self._neighbours():
            self.wires[stage] = self._wire(stage)
        for pipeline in range(plan.pipelines):
            if pipeline != me.pipeline:
                self.peers[pipeline] = self._channel(plan.device(pipeline, me.stage), "")

    def _neighbours(self) -> list[int]:
        """Stages that this one sends to or gets from."""
        parts, stages = self.plan.parts, self.plan.stages
        mine = range(self.me.stage, parts, stages)
        found = {(k + by) % stages for k in mine for by in (-1, 1) if 0 <= k + by < parts}
        return sorted(found - {self.me.stage})

    def _settings_of(self, settings: Settings) -> Mapping[str, Settings]:
        aside = replace(settings, first_s=_ASIDE_S)
        found = {laned(device.name, _ASIDE): aside for device in self.plan.devices}
        for stage in self._neighbours():
            link = self.plan.link(self.me.stage, stage, self.me.pipeline)
            found[self.plan.device(self.me.pipeline, stage).name] = replace(
                settings,
                flows=link.flows,
                rate_bytes_per_s=link.rate_bytes_per_s,
                chunk_bytes=link.chunk_bytes or settings.chunk_bytes,
            )
        return found

    def aside(self, index: int) -> Channel:
        """A channel to any device of the plan, by its number, separate from those of the training. For any
        thread.
        """
        with self._lock:
            if index not in self._asides:
                self._asides[index] = self._joined(self.plan.devices[index], _ASIDE)
            return self._asides[index]

    def _channel(self, other: PlanDevice, lane: str) -> Channel:
        channel = self._channels[laned(other.name, lane), other.name] = self._joined(other, lane)
        return channel

    def _joined(self, other: PlanDevice, lane: str) -> Channel:
        """The later one in the plan connects."""
        if self.plan.devices.index(self.me) > self.plan.devices.index(other):
            name = (self.plan.tls or {}).get("name", "")
            return self.endpoint.connect(other.name, other.address, tls_name=name, lane=lane)
        return self.endpoint.accept(other.name, lane)

    def _wire(self, stage: int) -> PeerWire:
        plan, me = self.plan, self.me
        link, other = plan.link(me.stage, stage, me.pipeline), plan.device(me.pipeline, stage)
        channel = self._channel(other, "")
        if not link.turns or plan.cell == 1:
            return PeerWire(other, link, channel, None)
        first = me.pipeline // plan.cell * plan.cell
        lane = f"cell-{min(me.stage, stage)}-{max(me.stage, stage)}"
        local = {
            place: self._channel(plan.device(first + place, me.stage), lane)
            for place in range(plan.cell)
            if first + place != me.pipeline
        }
        cell = CellChannel(me.pipeline - first, channel, local)
        self._cells.append(cell)
        return PeerWire(other, link, channel, cell)

    def wait_open(self) -> None:
        """Wait until every peer is connected, and the offset of its clock is known. Errors:
        :class:`unidle.span.wan.WanError`.
        """
        for channel in self._channels.values():
            channel.wait_open(self._start_s)
        for wire in self.wires.values():
            wire.clock = self._clock(wire) if wire.link.wan else None
        for clock in [wire.clock for wire in self.wires.values() if wire.clock is not None]:
            clock.wait()

    def _clock(self, wire: PeerWire) -> PeerClock:
        """The later device in the plan sends the requests."""
        return PeerClock(
            wire.channel, asks=self.plan.devices.index(self.me) > self.plan.devices.index(wire.other)
        )

    def stop_clocks(self) -> None:
        """Stop measuring clocks, before channels are closed. All ranks call it before they have the result of
        all.
        """
        for wire in self.wires.values():
            if wire.clock is not None:
                wire.clock.stop()

    def gather(self, value: Any, tag: str = "gather") -> list[Any]:
        """The value of every device, in the plan's order, on every device: down each pipeline to its first stage, and back.

        Threads that gather at the same time do it under different tags.
        """
        found = {str(self.plan.devices.index(self.me)): value}
        me, last = self.me, self.plan.stages - 1
        before = self.wires[me.stage - 1].channel if me.stage else None
        after = self.wires[me.stage + 1].channel if me.stage < last else None
        up = before or (self.peers[0] if me.pipeline else None)
        # posted before anything is said: who has said all closes, and what comes unasked is lost then
        awaited = [channel.recv(tag) for channel in (after, *(() if up else self.peers.values())) if channel]
        answer = up.recv(tag) if up else None
        for future in awaited:
            found |= json.loads(bytes(future.result()))
        if up is not None and answer is not None:
            _tell(up, tag, found)
            found = json.loads(bytes(answer.result()))
        else:
            for peer in self.peers.values():
                _tell(peer, tag, found)
        if after is not None:
            _tell(after, tag, found)
        return [found[str(k)] for k in range(len(self.plan.devices))]

    def lost(self) -> tuple[str, str]:
        """The lost device, and ``link`` (it did not answer) or ``peer`` (it announced that it leaves)."""
        ended = [(name, channel.error) for (_, name), channel in self._channels.items() if channel.error]
        for name, error in ended:
            if isinstance(error, ChannelLost):
                return name, "link"
        return (ended[0][0], "peer") if ended else ("", "link")

    def close(self, timeout_s: float) -> None:
        """Close all channels. Sent data is waited for at most this long."""
        for cell in self._cells:
            cell.close(timeout_s)
        self.endpoint.close(timeout_s)


def _tell(channel: Channel, tag: str, found: dict[str, Any]) -> None:
    channel.send(tag, json.dumps(found).encode())
