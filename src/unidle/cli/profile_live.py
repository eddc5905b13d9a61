"""What ``unidle profile`` shows while it looks, and the lines of code next to what it found."""

from __future__ import annotations

import os
import re
import signal
import sys
import time
from collections.abc import Callable
from pathlib import Path
from types import FrameType, TracebackType
from typing import Final, Self

from unidle.cli.common import printable
from unidle.scope.model import Profile

_WIDTH: Final = 24
_COLOUR: Final = re.compile(r"(\x1b\[[0-9;]*m)")
_EVERY_S: Final = 0.2
_LONGEST_FILE: Final = 4 << 20


class Progress:
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


def line_of_source(profile: Profile) -> Callable[[str, int], str | None]:
    """Reads lines of the code that runs, as the processes see their files (they may be in a container)."""
    files: dict[str, list[str]] = {}
    pids = [process.pid for process in profile.processes]

    def line(file: str, number: int) -> str | None:
        if file not in files:
            files[file] = _lines(file, pids)
        lines = files[file]
        return lines[number - 1] if 0 < number <= len(lines) else None

    return line


def safe(line: str) -> str:
    """Without control characters, except colours: names of functions and threads are not ours, and may hold anything."""
    return "".join(part if _COLOUR.fullmatch(part) else printable(part) for part in _COLOUR.split(line))


def _lines(file: str, pids: list[int]) -> list[str]:
    """A relative name is relative to where the process is, which it may have been when it started."""
    places = [Path(f"/proc/{pid}/root{file}") for pid in pids if file.startswith("/")]
    places += [Path(f"/proc/{pid}/cwd/{file}") for pid in pids if not file.startswith("/")]
    for place in [*places[:8], *([Path(file)] if file.startswith("/") else [])]:
        try:
            if place.is_file() and place.stat().st_size <= _LONGEST_FILE:
                return place.read_text("utf-8", "replace").splitlines()
        except OSError:
            continue
    return []
