"""Reads a kernel log line by line and keeps what later lines need of earlier ones."""

from __future__ import annotations

import re
from collections import defaultdict
from collections.abc import Iterable, Iterator
from typing import Final

from unidle.guard.log import nvidia, nvswitch
from unidle.guard.log.header import LogEntry, parse
from unidle.guard.log.model import SPEAKERS, Finding, LogLine
from unidle.guard.log.nvidia import explained
from unidle.guard.log.pci import first
from unidle.guard.log.reader_state import Memory, Now
from unidle.guard.log.rules import ACCELERATORS, MACHINE, NETWORK, SERVICES, STORAGE, LogRule

_RULES: Final = (*ACCELERATORS, *NETWORK, *STORAGE, *MACHINE)
_BY_NEEDLE: Final[dict[str, list[LogRule]]] = defaultdict(list)
for _rule in _RULES:
    _BY_NEEDLE[_rule.needle].append(_rule)
_BOOTS: Final = (b"-- Boot ", b"-- Reboot --", b"Linux version ")
_OTHERS: Final = (
    b"NVRM: ",
    b'"NVRM"',
    b"Xid (",
    b"NVSwitch",
    b"nvidia 0",
    b"abric",
    b'"MESSAGE":[',
    b'"MESSAGE": [',
    *_BOOTS,
)
NEEDLES: Final = tuple(dict.fromkeys((*_OTHERS, *(r.needle.encode() for r in (*_RULES, *SERVICES)))))
"""A line without any of these bytes is ignored; checked before anything is decoded."""
_FABRIC: Final = frozenset({"nv-fabricmanager", "nvidia-fabricmanager", "fabricmanager"})
_MESSAGE_CHARS: Final = 4096
_PARTITION: Final = re.compile(r"(nvme\d+n\d+)p\d+$|((?:sd|vd|hd|xvd)[a-z]+)\d+$|(nvme\d+)n\d+$")


class Reader:
    """Findings of one log, in order. One reader per log: it remembers faults, open events and the boot.

    ``repeats``: a fault that is reported again within a minute is a symptom: it may have been repaired meanwhile.
    """

    def __init__(self, *, repeats: bool = False) -> None:
        self._memory = Memory(repeats=repeats)

    def read(self, line: LogLine) -> Finding | None:
        """The finding in one line; None without one, or if its event was already reported."""
        data = line.data
        for needle in NEEDLES:
            if needle in data:
                return self.consider(line)
        return None

    def consider(self, line: LogLine) -> Finding | None:
        """:meth:`read` for a line that is known to hold one of :data:`NEEDLES`."""
        memory = self._memory
        entry = memory.dated(parse(line.data))
        booted = memory.see(entry, line.boot)
        message = entry.message[:_MESSAGE_CHARS]
        if message.startswith(("-- Boot ", "-- Reboot --", "Linux version ")):
            if not (booted or line.boot or entry.boot) and entry.program in ("", "kernel"):
                memory.restart()
            return None
        finding = _read(message, entry, memory, Now(line.number, entry, memory.boot))
        if finding is not None:
            memory.keep(finding)
        return finding


def findings(lines: Iterable[LogLine]) -> Iterator[Finding]:
    """The findings of a log, each as soon as its line was read."""
    reader = Reader()
    for line in lines:
        finding = reader.read(line)
        if finding is not None:
            yield finding


def _read(message: str, entry: LogEntry, memory: Memory, now: Now) -> Finding | None:
    if entry.program in ("", "kernel"):
        if message.startswith("NVRM:"):
            return nvidia.read(message, memory, now)
        if message.startswith("nvidia-nvswitch"):
            return nvswitch.read(message, memory, now)
        if message.startswith("nvidia 0") and (hit := nvidia.read(message, memory, now)):
            return hit
        return _by_rules(message, memory, now)
    if entry.program in _FABRIC and (
        hit := nvswitch.read_fabric(message, memory, now) or nvswitch.read(message, memory, now)
    ):
        return hit
    if entry.program in SPEAKERS:
        return next((h for r in SERVICES if (h := r.read(now, message))), None)
    return None


def _by_rules(message: str, memory: Memory, now: Now) -> Finding | None:
    for needle, own in _BY_NEEDLE.items():
        if needle in message:
            for rule in own:
                if hit := rule.read(now, message):
                    return _in_context(hit, message, memory, now)
    return None


def _in_context(hit: Finding, message: str, memory: Memory, now: Now) -> Finding:
    """A finding as a symptom, where a deeper fault of the same device came before it."""
    if (
        hit.kind == "nic"
        and (address := first(message))
        and address != hit.device
        and len(memory.aliases) < 1024
    ):
        memory.aliases[hit.device] = address
    if hit.kind == "gpu_lost" and (before := memory.gone(now)) and before.device == hit.device:
        return hit.as_symptom(f"the same loss as on line {before.line}", before, rank=0)
    cause = memory.fault(hit.device, now)
    if cause is None and hit.kind in ("disk", "fs", "raid") and (part := _PARTITION.match(hit.device)):
        disk = next(group for group in part.groups() if group)
        cause = memory.fault(disk, now) or memory.fault(disk.split("n1")[0], now)
    return explained(hit, cause)
