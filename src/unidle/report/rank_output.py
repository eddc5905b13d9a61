"""Where a report gets what ranks printed: given by who makes it, as ranks may be on other machines."""

from __future__ import annotations

from typing import Protocol

from unidle.view.jobs import JobView


class NoOutput(Exception):
    """There is nothing to show of a rank's output. The text is the reason, as it stands in the report."""


class RankOutput(Protocol):
    """What the ranks of jobs printed."""

    def end(self, job: JobView, attempt: int, rank: int, most_bytes: int) -> tuple[bytes, int]:
        """The last bytes that a rank printed, and how many its file has. Errors: :class:`NoOutput`."""

    def fills(self, job: JobView) -> bytes:
        """What fillers did in the waits of its ranks, as lines of JSON; empty without fillers, or where that is not known here."""


class UnknownOutput:
    """Of ranks on a machine that is not known here."""

    def end(self, job: JobView, attempt: int, rank: int, most_bytes: int) -> tuple[bytes, int]:  # noqa: ARG002
        raise NoOutput("the output of its ranks is on another machine")

    def fills(self, job: JobView) -> bytes:  # noqa: ARG002
        return b""
