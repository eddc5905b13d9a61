"""Signs of faults of this host, as the detectors of ``unidle.probe`` find them, for the controller to judge."""

from __future__ import annotations

import os
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any, Final

import msgspec

from unidle.fleet import Node
from unidle.fleet.policies import OVERLAY_VARIABLE
from unidle.probe.detector import Detection, DetectorStatus
from unidle.probe.file_system_use import used_at
from unidle.probe.node_detectors import OWN_LOGS

_IN_FRAME: Final = 100
_MOST_WAITING: Final = 1000


class Signs:
    """Runs the detectors of a node, each in a thread of its own. Times are of this host's CLOCK_BOOTTIME.

    Signs are kept until :meth:`received`, so that a connection that breaks loses none; some may be sent twice, with
    the same ``stamp``. ``file`` keeps how far each source was read.
    """

    def __init__(self, node: Node, file: Path) -> None:
        from unidle.engine.local.ranks.netns import enter
        from unidle.probe.node_detectors import detectors_of
        from unidle.probe.watcher import Watcher

        self._place = file.parent
        overlay = os.environ.get(OVERLAY_VARIABLE, "")
        self._watcher = Watcher(tuple(detectors_of(node, 0, enter, overlay=overlay, only=True)), file, 0)
        self._waiting: list[Detection] = []  # not sent, or not known to have been received
        self._sent = 0  # of these
        self._statuses: dict[str, DetectorStatus] = {}
        self._told: dict[str, DetectorStatus] = {}
        self._watcher.start()

    def take(self) -> Iterator[dict[str, Any]]:
        """Bodies of ``seen what=signs`` that are to be sent now."""
        if len(self._waiting) < _MOST_WAITING:  # else they stay where they were found
            found, statuses = self._watcher.take(logged=not self._waiting)
            self._waiting += [self._judged(one) for one in found]
            self._statuses = {one.detector: one for one in statuses}
        new = self._waiting[self._sent :]
        self._sent = len(self._waiting)
        changed = [one for name, one in self._statuses.items() if self._told.get(name) != one]
        self._told = dict(self._statuses)
        while new or changed:
            yield {
                "detections": [msgspec.to_builtins(one) for one in new[:_IN_FRAME]],
                "statuses": [msgspec.to_builtins(one) for one in changed],
            }
            new, changed = new[_IN_FRAME:], []

    def _judged(self, one: Detection) -> Detection:
        """Whether anything uses a file system that failed can be seen on this host alone."""
        if one.finding.kind != "fs" or one.source not in OWN_LOGS:
            return one
        return replace(one, unused=not used_at(one.finding.device, (str(self._place),)))

    def lost(self) -> None:
        """The connection broke: all that was not received is sent again, and what the detectors can see."""
        self._sent, self._told = 0, {}

    @property
    def sent(self) -> int:
        """How many signs were sent and are not known to have been received."""
        return self._sent

    def received(self, count: int) -> None:
        """The hub has the first ``count`` of these."""
        del self._waiting[:count]
        self._sent -= count

    def close(self) -> None:
        """End the threads."""
        self._watcher.close(logged=not self._waiting)
