"""Which lines of the tree the program's main thread is in, by CPU time: counts by file and line, written at its end."""

from __future__ import annotations

import atexit
import json
import os
import signal
from collections import Counter
from pathlib import Path
from types import FrameType

PERIOD_S = 0.005


def install(path: str) -> None:
    """Sample until the end, and write ``[[file, line, samples]]``; the first row has no file, and all samples."""
    tree = f"{Path.cwd()}/"
    seen: Counter[tuple[str, int]] = Counter()
    pid = os.getpid()

    def sample(_signal: int, frame: FrameType | None) -> None:
        seen["", 0] += 1
        while frame is not None:
            name = frame.f_code.co_filename
            name = name if name.startswith("/") else tree + name
            if name.startswith(tree):
                seen[name[len(tree) :], frame.f_lineno] += 1
                return
            frame = frame.f_back

    def at_end() -> None:
        signal.setitimer(signal.ITIMER_PROF, 0)
        if os.getpid() == pid:
            with open(path, "w", encoding="utf-8") as file:
                json.dump([[name, line, count] for (name, line), count in seen.items()], file)

    signal.signal(signal.SIGPROF, sample)
    signal.setitimer(signal.ITIMER_PROF, PERIOD_S, PERIOD_S)
    atexit.register(at_end)
