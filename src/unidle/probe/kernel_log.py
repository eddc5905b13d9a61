"""Follows ``/dev/kmsg``: the kernel's own ring of records, each with a sequence number that starts again at every boot."""

from __future__ import annotations

import errno
import os
import secrets
import time
from collections.abc import Callable, Iterable
from pathlib import Path
from typing import Final

from unidle.guard.log import LogLine

_RECORD_BYTES: Final = 8192  # the kernel gives one record per read, and none is larger
_EARLY_US: Final = 50_000  # the kernel's stamps are of another clock, which runs a little otherwise
_BOOT_ID: Final = "/proc/sys/kernel/random/boot_id"


_SLEW: Final = (
    2000  # a clock is adjusted by 500 ppm at most, so it gains or loses 1/2000 of the time since boot
)
_BASE_NS: Final = 1_000_000_000  # the two clocks do not begin at the same moment of the boot
_MARK_READS: Final = 100


def since_ns(
    age_ns: Callable[[], int], stamps: Iterable[int], now_ns: int, exact_now_ns: Callable[[], int]
) -> int:
    """The stamp of a line of the kernel's log that is ``age_ns()`` old.

    ``now_ns``: CLOCK_MONOTONIC, which is adjusted by time servers; the clock of the log is not. ``exact_now_ns`` gives
    the time of the log's clock. It is called only if one of the ``stamps`` is so near that the difference can matter.
    The age is asked after the time, so that a pause between them makes lines count that are a little older, and never
    leaves out a newer one.
    """
    since = now_ns - age_ns()
    doubt = now_ns // _SLEW + _BASE_NS
    if any(abs(stamp - since) <= doubt for stamp in stamps):
        now_ns = exact_now_ns()
        return now_ns - age_ns()
    return since


def stamp_now_ns(path: str = "/dev/kmsg") -> int:
    """Now, by the clock of the kernel's log: the stamp of a line of level debug that is written for it.

    Where this process may not write or read it: CLOCK_MONOTONIC.
    """
    mark = f"unidle: reads the clock of this log ({secrets.token_hex(8)})".encode()
    try:
        fd = os.open(path, os.O_RDWR | os.O_NONBLOCK | os.O_CLOEXEC | os.O_NOCTTY)
    except OSError:
        return time.monotonic_ns()
    try:
        os.lseek(fd, 0, os.SEEK_END)
        os.write(
            fd, b"<15>" + mark + b"\n"
        )  # level debug: not shown on consoles; readable once its line has ended
        for _ in range(_MARK_READS):
            record = os.read(fd, _RECORD_BYTES)
            if mark in record:
                return _numbers(record)[1] * 1000
    except OSError:
        pass
    finally:
        os.close(fd)
    return time.monotonic_ns()


def boot_id(path: str = _BOOT_ID) -> str:
    """The name that the kernel gave to this boot; empty where it does not say."""
    try:
        return Path(path).read_text().strip()
    except OSError:
        return ""


class KernelLog:
    """A :class:`~unidle.probe.log_watch.LogSource` on ``/dev/kmsg``.

    Without a ``position`` it starts with new records. With a position of this boot it continues after it; with one of
    an earlier boot it reads all records of this boot. ``lost`` counts records that the ring buffer dropped before they
    were read.
    """

    name = "/dev/kmsg"

    def __init__(self, position: str = "", *, most: int = 5000, path: str = "/dev/kmsg") -> None:
        self.lost = 0
        self._path = path
        self._most = most
        self._boot = boot_id()
        self._fd = -1
        self._number = 0
        self._why: str | None = None
        boot, _, sequence = position.rpartition(" ")
        self._last = int(sequence) if sequence.isdigit() and boot == self._boot else -1
        self._after_us = (
            int(sequence[1:]) if sequence[1:].isdigit() and boot == self._boot and sequence[0] == "@" else 0
        )
        self._from_now = not position
        self._known = self._last >= 0
        self._open()

    def _open(self) -> None:
        try:
            self._fd = os.open(self._path, os.O_RDONLY | os.O_NONBLOCK | os.O_CLOEXEC)
            if self._from_now:
                os.lseek(self._fd, 0, os.SEEK_END)
                self._after_us = time.clock_gettime_ns(time.CLOCK_MONOTONIC) // 1000
        except OSError as error:
            self._why = f"{self._path}: {error.strerror}; run as root or with CAP_SYSLOG"
            self.close()
            return
        self._why = None
        self._from_now = False

    def poll(self) -> list[LogLine]:
        if self._fd < 0:
            self._open()
        lines: list[LogLine] = []
        while self._fd >= 0 and len(lines) < self._most:
            try:
                record = os.read(self._fd, _RECORD_BYTES)
            except BlockingIOError:
                break
            except OSError as error:
                if (
                    error.errno == errno.EPIPE
                ):  # the ring went round: the next read gives the oldest that is left
                    continue
                self._why = f"{self._path}: {error.strerror}"
                self.close()
                break
            if not record:
                break
            self._take(record, lines)
        return lines

    def _take(self, record: bytes, lines: list[LogLine]) -> None:
        text = record.split(b"\n", 1)[0]  # what follows are the record's properties
        sequence, stamp_us = _numbers(text)
        if sequence < 0 or (self._known and sequence <= self._last):
            return
        if not self._known and stamp_us + _EARLY_US < self._after_us:
            return
        if self._known and sequence > self._last + 1:
            self.lost += sequence - self._last - 1
        self._last, self._known = sequence, True
        self._number += 1
        lines.append(LogLine(self._number, text.replace(b"\0", b""), self._boot))

    def why_not(self) -> str | None:
        return self._why

    def position(self) -> str:
        if self._known:
            return f"{self._boot} {self._last}"
        return f"{self._boot} @{self._after_us}" if self._after_us else ""

    def news_fd(self) -> int:
        return self._fd

    def close(self) -> None:
        if self._fd >= 0:
            os.close(self._fd)
            self._fd = -1


def _numbers(record: bytes) -> tuple[int, int]:
    """A record's sequence number and its timestamp in microseconds since boot; -1 for both if it has none."""
    fields = record.split(b";", 1)[0].split(b",")
    if len(fields) < 3 or not (fields[1].isdigit() and fields[2].isdigit()):
        return -1, -1
    return int(fields[1]), int(fields[2])
