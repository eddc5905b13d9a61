"""What a kernel log has now, read once for a check: the kernel's ring, the journal, or a log file."""

from __future__ import annotations

import os
import shutil
import subprocess
import time
from collections.abc import Callable
from dataclasses import replace
from datetime import UTC, datetime
from typing import Final

from unidle.clock import boottime_ns
from unidle.guard.log import NEEDLES, Finding, LogLine, Splitter, findings
from unidle.guard.log.model import SPEAKERS, from_ns
from unidle.probe.check.model import LogReading
from unidle.probe.kernel_log import KernelLog, since_ns, stamp_now_ns
from unidle.probe.kernel_syslog import KernelSyslog

_S: Final = 1_000_000_000
_DAY_NS: Final = 86_400 * _S
_NO_YEAR: Final = 1972
"""The year of stamps of syslog, which have none."""
_MOST_BYTES: Final = 64 << 20
"""A file that is larger is read from so many bytes before its end."""
_BLOCK_BYTES: Final = 1 << 18
_LIMIT_S: Final = 4.0  # the check has five

_Age = Callable[[], int]


def read_log(source: str, age_s: float | None = None, since_s: float | None = None) -> LogReading:
    """Faults of this boot, of the last ``age_s`` seconds, or from ``since_s`` seconds after boot on.

    ``source``: ``kmsg``, ``syslog``, ``journal``, or the path of a log file. The ring of the kernel is as long as it is. Lines of a file
    count by their date and time of day: a time since boot may be of another boot, or of another machine.
    """

    def age_ns() -> int:
        return int(age_s * _S) if age_s is not None else max(boottime_ns() - int((since_s or 0) * _S), 0)

    limited = age_s is not None or since_s is not None
    since = f"{age_ns() / _S:,.0f} s ago" if limited else ""
    if source in ("kmsg", "syslog"):
        begin = "an earlier boot 0"  # so it begins with the start of this one
        ring = KernelLog(begin) if source == "kmsg" else KernelSyslog(begin, every_s=0.0)
        return _ring(ring, age_ns if limited else None, since)
    if source == "journal":
        found, why_not = _journal()
        return LogReading(_dated(found, age_ns)[0] if limited else found, why_not, since)
    found, why_not = _file(source)
    dated, undated = _dated(found, age_ns)
    return LogReading(dated, why_not, since, undated)


def _ring(log: KernelLog | KernelSyslog, age_ns: _Age | None, since: str) -> LogReading:
    lines: list[LogLine] = []
    while batch := log.poll():
        lines += batch
    log.close()
    found = list(findings(lines))  # of all lines: a later one may follow from an earlier one
    if age_ns is None:
        return LogReading(found, log.why_not())
    stamps = [one.stamp_ns for one in found if one.stamp_ns is not None]
    limit_ns = since_ns(age_ns, stamps, time.monotonic_ns(), stamp_now_ns)
    return LogReading(from_ns(found, limit_ns), log.why_not(), since)


def _journal() -> tuple[list[Finding], str | None]:
    """Those of this boot, and why they could not be read."""
    command = shutil.which("journalctl")
    if command is None:
        return [], "journalctl is not installed; name kmsg or a log file"
    words = [command, "--boot", "--output=json", "--quiet", "--no-pager", "_TRANSPORT=kernel"]
    for speaker in sorted(SPEAKERS - {"systemd"}):
        words += ["+", f"SYSLOG_IDENTIFIER={speaker}"]
    try:
        done = subprocess.run(
            words, stdin=subprocess.DEVNULL, capture_output=True, timeout=_LIMIT_S, check=False
        )
    except subprocess.TimeoutExpired:
        return [], f"journalctl took more than {_LIMIT_S:.0f} s"
    if done.returncode:
        said = done.stderr.decode("utf-8", "replace").strip().splitlines() or [f"exit code {done.returncode}"]
        return [], f"journalctl: {said[-1]}"
    splitter = Splitter(needles=NEEDLES)
    return list(findings([*splitter.feed(done.stdout), *splitter.end()])), None


def _file(path: str) -> tuple[list[Finding], str | None]:
    """Those of a file, and why it could not be read. Nothing but a file is opened for longer than a look."""
    splitter = Splitter(needles=NEEDLES)
    lines: list[LogLine] = []
    try:
        fd = os.open(path, os.O_RDONLY | os.O_NONBLOCK | os.O_CLOEXEC | os.O_NOCTTY)
        try:
            at = max(os.fstat(fd).st_size - _MOST_BYTES, 0)
            while block := os.pread(fd, _BLOCK_BYTES, at):
                lines += splitter.feed(block)
                at += len(block)
        finally:
            os.close(fd)
    except OSError as error:
        return [], f"{path}: {error.strerror}; name a file that can be read"
    return list(findings([*lines, *splitter.end()])), None


def _dated(found: list[Finding], age_ns: _Age) -> tuple[list[Finding], int]:
    """Those that are not older, and how many have no date."""
    now_ns = time.time_ns()
    dated = [replace(one, stamp_ns=at) for one in found if (at := _date_ns(one, now_ns)) is not None]
    return from_ns(dated, now_ns - age_ns()), len(found) - len(dated)


def _date_ns(one: Finding, now_ns: int) -> int | None:
    """Its stamp in nanoseconds since 1970; None where that is no date. Without a year: the last such day."""
    if one.stamp_ns is None or one.clock not in ("wall", "local"):
        return None
    if one.clock == "wall":
        return one.stamp_ns
    date = datetime.fromtimestamp(one.stamp_ns // _S, UTC)
    if date.year == _NO_YEAR:
        year = datetime.fromtimestamp(now_ns // _S, UTC).year
        tries = (_in_year(date, year + ahead) for ahead in (1, 0, -1, -2, -3, -4))
        date = next(day for day in tries if day is not None and day.timestamp() * _S <= now_ns + _DAY_NS)
    local_s = int(date.timestamp())
    return (local_s - time.localtime(local_s).tm_gmtoff) * _S + one.stamp_ns % _S


def _in_year(date: datetime, year: int) -> datetime | None:
    """None for a February 29 in another year."""
    try:
        return date.replace(year=year)
    except ValueError:
        return None
