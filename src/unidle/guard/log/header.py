"""What precedes the message of a log line: priority, stamp, host, program, in every form that tools print.

The forms: ``dmesg`` (plain, -T, -r, -x, -d, -e, iso, with caller), records of ``/dev/kmsg``, syslog (BSD, ISO and RFC 5424),
``journalctl`` (short forms, JSON), ``grep -H``. The result is the message, and whether it is from the kernel.
"""

from __future__ import annotations

import json
import re
from calendar import monthrange, timegm
from dataclasses import dataclass
from typing import Any, Final

from unidle.guard.log.model import Clock

MONTHS: Final = {
    name: k + 1
    for k, name in enumerate(
        ("jan", "feb", "mar", "apr", "may", "jun", "jul", "aug", "sep", "oct", "nov", "dec")
    )
}
_S: Final = 1_000_000_000


def seconds_ns(text: str) -> int:
    """``219.471050`` seconds in nanoseconds, without a float between."""
    whole, _, part = text.partition(".")
    return int(whole) * _S + int((part + "000000000")[:9])


def wall_ns(year: int, month: int, day: int, clock: str, fraction: str = "", zone: str = "") -> int | None:
    """A date and ``HH:MM:SS`` in nanoseconds since 1970; None where there is no such date.

    ``zone``: ``Z``, ``+05:30``, ``-0800``; without one the clock is taken as it stands.
    """
    hour, minute, second = (int(part) for part in clock.split(":"))
    if not (1970 <= year <= 9999 and 1 <= month <= 12 and hour < 24 and minute < 60 and second < 61):
        return None
    if not 1 <= day <= monthrange(year, month)[1]:
        return None
    seconds = timegm((year, month, day, hour, minute, second, 0, 0, 0))
    return (seconds - _offset_s(zone)) * _S + int((fraction + "000000000")[:9] or 0)


def _offset_s(zone: str) -> int:
    """Seconds east of Greenwich."""
    digits = zone[1:].replace(":", "")
    if len(digits) != 4 or zone[0] not in "+-":
        return 0
    ahead = int(digits[:2]) * 3600 + int(digits[2:]) * 60
    return ahead if zone[0] == "+" else -ahead


_FACILITIES: Final = "kern|user|mail|daemon|auth|syslog|lpr|news|uucp|cron|authpriv|ftp|local[0-7]"
_LEVELS: Final = "emerg|alert|crit|err|error|warn|warning|notice|info|debug"
_ZONE: Final = r"Z|[+-]\d\d:?\d\d|\s?UTC"
_ZONE_NAME: Final = r"(?:\s(?:UTC|[A-Z]{1,3}T)(?=[\s\]]))?"

