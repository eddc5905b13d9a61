"""One connection of the hub: its state, its clock and its pings. Used by the hub's thread alone."""

from __future__ import annotations

from enum import Enum
from typing import Final

from unidle import wire
from unidle.hub.clocks import OffsetEstimate
from unidle.hub.protocol import Peer
from unidle.hub.stream import FrameStream

_OUTSTANDING: Final = 64


class ConnectionStage(Enum):
    """What a connection waits for."""

    TLS = "TLS"
    HELLO = "hello"
    VOUCH = "word on its token"
    OPEN = "frames"
    LINGER = "the end"  # it was refused: what comes is not read, so that the refusal arrives


class Connection:
    """``acknowledged_ns``: when the newest pong that was acknowledged came, on the controller's clock."""

    __slots__ = (
        "_pings", "accepted_ns", "acknowledged_ns", "address", "clock", "deadline_ns", "fd", "key", "newer", "paused", "peer",
        "ping_n", "polls", "pong_n", "pong_ns", "slot", "stage", "stream", "unpolled", "writing",
    )  # fmt: skip

    def __init__(self, stream: FrameStream, address: str, now_ns: int, within_ns: int) -> None:
        self.stream = stream
        self.fd = stream.sock.fileno()
        self.address = address
        self.stage = ConnectionStage.TLS
        self.accepted_ns = now_ns
        self.deadline_ns = now_ns + within_ns
        self.peer: Peer | None = None
        self.key: tuple[str, str, str] = ("", "", "")
        self.newer = False  # it speaks a newer version
        self.writing = False  # the poller waits for room
        self.paused = False  # it is not read, because its events are not polled
        self.unpolled, self.polls = 0, 0  # bytes of its frames that came since the poll of that number
        self.slot = -1
        self.clock = OffsetEstimate()
        self.ping_n = self.pong_n = 0
        self.pong_ns = self.acknowledged_ns = 0
        self._pings: dict[int, int] | None = None  # number of a ping -> when it was sent

    def opened(self, peer: Peer, now_ns: int) -> None:
        """Its hello is accepted."""
        self.peer, self.stage = peer, ConnectionStage.OPEN
        self.pong_ns = self.acknowledged_ns = now_ns
        self.stream.allow(wire.FRAME_BYTES)
        # the hello was made after this side accepted; how much later is not known
        self.clock.add(self.accepted_ns, now_ns, peer.hello.now)

    def ping(self, fence: int, now_ns: int) -> bytes:
        """The next ping; it acknowledges the newest pong."""
        self.ping_n += 1
        self.acknowledged_ns = self.pong_ns
        if self._pings is None:
            self._pings = {}
        elif len(self._pings) >= _OUTSTANDING:
            del self._pings[next(iter(self._pings))]
        self._pings[self.ping_n] = now_ns
        return wire.framed(b'{"f":"ping","n":%d,"fence":%d,"ack":%d}' % (self.ping_n, fence, self.pong_n))

    def pong(self, n: int, ping: int, their_ns: int, now_ns: int) -> None:
        """A pong. One that came before, or before a newer one, changes nothing. Errors: wire.Malformed."""
        if ping > self.ping_n:
            raise wire.Malformed("a pong answers a ping that was not sent")
        if n <= self.pong_n:
            return
        self.pong_n, self.pong_ns = n, now_ns
        sent_ns = self._pings.pop(ping, None) if self._pings else None
        if sent_ns is not None:
            self.clock.add(sent_ns, now_ns, their_ns)
