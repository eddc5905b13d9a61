"""Where kernel log lines come from: one protocol for kmsg, journal and followed files."""

from __future__ import annotations

from typing import Protocol

from unidle.guard.log import LogLine


class Source(Protocol):
    """A log that grows. ``poll`` never waits; a source that cannot be read says why, and tries again at the next poll."""

    @property
    def name(self) -> str:
        """What is read, in words: ``/dev/kmsg``, ``journal``, a path."""
        ...

    @property
    def lost(self) -> int:
        """How many records (of a file: bytes) were dropped because they came faster than they were read."""
        ...

    def poll(self) -> list[LogLine]:
        """The lines since the last poll, at most so many that memory stays bounded; more of them with the next poll."""
        ...

    def why_not(self) -> str | None:
        """Why nothing can be seen now, and what would help; None while the log can be read."""
        ...

    def position(self) -> str:
        """Where the next poll goes on, to be kept and given to the next instance: nothing is read twice."""
        ...

    def news_fd(self) -> int:
        """What can be read as soon as a poll would give lines; -1 where only a poll tells."""
        ...

    def close(self) -> None:
        """Give back what is open."""
        ...
