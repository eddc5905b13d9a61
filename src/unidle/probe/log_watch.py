"""Follows the kernel log of one node and reads findings from it, with bounded work also when it floods."""

from __future__ import annotations

import json
import re
import time
from collections import deque
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Final, Protocol

from unidle.fleet.pci import read_text
from unidle.guard.log.model import Finding, LogLine
from unidle.probe.detector import Detection
from unidle.probe.device_names import DeviceNames

if TYPE_CHECKING:
    from unidle.guard.log.reader import Reader
    from unidle.probe.followed_file import End


class LogSource(Protocol):
    """A log that grows. ``poll`` never waits. If it cannot read, :meth:`why_not` has the reason; the next poll retries."""

    @property
    def name(self) -> str:
        """What is read, in words: ``/dev/kmsg``, ``journal``, a path."""
        ...

    @property
    def lost(self) -> int:
        """How many records (of a file: bytes) were dropped because they came faster than they were read."""
        ...

    def poll(self) -> list[LogLine]:
        """The lines since the last poll, at most so many that memory stays bounded; more of them with the next poll."""
        ...

    def why_not(self) -> str | None:
        """Why nothing can be seen now, and what would help; None while the log can be read."""
        ...

    def position(self) -> str:
        """Where the next poll continues. Keep it and give it to the next instance: then nothing is read twice."""
        ...

    def news_fd(self) -> int:
        """A file descriptor that becomes readable when a poll would give lines; -1 without one."""
        ...

    def close(self) -> None:
        """Give back what is open."""
        ...


LOG: Final = "kernel log"
MOST_LINES: Final = 500
"""Lines that may be findings, of one look; more are passed over and counted."""
_BACKLOG_BYTES: Final = (
    4 << 20
)  # what is behind is skipped: a fault that comes now counts more than an old line
_FLOOD_NS: Final = 10_000_000_000
_STAMPS_KEPT: Final = 512
_DAY_NS: Final = 86_400_000_000_000
_SLACK_NS: Final = 5_000_000_000
_PID: Final = re.compile(rb"\bpid='?(\d{1,9})")
_TEXT_CHARS: Final = 300
_ANCESTORS: Final = 16


def source_of(kernel_log: str, position: str, end: End | None = None) -> LogSource:
    """The source that a fleet file names; without a name this machine's own: its ring, else its journal."""
    if kernel_log in ("", "kmsg"):
        from unidle.probe.kernel_log import KernelLog

        ring = KernelLog(position, most=5000)
        if kernel_log or ring.why_not() is None:
            return ring
        ring.close()
    if kernel_log in ("", "journal"):
        from unidle.probe.journal import JournalSource

        return JournalSource(position)
    if kernel_log == "syslog":
        from unidle.probe.kernel_syslog import KernelSyslog

        return KernelSyslog(position)
    from unidle.guard.log import NEEDLES
    from unidle.probe.followed_file import FollowedFile

    return FollowedFile(
        kernel_log,
        position,
        most_bytes=_BACKLOG_BYTES,
        backlog_bytes=_BACKLOG_BYTES,
        needles=NEEDLES,
        end=end,
    )


