"""Data that a channel has to send: order, window, credit, slots and rate. No socket and no clock in here."""

from __future__ import annotations

import heapq
from collections import deque
from collections.abc import Iterator
from concurrent.futures import Future
from typing import Final

from unidle.span.wan.api import Settings, Stats
from unidle.span.wan.frames import DATA, WanFrame, pack
from unidle.span.wan.order import FIRST, NONE, Ranges
from unidle.span.wan.sums import AHEAD, Sum, Summer

_EARLY_LEAST_BYTES: Final = 64  # what is kept of a message without bytes is something, too


class Message:
    """One buffer on its way. ``unsettled`` counts its chunks that are not acknowledged, ``early_bytes`` what was sent of it
    before the peer had ``granted`` it a buffer."""

    __slots__ = (
        "before", "early_bytes", "future", "granted", "number", "offset", "started", "summed", "sums", "tag", "unsettled", "view",
    )  # fmt: skip

    def __init__(self, tag: int, number: int, before: int, view: memoryview, future: Future[int]) -> None:
        self.tag, self.number, self.before, self.view, self.future = tag, number, before, view, future
        self.offset = self.unsettled = self.early_bytes = 0
        self.sums: deque[Sum] = deque()  # of the next chunks, up to the byte ``summed``
        self.summed = 0
        self.started = self.granted = False

    @property
    def all_cut(self) -> bool:
        """Whether each of its bytes is in some chunk; a message without bytes has one chunk, too."""
        return self.started and self.offset == len(self.view)


class _Tag:
    """What is on its way of one tag: its last message, how many are not settled, and those that were granted no buffer yet;
    or how many grants wait for a message."""

    __slots__ = ("credit", "last", "unsettled", "waiting")

    def __init__(self) -> None:
        self.last, self.unsettled, self.credit = NONE, 0, 0
        self.waiting: deque[Message] = deque()


class Chunk:
    """A part of a message that one flow carries."""

    __slots__ = ("header", "message", "payload", "tries")

    def __init__(self, message: Message, payload: memoryview, header: bytes) -> None:
        self.message, self.payload, self.header = message, payload, header
        self.tries = 0


