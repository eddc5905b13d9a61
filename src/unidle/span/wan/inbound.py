"""What arrives on a channel: chunks are put in place by offset, duplicates dropped, each message is complete once."""

from __future__ import annotations

from concurrent.futures import Future
from typing import Final, Literal, NamedTuple

from unidle.span.wan.api import BadFrame, Settings, Stats, WrongSize
from unidle.span.wan.frames import WanFrame
from unidle.span.wan.order import FIRST, Queue, Ranges

_SLACK: Final = 64 << 20  # chunks that are on their way twice are counted once by the sender


class Incoming:
    """One message that has partly arrived. ``future`` is None until it is requested."""

    __slots__ = (
        "buffer", "early", "early_bytes", "future", "got", "have", "number", "tag", "total", "writing",
    )  # fmt: skip

    def __init__(self, number: int, tag: int, total: int) -> None:
        self.number, self.tag, self.total = number, tag, total
        self.buffer: memoryview | None = None
        self.future: Future[memoryview] | None = None
        self.got = self.early_bytes = 0
        self.have: set[int] = set()
        self.early: dict[int, memoryview] = {}
        self.writing: dict[int, Landing] = {}


class Landing:
    """Where one chunk is being put: in ``place``, into a buffer of its own to ``copy``, or nowhere (``drop``)."""

    __slots__ = ("frame", "how", "view")

    def __init__(self, frame: WanFrame, how: Literal["place", "copy", "drop"], view: memoryview) -> None:
        self.frame, self.how, self.view = frame, how, view


class _Post(NamedTuple):
    buffer: memoryview | None
    future: Future[memoryview]


