"""What a reader of a log remembers of the lines before: faults per device, open events, the boot."""

from __future__ import annotations

from dataclasses import dataclass, field, replace
from typing import Final

from unidle.guard.log.header import LogEntry
from unidle.guard.log.model import Finding, Grade

NEAR_NS: Final = 60_000_000_000
"""How long a fault explains what comes after it on the same device."""
NEAR_LINES: Final = 500
"""The same where lines have no stamps that could be compared."""
_SLACK_NS: Final = 1_000_000_000  # processors print out of order by milliseconds
_DAY_NS: Final = 86_400_000_000_000
_MOST_DEVICES: Final = 4096  # more are not real: somebody feeds us made-up addresses


@dataclass(frozen=True, slots=True)
class Now:
    """The line that is being read."""

    line: int
    entry: LogEntry
    boot: int = 0

    def finding(
        self, kind: str, code: int | None, device: str, grade: Grade, because: str,
        cause: Finding | None = None, verdict: str = "",
    ) -> Finding:  # fmt: skip
        """A finding on this line, with its stamp."""
        entry, (role, action, severity, rank) = self.entry, grade
        return Finding(
            self.line, kind, code, device, role, action, because, severity, rank, entry.stamp_ns, entry.clock, self.boot,
            cause.line if cause else None, cause.code if cause else None, verdict,
        )  # fmt: skip


@dataclass(slots=True)
class Open:
    """An NVSwitch event whose further lines are still to come."""

    finding: Finding
    severities: int = 0
    data: int = 0


@dataclass(slots=True)
class Memory:
    """Everything that one line may need of earlier ones; forgotten when the machine boots."""

    boot: int = 0
    boot_id: str = ""
    boot_ns: int | None = None
    day_ns: int = 0  # of the last stamp that was a time of day only: the days before it in this log
    time_ns: int | None = None  # that stamp
    faults: dict[str, Finding] = field(default_factory=dict)  # by device: what explains most
    by_code: dict[int, Finding] = field(default_factory=dict)  # Xids: the last of each code
    lost: Finding | None = None
    uuids: dict[str, str] = field(default_factory=dict)
    switches: dict[tuple[str, int], Open] = field(default_factory=dict)
    named: str = ""  # the GPU of a message of several lines
    aliases: dict[str, str] = field(default_factory=dict)  # network interface to PCI address
    repeats: bool = False  # see Reader

    def dated(self, entry: LogEntry) -> LogEntry:
        """The entry; a time of day that went back is of the day after that of the line before."""
        if not entry.day_unknown or entry.stamp_ns is None:
            return entry
        if self.time_ns is not None and entry.stamp_ns + _SLACK_NS < self.time_ns:
            self.day_ns += _DAY_NS
        self.time_ns = entry.stamp_ns
        return replace(entry, stamp_ns=entry.stamp_ns + self.day_ns)

    def see(self, entry: LogEntry, boot_id: str) -> bool:
        """Take note of the boot: another id, or a clock since boot that went back, is a new one (and the answer)."""
        boot_id = boot_id or entry.boot
        back = (
            entry.boot_ns is not None
            and self.boot_ns is not None
            and entry.boot_ns + _SLACK_NS < self.boot_ns
        )
        new = bool(boot_id and self.boot_id and boot_id != self.boot_id) or (back and not boot_id)
        if new:
            self.restart()
        self.boot_id = boot_id or self.boot_id
        if entry.boot_ns is not None:
            self.boot_ns = entry.boot_ns
        return new

    def restart(self) -> None:
        """The machine booted: nothing before explains what follows."""
        self.boot += 1
        self.boot_ns, self.lost, self.named = None, None, ""
        for store in (self.faults, self.by_code, self.uuids, self.switches, self.aliases):
            store.clear()

    def fault(self, device: str, now: Now) -> Finding | None:
        """What went wrong on a device just before this line; empty ``device``: nothing."""
        for name in (device, self.aliases.get(device, "")):
            found = self.faults.get(name) if name else None
            if found is not None and near(found, now):
                return found
        return None

    def gone(self, now: Now) -> Finding | None:
        """A GPU that was lost just before this line, on whichever address."""
        return self.lost if self.lost is not None and near(self.lost, now) else None

    def keep(self, finding: Finding) -> None:
        """Remember a finding as an explanation for later ones."""
        if len(self.faults) > _MOST_DEVICES or len(self.switches) > _MOST_DEVICES:
            self.faults.clear()
            self.switches.clear()
        if finding.kind == "xid" and finding.code is not None and len(self.by_code) <= _MOST_DEVICES:
            self.by_code[finding.code] = finding
        if finding.role != "culprit":
            return
        if finding.kind == "gpu_lost" or (finding.kind == "xid" and finding.code == 79):
            self.lost = finding
        before = self.faults.get(finding.device)
        if finding.device and (before is None or finding.rank >= before.rank or not _close(before, finding)):
            self.faults[finding.device] = finding


def near(before: Finding, now: Now) -> bool:
    """Whether a finding is recent enough to explain the line."""
    entry = now.entry
    return _within(before, entry.stamp_ns, entry.clock, now.line)


def _close(before: Finding, after: Finding) -> bool:
    return _within(before, after.stamp_ns, after.clock, after.line)


def _within(before: Finding, stamp_ns: int | None, clock: str, line: int) -> bool:
    if before.stamp_ns is not None and stamp_ns is not None and before.clock == clock:
        return abs(stamp_ns - before.stamp_ns) <= NEAR_NS
    return line - before.line <= NEAR_LINES
