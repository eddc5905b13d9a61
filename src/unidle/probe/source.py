"""Where kernel log lines come from: one protocol for kmsg, journal and followed files."""

from __future__ import annotations

from typing import Protocol

from unidle.guard.log import LogLine


class Source(Protocol):
    """A log that grows. ``poll`` never waits. If it cannot read, :meth:`why_not` has the reason; the next poll retries."""

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
        """Where the next poll continues. Keep it and give it to the next instance: then nothing is read twice."""
        ...

    def news_fd(self) -> int:
        """A file descriptor that becomes readable when a poll would give lines; -1 without one."""
        ...

    def close(self) -> None:
        """Give back what is open."""
        ...
