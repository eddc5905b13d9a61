"""Earlier readings of counters, so that "five in 24 hours" can be distinguished from "five since the last boot".

One small JSON file on the node; losing it costs a day of knowledge and nothing else.
"""

from __future__ import annotations

import contextlib
import fcntl
import json
import os
import time
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Final

_KEEP_S: Final = 25 * 3600
_SAMPLES: Final = 400  # of one counter; one in a few minutes is plenty


@dataclass(frozen=True, slots=True)
class CounterSample:
    """Counters at ``at_s`` (seconds since boot, CLOCK_BOOTTIME) of one boot."""

    at_s: float
    counts: Mapping[str, int]


@dataclass(frozen=True, slots=True)
class WindowCount:
    """How many of something there were in a window; ``whole`` when the window is covered by readings or by the boot."""

    count: float
    whole: bool
    says: str


@dataclass(frozen=True, slots=True)
class CounterHistory:
    """Readings of this boot, oldest first."""

    boot: str
    samples: tuple[CounterSample, ...] = field(default=())

    def within(self, name: str, now: int, at_s: float, window_s: float) -> WindowCount:
        """How often the counter ``name`` (now ``now``) went up in the last ``window_s``. Pure."""
        if at_s <= window_s or now == 0:
            return WindowCount(now, True, "since boot")
        base: CounterSample | None = None
        for sample in self.samples:
            if sample.counts.get(name, now + 1) > now:  # not read then, or the counter began from the start
                continue
            if base is None or sample.at_s <= at_s - window_s:
                base = sample
        if base is not None and base.at_s <= at_s - window_s + 3600:
            return WindowCount(now - base.counts[name], True, f"in {(at_s - base.at_s) / 3600:.0f} h")
        recent = now - base.counts[name] if base is not None else 0
        mean = now * window_s / at_s
        says = f"{now} since boot {at_s / 86400:.1f} days ago, no reading of {window_s / 3600:.0f} h ago"
        return WindowCount(max(recent, mean), False, says)

    def added(self, at_s: float, counts: Mapping[str, int]) -> CounterHistory:
        """With one more reading, without those that no window reaches. Pure."""
        kept = [s for s in self.samples if at_s - _KEEP_S <= s.at_s <= at_s]
        if len(kept) >= _SAMPLES:
            kept = kept[:1] + kept[2::2]
        return CounterHistory(self.boot, (*kept, CounterSample(at_s, dict(counts))))


def boot_id(proc: Path) -> str:
    try:
        return (proc / "sys/kernel/random/boot_id").read_text().strip()
    except OSError:
        return ""


def uptime_s() -> float:
    return time.clock_gettime(time.CLOCK_BOOTTIME)


@contextlib.contextmanager
def kept(path: Path | None, part: str, proc: Path) -> Iterator[list[CounterHistory]]:
    """The history of one probe as a list of one; what the body puts there is written back.

    A file that cannot be read or written is as if there were none.
    """
    boot = boot_id(proc)
    if path is None:
        yield [CounterHistory(boot)]
        return
    own = path.with_name(f"{path.name}.{part}")
    try:
        own.parent.mkdir(parents=True, exist_ok=True)
        fd = os.open(own, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o644)
    except OSError:
        yield [CounterHistory(boot)]
        return
    with open(fd, "r+", encoding="utf-8") as file:
        fcntl.flock(file, fcntl.LOCK_EX)
        before = _parsed(file.read(1 << 22), boot)
        held = [before]
        yield held
        if held[0] is not before:
            samples = [[s.at_s, dict(s.counts)] for s in held[0].samples]
            with contextlib.suppress(OSError):
                file.seek(0)
                file.truncate()
                file.write(json.dumps({"boot": boot, "samples": samples}))


def _parsed(text: str, boot: str) -> CounterHistory:
    try:
        found = json.loads(text)
        if found["boot"] != boot:
            return CounterHistory(boot)
        samples = tuple(
            CounterSample(float(at), {str(k): int(v) for k, v in c.items()}) for at, c in found["samples"]
        )
    except (ValueError, TypeError, KeyError, AttributeError):
        return CounterHistory(boot)
    return CounterHistory(boot, samples)
