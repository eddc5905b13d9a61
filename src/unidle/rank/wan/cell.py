"""A message over the links of a whole cell: scattered among the sender's neighbours, gathered beside the receiver.

C nodes of one site and C of another are joined in pairs by C channels. A sender keeps one part of a message in C and gives
the others to its neighbours; each sends its part over its own link at the same time; the other cell gathers. That is the
temporal sharing of ATLAS (arXiv 2411.14458), as far as it can be told without its code.
"""

from __future__ import annotations

import concurrent.futures
import struct
import threading
from collections import deque
from collections.abc import Mapping
from typing import Any, Final, NamedTuple

from unidle.rank.wan.channel import Channel
from unidle.rank.wan.errors import ChannelClosed, WanError, WrongSize
from unidle.rank.wan.frames import tag_number
from unidle.rank.wan.pending import Pending
from unidle.rank.wan.stats import Stats

_HEAD: Final = struct.Struct("!BBBxQQQQ")
_SCATTER: Final = 0  # to be sent over the link of whoever gets it
_GATHER: Final = 1  # over the link, or from beside it: to be given to its target
_HEADS: Final = "unidle-cell-heads"
_BODIES: Final = "unidle-cell-bodies"


class _Piece(NamedTuple):
    phase: int
    origin: int
    target: int
    tag: int
    sequence: int
    offset: int
    total: int


class _Gathered:
    """A message at its target: the buffer, once posted, and what came before it was."""

    __slots__ = ("buffer", "early", "future", "got")

    def __init__(self) -> None:
        self.buffer: memoryview | None = None
        self.future: Pending[memoryview] | None = None
        self.early: list[tuple[_Piece, memoryview]] = []
        self.got = 0


