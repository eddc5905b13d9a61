"""What ``unidle profile`` shows while it looks, and names that are safe to show."""

from __future__ import annotations

import os
import re
import signal
import sys
import time
from collections.abc import Callable
from types import FrameType, TracebackType
from typing import Final, Self

from unidle.cli.common import printable

_WIDTH: Final = 24
_COLOUR: Final = re.compile(r"(\x1b\[[0-9;]*m)")
_EVERY_S: Final = 0.2


class LiveLine:
    """A line on a terminal while a look lasts. The first Ctrl-C ends the look early, a second one the program."""

    def __init__(self, seconds: float) -> None:
        self._seconds = seconds
        self._shown = sys.stderr.isatty() and os.environ.get("TERM") != "dumb"
        self._started = self._last = time.monotonic()
        self._stopped = False
        self._before: Callable[[int, FrameType | None], object] | int | None = None

    def __enter__(self) -> Self:
        self._before = signal.signal(signal.SIGINT, self._stop)
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, at: TracebackType | None
    ) -> None:
        signal.signal(signal.SIGINT, self._before)
        if self._shown:
            sys.stderr.write("\r\x1b[K")
            sys.stderr.flush()

    def goes_on(self) -> bool:
        """Called now and then during the look; False after Ctrl-C."""
        now = time.monotonic()
        if self._shown and now - self._last >= _EVERY_S:
            self._last = now
            done = min((now - self._started) / self._seconds, 1.0)
            bar = ("█" * round(done * _WIDTH)).ljust(_WIDTH, "░")
            sys.stderr.write(
                f"\r{bar} {now - self._started:.0f} of {self._seconds:g} s, Ctrl-C shows what was seen so far"
            )
            sys.stderr.flush()
        return not self._stopped

    def _stop(self, *_: object) -> None:
        if self._stopped:
            raise KeyboardInterrupt
        self._stopped = True


def safe(line: str) -> str:
    """Without control characters, except colours: names of functions and threads are not ours, and may hold anything."""
    return "".join(part if _COLOUR.fullmatch(part) else printable(part) for part in _COLOUR.split(line))