class Inbound:
    """Messages of all tags of one channel, as far as they have arrived."""

    def __init__(self, settings: Settings, stats: Stats) -> None:
        self._settings, self._stats = settings, stats
        self._tags: dict[int, Queue[Incoming, _Post]] = {}
        self._messages: dict[int, Incoming] = {}
        self._over = Ranges()
        self._next_grant = FIRST
        self._untold: dict[int, int] = {}  # tags of grants, by number, that the peer has not confirmed

    def post(self, tag: int, into: memoryview | None, future: Future[memoryview]) -> int:
        """The next message of a tag goes into a buffer, or into one that is made for it: the number of the grant."""
        grant, self._next_grant = self._next_grant, self._next_grant + 1
        self._untold[grant] = tag
        post = _Post(into, future)
        message = self._tags.setdefault(tag, Queue()).post(post)
        if message is not None:
            self._bind(message, post)
        return grant

    def grants(self) -> list[tuple[int, int]]:
        """Numbers and tags of grants that the peer may not know: what a flow that is opened again begins with."""
        return list(self._untold.items())

    def saw(self, below: int) -> None:
        """Record that the peer has all grants below a number."""
        while self._untold and (first := next(iter(self._untold))) < below:
            del self._untold[first]

    def begin(self, frame: WanFrame) -> Landing:
        """Where to put a chunk whose header came. Errors: :class:`BadFrame` for more than was granted."""
        message = self._messages.get(frame.number)
        if message is None and frame.number not in self._over:
            message = self._new(frame)
        if message is None or frame.number in self._over:
            return self._dropped(frame)
        if (frame.total, frame.tag) != (message.total, message.tag):
            raise BadFrame("two chunks disagree on their message")
        if frame.offset in message.have:
            return self._dropped(frame)
        if message.buffer is not None and frame.offset not in message.writing:
            landing = Landing(frame, "place", message.buffer[frame.offset : frame.offset + frame.length])
            message.writing[frame.offset] = landing
            return landing
        if (
            self._unasked(message)
            and self._stats.early_bytes + frame.length > 2 * self._settings.early_bytes + _SLACK
        ):
            raise BadFrame("the peer sends more than it may before a buffer is posted")
        return Landing(frame, "copy", memoryview(bytearray(frame.length)))

    def _new(self, frame: WanFrame) -> Incoming:
        message = self._messages[frame.number] = Incoming(frame.number, frame.tag, frame.total)
        of = self._tags.setdefault(frame.tag, Queue())
        for each, post in of.came(frame.number, frame.before, message, self._over):
            self._bind(each, post)
        return message

    def _unasked(self, message: Incoming) -> bool:
        """Whether no buffer waits for it. One whose predecessor is still to come has its own among those of the tag."""
        return message.future is None and not self._tags[message.tag].posts

    def end(self, landing: Landing, sound: bool) -> None:
        """All bytes of a chunk came, ``sound`` or not; or its flow ended before, which is not sound."""
        frame = landing.frame
        message = self._messages.get(frame.number)
        if message is not None and message.writing.get(frame.offset) is landing:
            del message.writing[frame.offset]
        if not sound:
            return
        if message is None or landing.how == "drop" or frame.offset in message.have:
            self._stats.duplicate_chunks += 1
            return
        if landing.how == "copy":
            self._copy_into(message, landing)
        message.have.add(frame.offset)
        message.got += frame.length
        self._stats.received_bytes += frame.length
        self._stats.received_chunks += 1
        self._end_if_whole(message)

    def _copy_into(self, message: Incoming, landing: Landing) -> None:
        frame = landing.frame
        if message.buffer is not None:
            message.buffer[frame.offset : frame.offset + frame.length] = landing.view
            return
        message.early[frame.offset] = landing.view
        if self._unasked(message):
            message.early_bytes += frame.length
            self._stats.early_bytes += frame.length
            self._stats.early_peak_bytes = max(self._stats.early_peak_bytes, self._stats.early_bytes)

    def _bind(self, message: Incoming, post: _Post) -> None:
        """A message has its buffer; where that is of another length, its future fails."""
        message.buffer, message.future = post
        self._stats.early_bytes -= message.early_bytes
        message.early_bytes = 0
        if message.buffer is None and message.total <= self._settings.largest_bytes:
            message.buffer = memoryview(bytearray(message.total))
        if message.buffer is None or len(message.buffer) != message.total:
            has = self._settings.largest_bytes if message.buffer is None else len(message.buffer)
            self._finish(message)
            post.future.set_exception(
                WrongSize(
                    f"a message of {message.total} bytes came for a buffer of {has} bytes; both sides must name the same"
                    " length for each message of a tag"
                )
            )
            return
        for offset, view in message.early.items():
            message.buffer[offset : offset + len(view)] = view
        message.early.clear()
        self._end_if_whole(message)

    def _end_if_whole(self, message: Incoming) -> None:
        if message.future is None or message.got < message.total or not message.have:
            return
        self._finish(message)
        for landing in message.writing.values():  # the buffer is the caller's again: nothing may write there
            landing.how, landing.view = "drop", memoryview(bytearray(landing.frame.length))
        assert message.buffer is not None
        message.future.set_result(message.buffer)

    def _finish(self, message: Incoming) -> None:
        """From now on each chunk of it is one too many."""
        del self._messages[message.number]
        self._over.add(message.number)
        of = self._tags.get(message.tag)  # forgotten already where a later message of it was whole before
        if of is not None and of.idle(self._over):
            del self._tags[message.tag]

    def _dropped(self, frame: WanFrame) -> Landing:
        return Landing(frame, "drop", memoryview(bytearray(frame.length)))

    def clear(self) -> list[Future[memoryview]]:
        """Forget all; return the futures whose messages will not arrive."""
        found = [m.future for m in self._messages.values() if m.future is not None]
        found += [post.future for of in self._tags.values() for post in of.posts]
        self._tags.clear()
        self._messages.clear()
        self._untold.clear()
        self._stats.early_bytes = 0
        return found

    @property
    def awaited(self) -> int:
        """How many posted buffers are not full."""
        begun = sum(m.future is not None for m in self._messages.values())
        return begun + sum(len(of.posts) for of in self._tags.values())

    @property
    def kept(self) -> int:
        """How many messages, buffers, tags, grants and gaps are kept; any thread may ask."""
        inside = sum(of.kept for of in list(self._tags.values()))
        return len(self._messages) + len(self._tags) + inside + len(self._untold) + self._over.gaps
