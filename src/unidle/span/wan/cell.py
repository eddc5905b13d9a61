"""A message over the links of a whole cell: scattered among the sender's neighbours, gathered at the receiver.

C nodes of one site and C of another are joined in pairs by C channels. A sender keeps one part of a message in C and gives
the others to its neighbours; each sends its part over its own link at the same time; the other cell gathers. That is the
temporal sharing of ATLAS (arXiv 2411.14458), as far as the paper describes it.
"""

from __future__ import annotations

import concurrent.futures
import struct
import threading
from collections import deque
from collections.abc import Mapping
from typing import Any, Final, NamedTuple

from unidle.span.wan.api import ChannelClosed, Pending, Stats, WanError, WrongSize
from unidle.span.wan.channel import Channel
from unidle.span.wan.frames import tag_number
from unidle.span.wan.order import FIRST, NONE, Queue, Ranges

_HEAD: Final = struct.Struct("!BBBxQQQQQ")
_NUMBER: Final = struct.Struct("!Q")
_SCATTER: Final = 0  # to be sent over the link of the one that gets it
_GATHER: Final = 1  # over the link, or from the same side: to be given to its target
_DONE: Final = 2  # the same way, back to who sent: numbers of messages that its target has whole
_HEADS: Final = "unidle-cell-heads"
_BODIES: Final = "unidle-cell-bodies"
_TOLD_AT_ONCE: Final = 64  # messages that are done, in one piece


class _Piece(NamedTuple):
    phase: int
    origin: int
    target: int
    tag: int
    number: int
    before: int
    offset: int
    total: int


class _Gathered:
    """A message at its target: the buffer, once posted, and what came before it was."""

    __slots__ = ("buffer", "early", "early_bytes", "future", "got", "number", "tag")

    def __init__(self, number: int, tag: int) -> None:
        self.number, self.tag = number, tag
        self.buffer: memoryview | None = None
        self.future: Pending[memoryview] | None = None
        self.early: list[tuple[_Piece, memoryview]] = []
        self.got = self.early_bytes = 0


_Post = tuple[memoryview, Pending[memoryview]]


class _To:
    """What was sent to one place of the other cell and is not known to be whole there."""

    __slots__ = ("last", "number", "tags")

    def __init__(self) -> None:
        self.number = FIRST
        self.last: dict[int, int] = {}  # by tag
        self.tags: dict[int, int] = {}  # by number

    def next(self, tag: int) -> tuple[int, int]:
        """The number of a message more of a tag, and that of the one before it."""
        number, self.number = self.number, self.number + 1
        before, self.last[tag], self.tags[number] = self.last.get(tag, NONE), number, tag
        return number, before

    def done(self, number: int) -> None:
        tag = self.tags.pop(number)
        if self.last.get(tag) == number:
            del self.last[tag]


