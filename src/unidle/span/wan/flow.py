"""One TCP connection of a channel: frames in, frames out, never blocking."""

from __future__ import annotations

import itertools
import socket
import ssl
import zlib
from collections import deque
from typing import Final, Protocol

from unidle.span.wan import frames
from unidle.span.wan.api import BadFrame
from unidle.span.wan.frames import ACK, BYE, DATA, GRANT, HEADER_BYTES, NACK, WanFrame
from unidle.span.wan.inbound import Landing
from unidle.span.wan.outbound import Chunk

_TURN_BYTES: Final = 8 << 20  # one flow reads at most this much before others have their turn
_MOST_CHUNK_BYTES: Final = 1 << 30
_LATER: Final = (BlockingIOError, InterruptedError, ssl.SSLWantReadError, ssl.SSLWantWriteError)


class FlowOwner(Protocol):
    """Callbacks of a flow to its channel."""

    def begin(self, frame: WanFrame) -> Landing: ...

    def end_of(self, landing: Landing, sound: bool) -> None: ...

    def lost(self, landing: Landing) -> None: ...

    def settled(self, chunk: Chunk) -> None: ...

    def damaged(self, chunk: Chunk) -> None: ...

    def granted(self, number: int, tag: int) -> None: ...

    def saw(self, below: int) -> None: ...

    @property
    def seen(self) -> int: ...

    def peer_leaves(self) -> None: ...


class WanFlow:
    """A connected socket after its handshake. Errors of its methods, ``OSError`` and :class:`BadFrame`, end it."""

    def __init__(self, link: socket.socket, index: int, run: int, owner: FlowOwner, now_ns: int) -> None:
        self.link, self.index, self.heard_ns, self.sent_ns = link, index, now_ns, now_ns
        self.watched = 0  # events that the loop's selector looks for
        self._run, self._owner = run, owner
        self._out: deque[memoryview] = deque()
        self._unsettled: deque[Chunk | None] = deque()
        self._settled = 0  # chunks of this connection that the peer settled
        self._header = bytearray(HEADER_BYTES)
        self._landing: Landing | None = None
        self._filled = self._sum = self._arrived = 0
        self._tls = isinstance(link, ssl.SSLSocket)

    # -- out -----------------------------------------------------------------------------------------

    @property
    def idle(self) -> bool:
        """Whether the kernel has accepted all data of the flow."""
        return not self._out

    def carry(self, chunk: Chunk) -> None:
        """Send a chunk, and keep it until the peer settles it."""
        self._unsettled.append(chunk)
        self._out.append(memoryview(chunk.header))
        if chunk.payload:
            self._out.append(chunk.payload)

    def tell(self, kind: int, number: int = 0, tag: int = 0) -> None:
        """Send a frame without payload."""
        self._out.append(memoryview(frames.control(self._run, kind, self._owner.seen, number, tag)))

    def write(self, now_ns: int) -> bool:
        """Pass data to the kernel; True if all was accepted."""
        while self._out:
            try:
                if self._tls:
                    count = self.link.send(self._out[0])
                else:
                    count = self.link.sendmsg(itertools.islice(self._out, 8))
            except _LATER:
                return False
            self.sent_ns = now_ns
            while count or (self._out and not len(self._out[0])):
                first = self._out[0]
                if count < len(first):
                    self._out[0] = first[count:]
                    break
                count -= len(first)
                self._out.popleft()
        return True

    # -- in ------------------------------------------------------------------------------------------

    def read(self, now_ns: int) -> None:
        """Read available data. Errors: :class:`ConnectionError` if the peer closed the connection."""
        taken = 0
        while taken < _TURN_BYTES or self._tls:  # what TLS has decrypted wakes no selector
            landing = self._landing
            view = memoryview(self._header) if landing is None else landing.view
            try:
                count = self.link.recv_into(view[self._filled :])
            except _LATER:
                return
            if not count:
                raise ConnectionResetError("the peer closed the connection")
            self.heard_ns = now_ns
            taken += count
            if landing is None:
                self._filled += count
                if self._filled == HEADER_BYTES:
                    self._begin()
            else:
                self._sum = zlib.crc32(view[self._filled : self._filled + count], self._sum)
                self._filled += count
                if self._filled == landing.frame.length:
                    self._end(landing)

    def _begin(self) -> None:
        frame = frames.unpack(self._run, self._header, _MOST_CHUNK_BYTES)
        self._filled = self._sum = 0
        self._owner.saw(frame.seen)
        if frame.kind == DATA:
            self._landing = self._owner.begin(frame)
            if not frame.length:
                self._end(self._landing)
        elif frame.kind == ACK:
            self._settle(frame.number)
        elif frame.kind == NACK:
            self._damaged(frame.number)
        elif frame.kind == GRANT:
            self._owner.granted(frame.number, frame.tag)
        elif frame.kind == BYE:
            self._owner.peer_leaves()

    def _end(self, landing: Landing) -> None:
        self._landing, self._filled = None, 0
        sound = self._sum == landing.frame.crc
        if not sound:
            self.tell(NACK, self._arrived)
        self._arrived += 1
        self.tell(ACK, self._arrived)
        self._owner.end_of(landing, sound)

    def _settle(self, upto: int) -> None:
        if upto > self._settled + len(self._unsettled):
            raise BadFrame("the peer settles more than was sent")
        while self._settled < upto:
            self._settled += 1
            chunk = self._unsettled.popleft()
            if chunk is not None:
                self._owner.settled(chunk)

    def _damaged(self, number: int) -> None:
        at = number - self._settled
        if not 0 <= at < len(self._unsettled):
            raise BadFrame("the peer reports the loss of data that were not sent")
        chunk, self._unsettled[at] = self._unsettled[at], None
        if chunk is not None:
            self._owner.damaged(chunk)

    def close(self) -> list[Chunk]:
        """Close it; return the chunks that the peer may not have."""
        self.link.close()
        if self._landing is not None:
            self._owner.lost(self._landing)
            self._landing = None
        left = [chunk for chunk in self._unsettled if chunk is not None]
        self._unsettled.clear()
        self._out.clear()
        return left
