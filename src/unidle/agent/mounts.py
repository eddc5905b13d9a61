"""Whether the file servers that hold the directories of jobs on this host respond, for the controller to judge."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Annotated, Any, Final

import msgspec

from unidle.probe.mount_watch import MountWatch

LATE_NS: Final = 9_000_000_000
"""A request that takes longer is reported: a second before it counts as a stall."""
_LOOK_EVERY_NS: Final = 500_000_000
_Path = Annotated[str, msgspec.Meta(max_length=1024, pattern=r"\A/[^\0]*\Z")]


class MountOrder(msgspec.Struct, frozen=True):
    """Body of ``run what=mounts``: directories of the jobs that have ranks here, absolute."""

    paths: Annotated[tuple[_Path, ...], msgspec.Meta(max_length=512)]


class Mounts:
    """``locks``: see :class:`unidle.probe.mount_watch.MountWatch`. Times are of this host's CLOCK_BOOTTIME."""

    def __init__(self, locks: Path) -> None:
        self._watch = MountWatch(locks)
        self._paths: tuple[str, ...] = ()
        self._next_ns = 0
        self._body: dict[str, Any] | None = None
        self._reported: dict[str, Any] | None = None

    def order(self, body: dict[str, Any]) -> None:
        """From now on these directories. Errors: msgspec.ValidationError."""
        self._paths = msgspec.convert(body, MountOrder).paths
        self._reported = None

    def take(self, now_ns: int, *, connected: bool) -> Iterator[dict[str, Any]]:
        """The body of ``seen what=mounts``, where it is another one than before. Never waits."""
        if now_ns >= self._next_ns:
            self._next_ns = now_ns + _LOOK_EVERY_NS
            asked = self._watch.look(self._paths, now_ns)
            found = [
                {"path": path, "mount": list(mount), "since_ns": late, "error": state.error if late else 0}
                for path, (mount, state) in sorted(asked.items())
                for late in (_late(state.since_ns, now_ns),)
            ]
            self._body = {"mounts": found, "why_not": self._watch.why_not()}
        if connected and self._body is not None and self._body != self._reported:
            self._reported = self._body
            yield self._body

    def lost(self) -> None:
        """The connection broke: the state is reported again."""
        self._reported = None

    def close(self) -> None:
        self._watch.close()


def _late(since_ns: int | None, now_ns: int) -> int | None:
    return since_ns if since_ns is not None and now_ns - since_ns >= LATE_NS else None