class _From:
    """What comes from one place of the other cell."""

    __slots__ = ("messages", "over", "tags", "untold")

    def __init__(self) -> None:
        self.messages: dict[int, _Gathered] = {}
        self.tags: dict[int, Queue[_Gathered, _Post]] = {}
        self.over = Ranges()
        self.untold: list[int] = []  # messages that are whole, which their sender does not know


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
        self._to, self._from = [_To() for _ in range(size)], [_From() for _ in range(size)]
        self._early = 0  # bytes that nobody posted a buffer for
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

        ``pieces``: how many go over each link, 0 for as many as ``piece_bytes`` makes. The future is done when the cell and
        the links have it all; the buffer may change then. ``not_before_ns`` is as of :meth:`Channel.send`, for each first hop.
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
            message, before = self._to[target].next(number)
        share = -(-len(view) // (self._size * pieces)) if pieces else self._piece_bytes
        step = max(min(share, -(-len(view) // self._size)), 1)
        parts = []
        for count, offset in enumerate(range(0, max(len(view), 1), step)):
            place = (self.index + count) % self._size
            phase = _GATHER if place == self.index else _SCATTER
            piece = _Piece(phase, self.index, target, number, message, before, offset, len(view))
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
            of = self._from[place]
            found = of.tags.setdefault(number, Queue()).post((view, future))
            if found is not None:
                self._bind(of, found, (view, future))
            self._lock.notify_all()
            done = self._done(of)
        self._tell(place, done)
        return future

    @property
    def kept(self) -> int:
        """Number of messages, buffers, tags and gaps that are kept now. It depends only on data in flight."""
        with self._lock:
            out = sum(len(to.last) + len(to.tags) for to in self._to)
            inside = sum(len(of.messages) + len(of.untold) + of.over.gaps for of in self._from)
            return out + inside + sum(1 + queue.kept for of in self._from for queue in of.tags.values())

    def close(self, timeout: float = 10.0) -> None:
        """Close the channels, and end the threads. What is pending fails: :class:`ChannelClosed`."""
        self._fail(ChannelClosed("the cell's channel is closed"), timeout)
        for pump in self._pumps:
            if pump is not threading.current_thread():
                pump.join()

    def _put(
        self, channel: Channel, piece: _Piece, body: memoryview, not_before_ns: int = 0
    ) -> concurrent.futures.Future[int]:
        """The k-th head and the k-th body of a channel belong together, whichever thread sends them."""
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
        elif piece.phase == _DONE:
            with self._lock:
                for (number,) in _NUMBER.iter_unpack(body):
                    self._to[piece.origin].done(number)
        else:
            self._tell(piece.origin, self._deliver(piece, body))

    def _deliver(self, piece: _Piece, body: memoryview) -> list[int]:
        """Into its buffer, or next to it; numbers of messages to tell ``piece.origin`` of."""
        of = self._from[piece.origin]
        with self._lock:
            if self._error is not None:
                raise self._error
            message = of.messages.get(piece.number) or self._new(of, piece)
            while message.buffer is None:
                asked = of.tags[piece.tag].posts  # its buffer is among these: another is to come first
                if asked or not self._early or self._early + len(body) <= self._early_bytes:
                    message.early.append((piece, body))
                    message.early_bytes += 0 if asked else len(body)
                    self._early += 0 if asked else len(body)
                    return []
                self._lock.wait()
                if self._error is not None:
                    raise self._error
            self._place(of, message, piece, body)
            return self._done(of)

    def _new(self, of: _From, piece: _Piece) -> _Gathered:
        message = of.messages[piece.number] = _Gathered(piece.number, piece.tag)
        queue = of.tags.setdefault(piece.tag, Queue())
        for each, post in queue.came(piece.number, piece.before, message, of.over):
            self._bind(of, each, post)
        return message

    def _bind(self, of: _From, message: _Gathered, post: _Post) -> None:
        message.buffer, message.future = post
        self._early -= message.early_bytes
        for piece, body in message.early:
            self._place(of, message, piece, body)
        message.early.clear()
        self._lock.notify_all()

    def _place(self, of: _From, message: _Gathered, piece: _Piece, body: memoryview) -> None:
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
            del of.messages[message.number]
            of.over.add(message.number)
            of.untold.append(message.number)
            queue = of.tags.get(message.tag)  # forgotten already where a later message was whole before
            if queue is not None and queue.idle(of.over):
                del of.tags[message.tag]
            if not message.future.done():
                message.future.set_result(message.buffer)

    @staticmethod
    def _done(of: _From) -> list[int]:
        """Messages to acknowledge to their sender now: many at once."""
        if len(of.untold) < _TOLD_AT_ONCE:
            return []
        told, of.untold = of.untold, []
        return told

    def _tell(self, place: int, done: list[int]) -> None:
        if done:
            piece = _Piece(_DONE, self.index, place, 0, 0, 0, 0, 0)
            self._put(self._wan, piece, memoryview(b"".join(map(_NUMBER.pack, done))))

    def _fail(self, error: WanError, timeout: float = 10.0) -> None:
        """One link less and nothing is whole any more: all ends, so that the others of the cell know, too."""
        with self._lock:
            if self._error is not None:
                return
            self._error = error
            futures = [m.future for of in self._from for m in of.messages.values() if m.future is not None]
            futures += [post[1] for of in self._from for q in of.tags.values() for post in q.posts]
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
