"""Policy of a fleet for the files of jobs that have ended."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Final

HOUR_NS: Final = 3_600_000_000_000


@dataclass(frozen=True, slots=True)
class RetentionPolicy:
    """What ``unidle up`` does with the files of ended jobs; by default it removes and moves nothing.

    Jobs that ended ``age_ns`` ago are removed, and the oldest ones while more than ``jobs`` have files, or these take
    more than ``size_bytes``. None: no such limit. Run directories are compressed into the store ``compress_ns`` after
    the end of their job; None: never.
    """

    age_ns: int | None = None
    size_bytes: int | None = None
    jobs: int | None = None
    compress_ns: int | None = None

    @property
    def removes(self) -> bool:
        """Whether there is any limit."""
        return (self.age_ns, self.size_bytes, self.jobs) != (None, None, None)

    @property
    def on(self) -> bool:
        return self.removes or self.compress_ns is not None
