"""Continuous profiles of the ranks on this host, which its controller orders and keeps."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import Any, Final

import msgspec

from unidle import wire
from unidle.agent.held_ranks import Key
from unidle.events import types as ev
from unidle.fleet.policies import ProfilePolicy
from unidle.scope.continuous.process import ProfilerOrders, ProfilerProcess

ERRORS: Final = "profiler.err"
_FRAME_BYTES: Final = wire.FRAME_BYTES - 4096


class ProfilingOrder(msgspec.Struct, frozen=True):
    """Profile the ranks on this host from now on."""

    policy: ProfilePolicy


class ContinuousProfiles:
    """Of ranks of the boxes below ``root``, each with the run root ``runs``. Times are of this host's CLOCK_BOOTTIME.

    A profiler process runs from the first rank on after :meth:`order`. It has nothing to do after :meth:`lost`, until it
    is ordered again: the profiles of one controller are not for the next one.
    """

    def __init__(self, root: Path, runs: str) -> None:
        self._root, self._runs = root, runs
        self._policy: ProfilePolicy | None = None
        self._process: ProfilerProcess | None = None
        self._on = False

    def order(self, body: dict[str, Any]) -> None:
        """Errors: msgspec.ValidationError."""
        policy = msgspec.convert(body, ProfilingOrder).policy
        if self._process is None or policy != self._policy:
            self.close()
            orders = ProfilerOrders("", str(self._root), 0, 0, policy, self._runs)
            self._process = ProfilerProcess(orders, self._root.parent / ERRORS)
            self._policy = policy
        self._on = True

    def follow(self, live: Iterable[Key]) -> None:
        """Attempts that have ranks here now."""
        if self._process is not None:
            found = tuple((job, attempt, 0) for job, attempt in sorted(live)) if self._on else ()
            self._process.attend(found)

    def take(self) -> Iterator[dict[str, Any]]:
        """Bodies of ``seen what=profiling`` that are to be sent now."""
        if self._process is None:
            return
        for event in self._process.found():
            kind, body = ev.encode(event)
            yield {"kind": kind, "event": msgspec.json.decode(body)}
        for row in self._process.rows():
            told = msgspec.to_builtins(row._asdict())
            if len(told["body"]) <= _FRAME_BYTES:
                yield {"row": told}

    def lost(self) -> None:
        """The connection is over."""
        self._on = False
        self.follow(())

    def close(self) -> None:
        if self._process is not None:
            self._process.close()
            self._process = None