_ANSI: Final = re.compile(r"\x1b\[[0-9;]*[A-Za-z]")
_GREP: Final = re.compile(
    r"/var/log/[\w./-]*?(?:log|syslog|messages|dmesg)(?:\.\d+)?[:-](?:\d+[:-])?\s*(?=\S)"
)
_KMSG: Final = re.compile(r"(\d{1,4}),(\d+),(\d+),[^;\s]{1,80};")
_PRIORITY: Final = re.compile(r"<\d{1,3}>")
_RFC5424: Final = re.compile(
    rf"1 (\d{{4}}-\d\d-\d\dT\d\d:\d\d:\d\d(?:\.\d+)?(?:{_ZONE})|-) (\S+) (\S+) (\S+) \S+ (?:-|\[.*?\]) "
)
_LEVEL: Final = re.compile(rf"(?:{_FACILITIES})\s*:\s*(?:{_LEVELS})\s*:\s*")
_BOOT: Final = re.compile(r"\[\s*(\d+\.\d{1,9})(?:\s+<\s*[\d.]+>)?\]\s?")
_CALLER: Final = re.compile(r"\[\s*[TC]\d+\]\s?")
_DELTA: Final = re.compile(r"\[(?:\s*[+<]\s*\d+\.\d+>?|\.\.\.|[A-Z][a-z]{2}\s?\d{1,2} \d\d:\d\d)\]\s?")
_CTIME: Final = re.compile(
    r"(\[?)(?:\w{3},?\s+)?([^\W\d_]{3})\s+(\d{1,2})\s+(\d\d:\d\d:\d\d)(?:\.\d+)?\s+(\d{4})"
    rf"{_ZONE_NAME}(\]?)\s?"
)
_FABRIC: Final = re.compile(r"\[(\w{3}) (\d\d) (\d{4}) (\d\d:\d\d:\d\d)\]\s*(?=\[)")
_ISO: Final = re.compile(
    rf"\[?(?:\w{{3}}\s)?(\d{{4}})-(\d\d)-(\d\d)[T ](\d\d:\d\d:\d\d)(?:([.,])(\d{{1,9}}))?({_ZONE})?{_ZONE_NAME}(\])?\s+"
)
_BSD: Final = re.compile(
    r"([^\W\d_]{3,5}|\d{1,2}月)\.?\s+(\d{1,2})\s+(?:\d{4}\s+)?(\d\d:\d\d:\d\d)(?:\.\d+)?\s+"
)
_SLOG: Final = re.compile(r"\[[A-Z]+\] KERNEL\(\d+,\w+\):\S+ \[klogd\.c:\d+\]\s*(?=\[)")
_TIME: Final = re.compile(r"\[?(\d\d:\d\d:\d\d)(?:[.,](\d{1,9}))?\]?\s+(?=\S)")
_UNIX: Final = re.compile(r"(\d{9,10})\.(\d{1,9})\s+(?=\S+ \S+?:)")
_KERNEL: Final = re.compile(r"(?:[\w.-]+\s+)?(?:kernel|klogd|vmunix)(?:\[\d+\])?:(?:\s+|$)")
_PROGRAM: Final = re.compile(r"[\w.:-]+\s+([\w./@()-]+?)(?:\[\d+\])?:(?:\s+|$)")
_WITH_PID: Final = re.compile(r"[\w.-]+\s+([\w./@()-]+?)\[\d+\]:\s+")
_LOG_LEVEL: Final = re.compile(
    r"(?i)(?:trace|debug|info|notice|warn|warning|err|error|crit|critical|fatal)\b"
)
_DRIVER: Final = re.compile(r"NVRM$|nvidia-nvswitch\d+$")
# first words of kernel messages that look like a host before a program
_NO_HOSTS: Final = frozenset({"nvme", "EDAC", "Memory", "NETDEV", "NMI", "infiniband", "thermal", "amdgpu", "ata", "Internal"})  # fmt: skip
_DONE: Final = ("NVRM: ", "nvidia-nvswitch")  # what most lines that matter begin with, after a stamp
_JSON_BYTES: Final = 16 * 1024


@dataclass(frozen=True, slots=True)
class LogEntry:
    """A line taken apart. ``program`` is empty where the line names none, and ``kernel`` where it is the kernel.

    ``stamp_ns`` counts ``clock``; ``boot_ns`` is the time since boot where the line has that. ``day_unknown``: the stamp
    is a time of day only.
    """

    message: str
    program: str = ""
    stamp_ns: int | None = None
    clock: Clock = ""
    boot_ns: int | None = None
    boot: str = ""
    day_unknown: bool = False


class _Parts:
    """What has been found so far, from the front of the line on."""

    __slots__ = ("boot", "boot_ns", "clock", "day_unknown", "program", "stamp_ns", "syslog", "text")

    def __init__(self, text: str) -> None:
        self.text = text
        self.program = ""
        self.boot = ""
        self.stamp_ns: int | None = None
        self.clock: Clock = ""
        self.boot_ns: int | None = None
        self.day_unknown = False
        self.syslog = False  # the stamp is one after which syslog names host and program

    def wall(self, ns: int | None, clock: Clock) -> None:
        if ns is not None and self.clock != "wall":
            self.stamp_ns, self.clock = ns, clock

    def since_boot(self, ns: int) -> None:
        self.boot_ns = ns
        if not self.clock:
            self.stamp_ns, self.clock = ns, "boot"

    def entry(self) -> LogEntry:
        return LogEntry(
            self.text.strip(), self.program, self.stamp_ns, self.clock, self.boot_ns, self.boot, self.day_unknown
        )  # fmt: skip