class CellChannel:
    """One node's part in a cell. It owns the channels that it is given: they are closed with it.

    ``index`` is the node's place in its cell, ``wan`` its channel to the node at the same place in the other cell, ``local``
    its channels to the others of its cell, by their place. ``piece_bytes`` is what goes over one link at a time, ``depth`` how
    many pieces may be on their way into each channel: their product times C should reach capacity times round trip.
    What comes before a buffer is posted is kept up to ``early_bytes``; then the links wait.
    """

    def __init__(
        self,
        index: int,
        wan: Channel,
        local: Mapping[int, Channel],
        *,
        piece_bytes: int = 1 << 20,
        depth: int = 16,
        early_bytes: int = 64 << 20,
    ) -> None:
        size = len(local) + 1
        if not 0 <= index < size or set(local) != set(range(size)) - {index}:
            raise ValueError(
                f"local: must name the others of 0 to {size - 1} (got {sorted(local)} for place {index})"
            )
        self.index, self._size, self._wan, self._local = index, size, wan, dict(local)
        self._piece_bytes, self._depth, self._early_bytes = piece_bytes, depth, early_bytes
        self._stats = Stats()
        self._lock = threading.Condition()
        self._channel_locks = {id(channel): threading.Lock() for channel in (wan, *local.values())}
        self._sent: dict[tuple[int, int], int] = {}
        self._posted: dict[tuple[int, int], int] = {}
        self._messages: dict[tuple[int, int, int], _Gathered] = {}
        self._early = 0
        self._error: WanError | None = None
        self._pumps = [
            threading.Thread(target=self._pump, args=(channel,), name=f"wan-cell-{index}-{name}", daemon=True)
            for name, channel in (("wan", wan), *((str(place), channel) for place, channel in local.items()))
        ]
        for pump in self._pumps:
            pump.start()

    def send(
        self, tag: int | str, buffer: Any, to: int | None = None, not_before_ns: int = 0, pieces: int = 0
    ) -> Pending[int]:
        """Send to a place of the other cell (the same, unless given), over all links of this cell.

        ``pieces``: how many go over each link, 0 for as many as ``piece_bytes`` makes. The future is done when the cell and the links have it all; the buffer may change then. ``not_before_ns`` is as of
        :meth:`Channel.send`, for each first hop.
        """
        target = self.index if to is None else to
        if not 0 <= target < self._size:
            raise ValueError(f"to: must be a place of the cell, 0 to {self._size - 1} (got {to})")
        view, number = memoryview(buffer).cast("B"), tag_number(tag)
        future: Pending[int] = Pending(self._stats)
        with self._lock:
            if self._error is not None:
                future.set_exception(self._error)
                return future
            sequence = self._sent.get((target, number), 0)
            self._sent[target, number] = sequence + 1
        share = -(-len(view) // (self._size * pieces)) if pieces else self._piece_bytes
        step = max(min(share, -(-len(view) // self._size)), 1)
        parts = []
        for count, offset in enumerate(range(0, max(len(view), 1), step)):
            place = (self.index + count) % self._size
            phase = _GATHER if place == self.index else _SCATTER
            piece = _Piece(phase, self.index, target, number, sequence, offset, len(view))
            channel = self._wan if place == self.index else self._local[place]
            parts.append(self._put(channel, piece, view[offset : offset + step], not_before_ns))
        _when_all(parts, future, len(view))
        return future

    def recv(self, tag: int | str, into: Any, origin: int | None = None) -> Pending[memoryview]:
        """The next message of a tag from a place of the other cell (the same, unless given), into a buffer of its length."""
        view = memoryview(into).cast("B")
        place, number = self.index if origin is None else origin, tag_number(tag)
        future: Pending[memoryview] = Pending(self._stats)
        with self._lock:
            if self._error is not None:
                future.set_exception(self._error)
                return future
            sequence = self._posted.get((place, number), 0)
            self._posted[place, number] = sequence + 1
            key = (place, number, sequence)
            message = self._messages.setdefault(key, _Gathered())
            message.buffer, message.future = view, future
            for piece, body in message.early:
                self._early -= len(body)
                self._place(key, message, piece, body)
            message.early.clear()
            self._lock.notify_all()
        return future

    def close(self, timeout: float = 10.0) -> None:
        """Close the channels, and end the threads. What is pending fails: :class:`ChannelClosed`."""
        self._fail(ChannelClosed("the cell's channel is closed"), timeout)
        for pump in self._pumps:
            if pump is not threading.current_thread():
                pump.join()

    def _put(
        self, channel: Channel, piece: _Piece, body: memoryview, not_before_ns: int = 0
    ) -> concurrent.futures.Future[int]:
        """The k-th head and the k-th body of a channel belong together, whoever sends them."""
        with self._channel_locks[id(channel)]:
            channel.send(_HEADS, _HEAD.pack(*piece), not_before_ns)
            return channel.send(_BODIES, body, not_before_ns)

    def _pump(self, channel: Channel) -> None:
        """Forward or keep what a channel brings, until it ends."""
        coming: deque[tuple[Pending[memoryview], Pending[memoryview]]] = deque()
        going: deque[concurrent.futures.Future[int]] = deque()
        try:
            while True:
                while len(coming) < self._depth:
                    coming.append((channel.recv(_HEADS), channel.recv(_BODIES)))
                head, body = coming.popleft()
                piece = _Piece(*_HEAD.unpack(head.result()))
                self._route(piece, body.result(), going)
                while len(going) > self._depth:
                    going.popleft().result()
        except WanError as error:
            self._fail(error)

    def _route(self, piece: _Piece, body: memoryview, going: deque[concurrent.futures.Future[int]]) -> None:
        if piece.phase == _SCATTER:
            going.append(self._put(self._wan, piece._replace(phase=_GATHER), body))
        elif piece.target != self.index:
            going.append(self._put(self._local[piece.target], piece, body))
        else:
            self._deliver(piece, body)

    def _deliver(self, piece: _Piece, body: memoryview) -> None:
        key = (piece.origin, piece.tag, piece.sequence)
        with self._lock:
            while True:
                if self._error is not None:
                    raise self._error
                message = self._messages.setdefault(key, _Gathered())
                if message.buffer is not None:
                    self._place(key, message, piece, body)
                    return
                if not self._early or self._early + len(body) <= self._early_bytes:
                    break
                self._lock.wait()
            message.early.append((piece, body))
            self._early += len(body)

    def _place(self, key: tuple[int, int, int], message: _Gathered, piece: _Piece, body: memoryview) -> None:
        assert message.buffer is not None
        assert message.future is not None
        if len(message.buffer) == piece.total:
            message.buffer[piece.offset : piece.offset + len(body)] = body
        elif not message.future.done():
            has = len(message.buffer)
            message.future.set_exception(
                WrongSize(
                    f"a message of {piece.total} bytes came for a buffer of {has} bytes; both sides must"
                    " name the same length for each message of a tag"
                )
            )
        message.got += len(body)
        if message.got == piece.total:
            del self._messages[key]
            if not message.future.done():
                message.future.set_result(message.buffer)

    def _fail(self, error: WanError, timeout: float = 10.0) -> None:
        """One link less and nothing is whole any more: all ends, so that the others of the cell know, too."""
        with self._lock:
            if self._error is not None:
                return
            self._error = error
            futures = [message.future for message in self._messages.values() if message.future is not None]
            self._messages.clear()
            self._lock.notify_all()
        for future in futures:
            if not future.done():
                future.set_exception(error)
        for channel in (self._wan, *self._local.values()):
            channel.close(timeout)


def _when_all(parts: list[concurrent.futures.Future[int]], future: Pending[int], result: int) -> None:
    """Settle a future when all parts are, with the first error where one failed."""
    left, lock = [len(parts)], threading.Lock()

    def done(part: concurrent.futures.Future[int]) -> None:
        error = part.exception()
        with lock:
            left[0] -= 1
            if future.done():
                return
            if error is not None:
                future.set_exception(error)
            elif not left[0]:
                future.set_result(result)

    for part in parts:
        part.add_done_callback(done)
