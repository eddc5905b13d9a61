"""This boot of the machine: its name, and the time since. The standard library alone: supervisors and boxes import it."""

from __future__ import annotations

import time


def boot_id() -> str:
    """Names this boot of the machine (process ids of another boot mean nothing); empty if unknown."""
    try:
        with open("/proc/sys/kernel/random/boot_id", encoding="ascii") as file:
            return file.read().strip()
    except OSError:
        return ""


def boottime_ns() -> int:
    """Nanoseconds since boot, suspend included (CLOCK_BOOTTIME)."""
    return time.clock_gettime_ns(time.CLOCK_BOOTTIME)
