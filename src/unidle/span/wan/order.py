"""Assigns messages of a tag to buffers, without keeping finished ones. No socket and no clock in here.

Messages of a channel are numbered from 1 on, whatever their tag. Each names the message of its tag before it, 0
if its sender has a confirmation that all before it are over: so order is a chain, and no count has to be kept for
each tag that ever was.
"""

from __future__ import annotations

from bisect import bisect_right
from collections import deque
from typing import Final, Generic, TypeVar

FIRST: Final = 1
NONE: Final = 0  # no message before this one that might not be over

Message = TypeVar("Message")
Post = TypeVar("Post")


class Ranges:
    """A set of whole numbers from 1 on that soon has them all: kept as ranges, so that its size is that of what is missing."""

    __slots__ = ("_ends", "_starts")

    def __init__(self) -> None:
        self._starts: list[int] = [NONE]
        self._ends: list[int] = [FIRST]  # each behind its last

    def add(self, number: int) -> bool:
        """Add a number; False if it was present."""
        at = bisect_right(self._starts, number) - 1
        if number < self._ends[at]:
            return False
        follows = number == self._ends[at]
        leads = at + 1 < len(self._starts) and self._starts[at + 1] == number + 1
        if follows and leads:
            self._ends[at] = self._ends.pop(at + 1)
            del self._starts[at + 1]
        elif follows:
            self._ends[at] += 1
        elif leads:
            self._starts[at + 1] = number
        else:
            self._starts.insert(at + 1, number)
            self._ends.insert(at + 1, number + 1)
        return True

    def __contains__(self, number: int) -> bool:
        return number < self._ends[bisect_right(self._starts, number) - 1]

    @property
    def below(self) -> int:
        """The first missing number."""
        return self._ends[0]

    @property
    def gaps(self) -> int:
        """How many ranges are kept next to the first."""
        return len(self._starts) - 1


class Queue(Generic[Message, Post]):
    """Of one tag at the receiver: buffers that wait for messages, messages that wait for buffers, both in their order."""

    __slots__ = ("_after", "_last", "posts", "waiting")

    def __init__(self) -> None:
        self.posts: deque[Post] = deque()
        self.waiting: deque[Message] = deque()
        self._after: dict[int, tuple[int, Message]] = {}  # by the one before, of which nothing came yet
        self._last = NONE  # the last one whose place is known

    def post(self, post: Post) -> Message | None:
        """Add a buffer; return the message that goes into it, if one waits."""
        if self.waiting:
            return self.waiting.popleft()
        self.posts.append(post)
        return None

    def came(self, number: int, before: int, message: Message, over: Ranges) -> list[tuple[Message, Post]]:
        """The first data of a message arrived; return the messages that have a buffer now. ``over``: messages
        that are whole.
        """
        if before != self._last and before not in over:
            self._after[before] = (number, message)
            return []
        found = []
        while True:
            self._last = number
            if self.posts:
                found.append((message, self.posts.popleft()))
            else:
                self.waiting.append(message)
            if number not in self._after:
                return found
            number, message = self._after.pop(number)

    def idle(self, over: Ranges) -> bool:
        """Whether it may be forgotten."""
        return not (self.posts or self.waiting or self._after) and self._last in over

    @property
    def kept(self) -> int:
        """Buffers and messages in it."""
        return len(self.posts) + len(self.waiting) + len(self._after)
