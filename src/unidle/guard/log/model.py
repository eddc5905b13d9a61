"""What a kernel log is made of here: lines that come in, findings that go out."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Any, Final, Literal, NamedTuple

from unidle.fleet.policies import STEP_OF

Role = Literal["culprit", "symptom", "info"]
Action = Literal[
    "ignore",  # nothing has to be done
    "watch",  # nothing yet: it matters if it comes again
    "restart_app",  # the job's process; the hardware is fine
    "restart_service",  # a daemon of the driver, such as the fabric manager
    "reset_gpu",
    "reboot_node",
    "drain",  # no new work on the node until someone has looked
    "replace",
    "check_nvlink",
    "check_link",  # cable, module or port of a network card
    "check_hardware",  # seating, power, cooling, a disk or a memory module
    "update_software",
    "contact_support",
]
Severity = Literal["info", "warning", "error", "fatal"]
Clock = Literal[
    "wall", "local", "boot", ""
]  # what a stamp counts: UTC, a clock without zone, time since boot, none

TAKES_OUT: Final = frozenset(STEP_OF)
"""The actions after which a node (or a device of it) has no work for a while."""
IN_WORDS: Final[dict[Action, str]] = {
    "ignore": "nothing to do",
    "watch": "watch whether it comes again",
    "restart_app": "restart the job",
    "restart_service": "restart the fabric manager",
    "reset_gpu": "reset the GPU",
    "reboot_node": "restart the machine",
    "drain": "drain the node",
    "replace": "replace the part",
    "check_nvlink": "check the NVLink",
    "check_link": "check cable, module and port",
    "check_hardware": "check the hardware",
    "update_software": "update driver or firmware",
    "contact_support": "contact support",
}


@dataclass(frozen=True, slots=True)
class LogLine:
    """One line as a source gave it: its 1-based number, and its bytes without the line end.

    ``boot`` names the boot it belongs to where the source has it (kmsg, journal); empty otherwise.
    """

    number: int
    data: bytes
    boot: str = ""


class Grade(NamedTuple):
    """How a finding counts: its role, what to do, how bad it is, and how near to a root cause (see :class:`Finding`)."""

    role: Role
    action: Action
    severity: Severity
    rank: int


@dataclass(frozen=True, slots=True)
class Finding:
    """What one line reports of hardware, driver, network, storage or kernel.

    ``kind`` is the family (``xid``, ``sxid``, ``gpu_lost``, ``nic``, ``mce``, ``disk``, ...); ``code`` its number where
    the family counts (Xid, SXid), else None. ``device`` is a PCI address as sysfs names it, a network interface, a disk
    or ``""``. ``rank`` (0 to 100) is higher nearer to a root cause: of two culprits the higher one explains the other.
    ``cause_line`` and ``cause_code`` name what a symptom follows from. ``verdict`` is the recovery action that the driver
    itself requests (Xid 154), empty otherwise. ``stamp_ns`` counts ``clock``; None without a stamp. ``alone`` is the finding
    as it is where the line ``cause_line`` does not count; None where nothing explains it.
    """

    line: int
    kind: str
    code: int | None
    device: str
    role: Role
    action: Action
    because: str
    severity: Severity = "error"
    rank: int = 0
    stamp_ns: int | None = None
    clock: Clock = ""
    boot: int = 0
    cause_line: int | None = None
    cause_code: int | None = None
    verdict: str = ""
    alone: Finding | None = None

    def as_symptom(self, because: str, cause: Finding, **others: Any) -> Finding:
        """The finding as a consequence of an earlier one."""
        return replace(
            self,
            role="symptom",
            action="ignore",
            because=because,
            cause_line=cause.line,
            alone=self,
            **others,
        )

    def contract(self) -> dict[str, str | int | None]:
        """The finding as ``unidle guard classify --json`` prints it."""
        return {
            "line": self.line, "kind": self.kind, "code": self.code, "device": self.device, "role": self.role,
            "action": self.action, "because": self.because,
        }  # fmt: skip


def from_ns(findings: Sequence[Finding], since_ns: int) -> list[Finding]:
    """The findings of one log that are not stamped before ``since_ns``. What follows only from those counts for itself."""
    earlier = {one.line for one in findings if one.stamp_ns is not None and one.stamp_ns < since_ns}
    return [
        one.alone if one.alone is not None and one.cause_line in earlier else one
        for one in findings
        if one.line not in earlier
    ]


SPEAKERS: Final = frozenset({"systemd", "nvidia-persistenced", "nv-hostengine", "nvidia-fabricmanager", "nv-fabricmanager", "nvidia-device-plugin", "nvidia-dcgm", "dcgm"})  # fmt: skip
"""Programs whose lines about the driver's services are trusted; lines of other programs only quote."""