def parse(data: bytes) -> LogEntry:
    """A line taken apart; one without a known form is all message."""
    text = data.decode("utf-8", "replace")
    if "\x1b" in text:
        text = _ANSI.sub("", text)
    text = text.lstrip("\ufeff \t")
    if text.startswith("{"):
        return _journal(text)
    parts = _Parts(text)
    if text.startswith("/var/log/"):
        parts.text = _GREP.sub("", text, count=1)
    for _ in range(8):
        if parts.text.startswith(_DONE) or not _strip(parts):
            break
    return parts.entry()


def _strip(parts: _Parts) -> bool:
    """Take one more piece off the front; False if there is none."""
    text = parts.text
    first = text[:1]
    if first == "[":
        return _bracket(parts)
    if first == "<" and (found := _PRIORITY.match(text)):
        parts.text = text[found.end() :]
        if rfc := _RFC5424.match(parts.text):
            parts.text, parts.program = parts.text[rfc.end() :].lstrip("\ufeff"), rfc[3]
            _iso_stamp(parts, f"{rfc[1]} ")
            return rfc[3] == "kernel"
        return True
    if found := _KERNEL.match(text):
        parts.text, parts.program, parts.syslog = text[found.end() :], "kernel", False
        return True
    if parts.syslog:
        _program(parts)
        return False
    if first.isdigit():
        return _digits(parts)
    if found := _LEVEL.match(text):
        parts.text = text[found.end() :]
        return True
    return _words(parts)


def _program(parts: _Parts) -> None:
    """Host and program of a line of syslog that the kernel did not say."""
    found = _PROGRAM.match(parts.text)
    if found is None:
        return
    host = parts.text.split(None, 1)[0]
    if _DRIVER.match(found[1]) and not _LOG_LEVEL.fullmatch(host):
        parts.text = parts.text[found.start(1) :]  # a template that leaves `kernel:` out
    elif host not in _NO_HOSTS:
        parts.text, parts.program = parts.text[found.end() :], found[1]


def _bracket(parts: _Parts) -> bool:
    text = parts.text
    if found := _BOOT.match(text):
        parts.text = text[found.end() :]
        parts.since_boot(seconds_ns(found[1]))
        program = _WITH_PID.match(parts.text)
        if program and not _KERNEL.match(parts.text):
            parts.text, parts.program = parts.text[program.end() :], program[1]
            return False
        return True
    for pattern in (_CALLER, _DELTA, _SLOG):
        if found := pattern.match(text):
            parts.text = text[found.end() :]
            return True
    if (found := _FABRIC.match(text)) and (month := MONTHS.get(found[1].lower())):
        parts.text, parts.program = text[found.end() :], "nv-fabricmanager"
        parts.wall(wall_ns(int(found[3]), month, int(found[2]), found[4]), "local")
        return False
    return _words(parts) or _time_of_day(parts)


def _words(parts: _Parts) -> bool:
    """Stamps that begin with the name of a day or a month."""
    text = parts.text
    if found := _CTIME.match(text):
        month = MONTHS.get(found[2].lower(), 0)
        if found[1] or month:
            parts.text = text[found.end() :]
            if month:
                parts.wall(wall_ns(int(found[5]), month, int(found[3]), found[4]), "local")
            return True
    if found := _BSD.match(text):
        parts.text, parts.syslog = text[found.end() :], True
        if named := MONTHS.get(found[1].lower()):
            parts.wall(
                wall_ns(1972, named, int(found[2]), found[3]), "local"
            )  # a leap year; syslog names none
        return True
    return _iso(parts)