class Outbound:
    """Gives out chunks, and takes them back that did not arrive."""

    def __init__(self, run: int, settings: Settings, stats: Stats, summer: Summer) -> None:
        self._run, self._settings, self._stats, self._summer = run, settings, stats, summer
        self._slots: list[tuple[int, int, Message]] = []
        self._ready: deque[Message] = deque()
        self._again: deque[Chunk] = deque()
        self._tags: dict[int, _Tag] = {}
        self._grants = Ranges()
        self._early_out = 0
        self._messages: set[Message] = set()
        self._next = FIRST
        self._tokens, self._tokens_ns = 0.0, 0
        self.peer_early_bytes = 0  # what the peer takes early; it says so when it connects
        self.bucket = False  # the token bucket paces, not the kernel
        self.waits_for = ""  # why the last call of next_chunk gave none

    def add(self, tag: int, view: memoryview, future: Future[int], not_before_ns: int) -> None:
        """Add a message; messages of one tag are received in this order."""
        of = self._tags.setdefault(tag, _Tag())
        number, self._next = self._next, self._next + 1
        message = Message(tag, number, of.last, view, future)
        of.last = number
        of.unsettled += 1
        if of.credit:
            of.credit -= 1
            message.granted = True
        else:
            of.waiting.append(message)
        self._messages.add(message)
        heapq.heappush(self._slots, (not_before_ns, number, message))

    def next_chunk(self, now_ns: int) -> Chunk | None:
        """What an idle flow carries next; None, and ``waits_for``, where nothing may go now."""
        while self._slots and self._slots[0][0] <= now_ns:
            self._ready.append(heapq.heappop(self._slots)[2])
        if not (self._again or self._ready):
            self.waits_for = "pacing" if self._slots else ""
            return None
        room = self._settings.window_bytes - self._stats.in_flight_bytes
        size = len(self._again[0].payload) if self._again else self._settings.chunk_bytes
        if room < size and self._stats.in_flight_bytes:
            self.waits_for = "window"
            return None
        if self.bucket and not self._has_tokens(now_ns):
            self.waits_for = "pacing"
            return None
        chunk = self._again.popleft() if self._again else self._cut()
        if chunk is None:
            self.waits_for = "credit"
            return None
        if chunk.tries:
            self._stats.resent_bytes += len(chunk.payload)
        chunk.tries += 1
        self._stats.in_flight_bytes += len(chunk.payload)
        self._stats.in_flight_peak_bytes = max(self._stats.in_flight_peak_bytes, self._stats.in_flight_bytes)
        self._tokens -= len(chunk.payload) if self.bucket else 0
        return chunk

    def _cut(self) -> Chunk | None:
        """The next part of the first message that the peer has room for."""
        for index, message in enumerate(self._ready):
            length = min(self._settings.chunk_bytes, len(message.view) - message.offset)
            if not message.granted:
                kept = max(length, _EARLY_LEAST_BYTES)
                if self._early_out + kept > self.peer_early_bytes:
                    continue
                self._early_out += kept
                message.early_bytes += kept
            payload, crc = self._summed(message)
            frame = WanFrame(
                DATA, message.tag, message.number, message.before, self.seen, message.offset, len(message.view), length,
                crc,
            )  # fmt: skip
            message.offset += length
            message.started = True
            message.unsettled += 1
            if message.all_cut:
                del self._ready[index]
            return Chunk(message, payload, pack(self._run, frame))
        return None

    def _summed(self, message: Message) -> tuple[memoryview, int]:
        """The next chunk of a message and its sum; those after it are asked for."""
        size = self._settings.chunk_bytes
        while not message.sums or (len(message.sums) <= AHEAD and message.summed < len(message.view)):
            message.sums.append(self._summer.ask(message.view[message.summed : message.summed + size]))
            message.summed += size
        chunk = message.sums.popleft()
        return chunk.payload, chunk.value()

    def _has_tokens(self, now_ns: int) -> bool:
        """Whether the rate lets a chunk go: it may go into debt by one, so the mean is kept for any length."""
        if self._tokens_ns:
            earned = (now_ns - self._tokens_ns) * self._settings.rate_bytes_per_s / 1e9
            self._tokens = min(self._tokens + earned, float(self._settings.burst_bytes))
        self._tokens_ns = now_ns
        return self._tokens >= 0

    def due_ns(self) -> int | None:
        """When the next chunk may be sent, if only time delays it; otherwise None."""
        due = [self._slots[0][0]] if self._slots else []
        if self.bucket and self._tokens < 0 and (self._ready or self._again):
            due.append(self._tokens_ns + int(-self._tokens * 1e9 / self._settings.rate_bytes_per_s) + 1)
        return min(due, default=None)

    def settled(self, chunk: Chunk) -> None:
        """The peer has the complete chunk."""
        message = chunk.message
        self._stats.in_flight_bytes -= len(chunk.payload)
        self._stats.sent_bytes += len(chunk.payload)
        self._stats.sent_chunks += 1
        message.unsettled -= 1
        if message.all_cut and not message.unsettled:
            self._messages.discard(message)
            self._tags[message.tag].unsettled -= 1
            self._forget(message.tag)
            size, message.view = len(message.view), memoryview(b"")  # it may wait for its grant still
            message.future.set_result(size)

    def again(self, chunks: list[Chunk]) -> None:
        """Send chunks again that did not arrive, or may not have, before all others."""
        for chunk in reversed(chunks):
            self._stats.in_flight_bytes -= len(chunk.payload)
            self._again.appendleft(chunk)

    def granted(self, number: int, tag: int) -> None:
        """The peer has a buffer for one more message of a tag; ``number`` shows whether that is already recorded."""
        if not self._grants.add(number):
            return
        of = self._tags.setdefault(tag, _Tag())
        if not of.waiting:
            of.credit += 1
            return
        message = of.waiting.popleft()
        message.granted = True
        self._early_out -= message.early_bytes
        self._forget(tag)

    def _forget(self, tag: int) -> None:
        """A tag whose messages are all there, each in its buffer, begins from the start: the peer computes the
        same.
        """
        of = self._tags[tag]
        if not (of.unsettled or of.waiting or of.credit):
            del self._tags[tag]

    @property
    def seen(self) -> int:
        """All grants below this number came."""
        return self._grants.below

    @property
    def kept(self) -> int:
        """How many messages, tags and gaps in grants are kept; any thread may ask."""
        waiting = sum(len(of.waiting) + of.credit for of in list(self._tags.values()))
        return len(self._messages) + len(self._tags) + waiting + self._grants.gaps

    def pending(self) -> Iterator[Future[int]]:
        """Futures of what is not settled."""
        return (message.future for message in self._messages)

    @property
    def outstanding_bytes(self) -> int:
        """Bytes of messages that are not settled, whether sent or not, less whole chunks that are."""
        waiting = sum(len(message.view) - message.offset for message in self._messages)
        return waiting + self._stats.in_flight_bytes + sum(len(chunk.payload) for chunk in self._again)

    def clear(self) -> list[Future[int]]:
        """Forget all; returns the futures that will not be settled."""
        left = list(self.pending())
        self._messages.clear()
        self._ready.clear()
        self._again.clear()
        self._slots.clear()
        self._tags.clear()
        self._stats.in_flight_bytes = 0
        return left