class LogWatch:
    """A :class:`~unidle.probe.detector.FaultDetector` on a kernel log.

    ``names`` maps what the log calls a device to the fleet's; ``offset_ns`` turns this machine's boot-time clock into the
    log's (the store's) time; ``end`` is where a file without a kept position is read from. An event that
    the log repeats (a boot, a rewritten file) is reported once.
    """

    def __init__(
        self,
        node: str,
        kernel_log: str,
        names: DeviceNames,
        kept: str,
        offset_ns: int,
        end: End | None = None,
    ) -> None:
        told = _kept(kept)
        self._node, self._names, self._offset_ns = node, names, offset_ns
        source, position = told.get("source", ""), told.get("position", "")
        self._source = source_of(kernel_log, str(position) if source else "", end)
        if source and source != self._source.name:
            self._source.close()
            self._source = source_of(kernel_log, "", end)
        self._own = kernel_log in ("", "kmsg", "journal", "syslog")
        stamps = told.get("stamps")
        self._stamps = deque((str(s) for s in stamps) if isinstance(stamps, list) else (), _STAMPS_KEPT)
        self._reader: Reader | None = None
        self._has_stamps = False
        self._passed, self._lost_before, self._flood_ns, self._number = 0, 0, 0, 0

    def look(self, now_ns: int) -> list[Detection]:
        found = []
        lines = self._likely(self._source.poll())
        over = len(lines) - MOST_LINES
        if over > 0:
            del lines[MOST_LINES:]
            self._passed += over
        lost = self._source.lost + self._passed
        if lost > self._lost_before:
            self._flood_ns = now_ns
        elif now_ns - self._flood_ns > _FLOOD_NS:
            self._flood_ns = 0
        self._lost_before = lost
        for line in lines:
            if self._reader is None:
                from unidle.guard.log.reader import Reader

                self._reader = Reader(repeats=True)
            finding = self._reader.consider(self._stamped(line, now_ns))
            if finding is not None and (detection := self._detection(line, finding, now_ns)) is not None:
                found.append(detection)
        return found

    def _stamped(self, line: LogLine, now_ns: int) -> LogLine:
        """The line; one of a log without any stamps gets the time it was read: what is near to what depends on it."""
        from unidle.guard.log.header import parse

        self._has_stamps = self._has_stamps or parse(line.data).stamp_ns is not None
        if self._has_stamps:
            return line
        seconds, rest_ns = divmod(now_ns - self._offset_ns, 1_000_000_000)
        return replace(line, data=b"[%d.%06d] " % (seconds, rest_ns // 1000) + line.data)

    def _likely(self, lines: list[LogLine]) -> list[LogLine]:
        if not lines:
            return lines
        from unidle.guard.log import NEEDLES

        return [line for line in lines if any(needle in line.data for needle in NEEDLES)]

    def _detection(self, line: LogLine, finding: Finding, now_ns: int) -> Detection | None:
        from unidle.guard.log.header import parse

        entry = parse(line.data)
        stamp = ""
        if (
            entry.boot_ns is not None
        ):  # to the microsecond: no two events of one kind and device have the same
            stamp = (
                f"{finding.kind} {finding.code} {finding.device} {entry.boot_ns} {line.boot or entry.boot}"
            )
            if stamp in self._stamps:
                return None
            self._stamps.append(stamp)
        named = _PID.search(line.data)
        return Detection(
            self._node, LOG, self._names.device(finding.device), finding, self._onset_ns(finding, now_ns), now_ns,
            self._source.name, stamp, above(int(named[1])) if named else (), entry.message[:_TEXT_CHARS],
        )  # fmt: skip

    def _onset_ns(self, finding: Finding, now_ns: int) -> int:
        """The line's own time if it is plausible (not in the future, and of a known clock); else ``now_ns``."""
        stamp_ns = finding.stamp_ns
        if stamp_ns is None:
            return now_ns
        if finding.clock == "boot":
            if not self._own:
                return now_ns  # some machine's clock since some boot
            stamp_ns += self._offset_ns
        elif finding.clock == "local":
            stamp_ns -= time.localtime(stamp_ns // 1_000_000_000).tm_gmtoff * 1_000_000_000
        late_ns = now_ns - stamp_ns
        return min(stamp_ns, now_ns) if -_SLACK_NS <= late_ns <= _DAY_NS else now_ns

    def seeing(self) -> tuple[str, int]:
        why_not = self._source.why_not()
        if why_not is None and self._flood_ns:
            why_not = f"{self._source.name}: lines came faster than they were read; some were skipped"
        return why_not or "", self._lost_before

    def keep(self) -> str:
        told = {
            "source": self._source.name,
            "position": self._source.position(),
            "stamps": list(self._stamps),
        }
        return json.dumps(told)

    def news_fd(self) -> int:
        return self._source.news_fd()

    def close(self) -> None:
        self._source.close()


def _kept(text: str) -> dict[str, object]:
    try:
        told = json.loads(text) if text else {}
    except ValueError:
        return {}
    return told if isinstance(told, dict) else {}


def above(pid: int) -> tuple[int, ...]:
    """A process and those above it, as far as they are there; empty where it is gone."""
    found: list[int] = []
    while pid > 1 and len(found) < _ANCESTORS:
        stat = read_text(Path(f"/proc/{pid}/stat"))
        if not stat:
            break
        found.append(pid)
        fields = stat[stat.rfind(")") + 2 :].split()
        pid = int(fields[1]) if len(fields) > 1 and fields[1].isdigit() else 0
    return tuple(found)