def _digits(parts: _Parts) -> bool:
    text = parts.text
    if found := _KMSG.match(text):
        parts.text, parts.program = text[found.end() :].split("\n", 1)[0], "kernel"
        parts.since_boot(int(found[3]) * 1000)
        return False
    if found := _UNIX.match(text):
        parts.text, parts.syslog = text[found.end() :], True
        parts.wall(seconds_ns(f"{found[1]}.{found[2]}"), "wall")
        return True
    return _words(parts) if "月" in text[:4] else _iso(parts) or _time_of_day(parts)


def _time_of_day(parts: _Parts) -> bool:
    """A stamp without a date, as tools for serial consoles and some log viewers write it."""
    found = _TIME.match(parts.text)
    ns = wall_ns(1972, 1, 1, found[1], found[2] or "") if found and not parts.clock else None
    if found is None or ns is None:
        return False
    parts.text = parts.text[found.end() :]
    parts.wall(ns, "local")
    parts.day_unknown = True
    parts.syslog = _WITH_PID.match(parts.text) is not None
    return True


def _iso(parts: _Parts) -> bool:
    end = _iso_stamp(parts, parts.text)
    parts.text = parts.text[end:]
    return end > 0


def _iso_stamp(parts: _Parts, text: str) -> int:
    """Where an ISO stamp at the front of ``text`` ends; 0 without one."""
    found = _ISO.match(text)
    if not found:
        return 0
    zone = (found[7] or "").strip()
    ns = wall_ns(int(found[1]), int(found[2]), int(found[3]), found[4], found[6] or "", zone)
    parts.wall(ns, "wall" if zone else "local")
    parts.syslog = found[5] != ","  # a comma is what dmesg writes, and it names no program
    return found.end()


def _is_trusted(record: dict[str, Any], name: str) -> bool:
    """Whether fields that the journal itself sets confirm the program: the identifier is whatever its sender writes.

    A record without ``_TRANSPORT`` is of a file that the journal does not write; nothing in it can be confirmed or refuted.
    """
    ours = record.get("_UID") == "0" or record.get("_SYSTEMD_UNIT") == f"{name}.service"
    return ours or record.get("_TRANSPORT") is None


def _journal(text: str) -> LogEntry:
    """A line of ``journalctl -o json``; any other JSON is from another kind of log, and its entry is empty."""
    try:
        record = json.loads(text[:_JSON_BYTES])
    except (ValueError, RecursionError):
        return LogEntry("", program="?")
    if not isinstance(record, dict) or "MESSAGE" not in record:
        return LogEntry("", program="?")
    raw = record["MESSAGE"]
    if isinstance(raw, list):  # the journal's form of a message that is not UTF-8
        raw = bytes(b for b in raw if isinstance(b, int) and 0 <= b < 256).decode("utf-8", "replace")
    name = str(record.get("SYSLOG_IDENTIFIER") or record.get("_COMM") or "?")
    transport = record.get("_TRANSPORT")
    if transport == "kernel" or (transport is None and name == "kernel"):
        if name not in ("kernel", "?"):  # of what was written into kmsg the journal takes the first word off
            raw = f"{name}: {raw}"
        name = "kernel"
    elif name == "kernel" or not _is_trusted(record, name):
        name = "?"  # any user's `logger -t kernel`, or of another name
    wall, boot = (record.get(k) for k in ("__REALTIME_TIMESTAMP", "_SOURCE_MONOTONIC_TIMESTAMP"))
    wall_us, boot_us = (int(v) if isinstance(v, str) and v.isdigit() else None for v in (wall, boot))
    return LogEntry(
        str(raw or "").replace("\0", "").strip(),
        name,
        wall_us * 1000 if wall_us is not None else None,
        "wall" if wall_us is not None else "",
        boot_us * 1000 if boot_us is not None else None,
        str(record.get("_BOOT_ID") or ""),
    )
