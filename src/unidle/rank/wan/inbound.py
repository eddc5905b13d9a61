"""What arrives on a channel: chunks are put in place by offset, duplicates dropped, each message is complete once."""

from __future__ import annotations

from concurrent.futures import Future
from typing import Final, Literal

from unidle.rank.wan.errors import BadFrame, WrongSize
from unidle.rank.wan.frames import Frame
from unidle.rank.wan.settings import Settings
from unidle.rank.wan.stats import Stats

_MOST_CHUNK_BYTES: Final = 1 << 30


class Incoming:
    """One message. ``future`` is None until somebody wants it."""

    __slots__ = ("buffer", "early", "future", "got", "have", "posted", "total", "writing")

    def __init__(self) -> None:
        self.buffer: memoryview | None = None
        self.future: Future[memoryview] | None = None
        self.posted = False
        self.total = -1
        self.got = 0
        self.have: set[int] = set()
        self.early: dict[int, memoryview] = {}
        self.writing: dict[int, Landing] = {}


class Landing:
    """Where one chunk is being put: in ``place``, ``beside`` it to be copied, or nowhere (``drop``)."""

    __slots__ = ("frame", "how", "view")

    def __init__(self, frame: Frame, how: Literal["place", "beside", "drop"], view: memoryview) -> None:
        self.frame, self.how, self.view = frame, how, view


class _Tag:
    __slots__ = ("ended", "ended_below", "messages", "posted")

    def __init__(self) -> None:
        self.messages: dict[int, Incoming] = {}
        self.posted = 0
        self.ended_below = 0
        self.ended: set[int] = set()

    def end(self, sequence: int) -> None:
        self.messages.pop(sequence, None)
        self.ended.add(sequence)
        while self.ended_below in self.ended:
            self.ended.remove(self.ended_below)
            self.ended_below += 1

    def has_ended(self, sequence: int) -> bool:
        return sequence < self.ended_below or sequence in self.ended


class Inbound:
    """Messages of all tags of one channel, as far as they are here."""

    def __init__(self, settings: Settings, stats: Stats) -> None:
        self._settings, self._stats = settings, stats
        self._tags: dict[int, _Tag] = {}

    def post(self, tag: int, into: memoryview | None, future: Future[memoryview]) -> int:
        """The next message of a tag goes into a buffer, or into one that is made for it.

        Returns how many messages of the tag have a buffer now: the credit that the peer is granted.
        """
        of = self._tags.setdefault(tag, _Tag())
        sequence = of.posted
        of.posted += 1
        message = of.messages.setdefault(sequence, Incoming())
        message.posted, message.buffer, message.future = True, into, future
        if message.total >= 0 and self._fits(of, sequence, message):
            for offset, view in message.early.items():
                assert message.buffer is not None
                message.buffer[offset : offset + len(view)] = view
                self._stats.early_bytes -= len(view)
            message.early.clear()
            self._end_if_whole(of, sequence, message)
        return of.posted

    def grants(self) -> list[tuple[int, int]]:
        """All credit so far, by tag: what a flow that is opened again begins with."""
        return [(tag, of.posted) for tag, of in self._tags.items() if of.posted]

    def begin(self, frame: Frame) -> Landing:
        """Where to put a chunk whose header came. Errors: :class:`BadFrame` for more than was granted."""
        of = self._tags.setdefault(frame.tag, _Tag())
        if of.has_ended(frame.sequence):
            return self._dropped(frame)
        message = of.messages.setdefault(frame.sequence, Incoming())
        if message.total < 0:
            message.total = frame.total
            if message.posted and not self._fits(of, frame.sequence, message):
                return self._dropped(frame)
        if frame.total != message.total:
            raise BadFrame("two chunks disagree on the length of their message")
        if frame.offset in message.have:
            return self._dropped(frame)
        if message.buffer is not None and frame.offset not in message.writing:
            landing = Landing(frame, "place", message.buffer[frame.offset : frame.offset + frame.length])
            message.writing[frame.offset] = landing
            return landing
        if (
            not message.posted
            and self._stats.early_bytes + frame.length > 2 * self._settings.early_bytes + _SLACK
        ):
            raise BadFrame("the peer sends more than it may before a buffer is posted")
        return Landing(frame, "beside", memoryview(bytearray(frame.length)))

    def end(self, landing: Landing, sound: bool) -> None:
        """All bytes of a chunk came, ``sound`` or not; or its flow ended before, which is not sound."""
        frame = landing.frame
        of = self._tags[frame.tag]
        message = of.messages.get(frame.sequence)
        if message is not None and message.writing.get(frame.offset) is landing:
            del message.writing[frame.offset]
        if not sound:
            return
        if message is None or landing.how == "drop" or frame.offset in message.have:
            self._stats.duplicate_chunks += 1
            return
        if landing.how == "beside":
            if message.buffer is not None:
                message.buffer[frame.offset : frame.offset + frame.length] = landing.view
            else:
                message.early[frame.offset] = landing.view
                self._stats.early_bytes += frame.length
                self._stats.early_peak_bytes = max(self._stats.early_peak_bytes, self._stats.early_bytes)
        message.have.add(frame.offset)
        message.got += frame.length
        self._stats.received_bytes += frame.length
        self._stats.received_chunks += 1
        if message.posted:
            self._end_if_whole(of, frame.sequence, message)

    def _end_if_whole(self, of: _Tag, sequence: int, message: Incoming) -> None:
        if message.got < message.total or not message.have:
            return
        of.end(sequence)
        for landing in message.writing.values():  # the buffer is the caller's again: nothing may write there
            landing.how, landing.view = "drop", memoryview(bytearray(landing.frame.length))
        assert message.future is not None
        assert message.buffer is not None
        message.future.set_result(message.buffer)

    def _fits(self, of: _Tag, sequence: int, message: Incoming) -> bool:
        """Whether the posted buffer is as long as the message; where it is not, its future fails."""
        assert message.future is not None
        if message.buffer is None and message.total <= self._settings.largest_bytes:
            message.buffer = memoryview(bytearray(message.total))
        if message.buffer is not None and len(message.buffer) == message.total:
            return True
        has = self._settings.largest_bytes if message.buffer is None else len(message.buffer)
        self._stats.early_bytes -= sum(map(len, message.early.values()))
        of.end(sequence)
        message.future.set_exception(
            WrongSize(
                f"a message of {message.total} bytes came for a buffer of {has} bytes; both sides must name the same"
                " length for each message of a tag"
            )
        )
        return False

    def _dropped(self, frame: Frame) -> Landing:
        return Landing(frame, "drop", memoryview(bytearray(frame.length)))

    def clear(self) -> list[Future[memoryview]]:
        """Forget all; the futures whose messages will not come."""
        found = [m.future for of in self._tags.values() for m in of.messages.values() if m.future is not None]
        self._tags.clear()
        self._stats.early_bytes = 0
        return found

    @property
    def awaited(self) -> int:
        """How many posted buffers are not full."""
        return sum(m.future is not None for of in self._tags.values() for m in of.messages.values())


_SLACK: Final = 64 << 20  # chunks that are on their way twice are counted once by the sender
