"""Loads detectors that the fleet does not request after :data:`AFTER_S` seconds: a short run need not wait for them."""

from __future__ import annotations

import os
import time
from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Final

from unidle.events import types as ev
from unidle.fleet import Fleet
from unidle.fleet.policies import OVERLAY_VARIABLE
from unidle.view.state import View

if TYPE_CHECKING:
    from unidle.control.nodes.detectors import Detectors

AFTER_S: Final = 0.5


class LateDetectors:
    """Makes :class:`unidle.control.nodes.detectors.Detectors` late; at the start if the fleet requests them."""

    def __init__(self, fleet: Fleet, file: Path, offset_ns: int) -> None:
        self._made: Detectors | None = None
        self._arguments = fleet, file, offset_ns
        self._due_s = 0.0 if _asks(fleet) else AFTER_S
        self._begun_s = 0.0

    def start(self) -> None:
        self._begun_s = time.monotonic()
        if not self._due_s:
            self._make()

    def take(self, view: View, now_ns: int) -> Iterator[ev.Event]:
        """The events that follow from the findings since the last call. Apply each one before you take the next."""
        if self._made is None:
            if time.monotonic() - self._begun_s < self._due_s:
                return
            self._make()
        assert self._made is not None
        yield from self._made.take(view, now_ns)

    def close(self, *, logged: bool = False) -> None:
        if self._made is not None:
            self._made.close(logged=logged)

    def _make(self) -> None:
        from unidle.control.nodes.detectors import Detectors

        self._made = Detectors(*self._arguments)
        self._made.start()


def _asks(fleet: Fleet) -> bool:
    """Whether the fleet requests watching, or has parts that are watched by default, such as GPUs."""
    return bool(os.environ.get(OVERLAY_VARIABLE)) or any(
        node.watch is not None or node.netns or any(device.kind == "gpu" for device in node.devices)
        for node in fleet.nodes
    )
