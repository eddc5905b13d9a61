"""Lines about NVSwitches: SXid of the kernel driver, and the fabric manager's reports of the same events.

One event is up to three lines (what happened, severity and engine, raw data): the first that is seen is the finding.
"""

from __future__ import annotations

import re
from typing import Final

from unidle.guard.log.model import Action, Finding, Grade, Role, Severity
from unidle.guard.log.nvidia import explained
from unidle.guard.log.pci import ADDRESS, first, normal
from unidle.guard.log.reader_state import Memory, Now, Open, near

_SXID: Final = re.compile(
    rf"nvidia-nvswitch\d*: SXid \((?:PCI:)?({ADDRESS})[^)]{{0,40}}\):?\s*(\d+),?\s*(.*)", re.DOTALL
)
_MAIN: Final = re.compile(r"(Fatal|Non-?fatal)\b(?:,? Link (\d+))?[ ,]*(.*)", re.IGNORECASE | re.DOTALL)
_SEVERITY: Final = re.compile(r"Severity (\d+)\b(?: Engine instance (\d+))?")
_DATA: Final = re.compile(r"Data \{")
_FABRIC: Final = re.compile(
    r".{0,120}?detected NVSwitch (non-fatal|fatal) error (\d+)\b(.{0,400})", re.DOTALL
)
_ABORTS: Final = re.compile(
    r".{0,80}?(?:aborting fabric manager|fabric manager.{0,40}(?:abort|exiting|failed)|don't match with any supported system topology)"
)
_STALLS: Final = frozenset({12028})  # printed as not fatal, yet a GPU's traffic over NVLink stops


def read(message: str, memory: Memory, now: Now) -> Finding | None:
    """The finding in a line of the NVSwitch driver; None where its event was already reported."""
    found = _SXID.match(message)
    if found is None:
        return None
    device, code, rest = normal(found[1]), int(found[2]), found[3]
    if main := _MAIN.match(rest):
        fatal = main[1].lower() == "fatal"
        hit = _finding(now, device, code, fatal, main[2] or "", main[3])
        return _opened(hit, memory, now, severities=1, data=1)
    event = memory.switches.get((device, code))
    is_open = event is not None and near(event.finding, now)
    if severity := _SEVERITY.match(rest):
        if event is not None and is_open and event.severities:
            event.severities -= 1
            return None
        hit = _finding(now, device, code, severity[1] != "0", severity[2] or "", "")
        return _opened(hit, memory, now, severities=0, data=1)
    if event is not None and is_open and _DATA.match(rest) and event.data:
        event.data -= 1
        return None
    hit = _finding(now, device, code, None, "", "")
    return _opened(hit, memory, now, severities=0, data=0)


def read_fabric(message: str, memory: Memory, now: Now) -> Finding | None:
    """The finding in a line of the fabric manager."""
    if found := _FABRIC.match(message):
        code, device = int(found[2]), first(found[3])
        port = re.search(r"port (\d+)", found[3])
        hit = _finding(now, device, code, found[1] == "fatal", port[1] if port else "", "")
        event = memory.switches.get((device, code))
        if event is not None and near(event.finding, now):
            why = f"the same event as on line {event.finding.line}"
            return hit.as_symptom(why, event.finding, rank=0)
        return _opened(hit, memory, now, severities=1, data=1)
    if _ABORTS.match(message):
        text = "the fabric manager gave up: no GPU behind an NVSwitch can start work"
        return now.finding("fabric", None, "", Grade("culprit", "restart_service", "fatal", 60), text)
    return None


def _opened(hit: Finding, memory: Memory, now: Now, *, severities: int, data: int) -> Finding:
    key = (hit.device, hit.code or 0)
    event = memory.switches.get(key)
    if event is not None and near(
        event.finding, now
    ):  # several links at once: their further lines follow together
        severities, data = min(severities + event.severities, 64), min(data + event.data, 64)
    memory.switches[key] = Open(hit, severities, data)
    return explained(hit, memory.gone(now))


def _finding(now: Now, device: str, code: int, fatal: bool | None, link: str, words: str) -> Finding:
    """``fatal`` is None where the line does not say."""
    at = f" on link {link}" if link else ""
    what = f" ({words.strip()[:80]})" if words.strip() else ""
    role: Role = "culprit"
    severity: Severity = "error"
    action: Action
    if fatal:
        action, severity, rank = "reboot_node", "fatal", 65
        text = f"SXid {code}{at}: fatal{what}; its GPUs and switches have to be reset together"
    elif code in _STALLS:
        action, rank = "check_nvlink", 40
        text = f"SXid {code}{at}{what}: traffic of a GPU over NVLink is blocked; find what the GPU reports"
    elif fatal is None:
        role, action, severity, rank = "info", "watch", "warning", 10
        text = f"SXid {code}{at}: only its raw data are in the log"
    else:
        role, action, severity, rank = "info", "ignore", "info", 5
        text = f"SXid {code}{at}: not fatal{what}"
    return now.finding("sxid", code, device, Grade(role, action, severity, rank), text)
