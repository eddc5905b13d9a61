"""Which of a list of kinds a fault is, and the component that it is a failure of. Pure."""

from __future__ import annotations

import re
from dataclasses import dataclass
from typing import Final, NamedTuple

from unidle.guard.log.xids import table
from unidle.jobs import Reason

UNKNOWN: Final = "unknown"


@dataclass(frozen=True, slots=True)
class FaultClass:
    """``component``: what failed, as ``unidle guard failures`` counts it. ``words``: the kind in words."""

    component: str
    words: str


CLASSES: Final[dict[str, FaultClass]] = {
    "gpu_lost": FaultClass("GPU", "the GPU has fallen off the bus"),
    "gpu_ecc": FaultClass("GPU", "memory of the GPU that ECC could not correct"),
    "gpu": FaultClass("GPU", "another fault of the GPU"),
    "nvlink": FaultClass("NVLink", "NVLink, NVSwitch or their fabric"),
    "p2p": FaultClass("GPU P2P", "traffic between the GPUs of a node, or PCIe to one"),
    "ib_link": FaultClass("link", "a link of InfiniBand or Ethernet: cable, module or port"),
    "nic": FaultClass("NIC", "the network card"),
    "power": FaultClass("power", "power supply, or power of a board"),
    "cooling": FaultClass("cooling", "fans or temperature"),
    "host": FaultClass("host", "the machine: processor, memory, PCIe; or it does not answer"),
    "storage": FaultClass("storage", "a disk, a file system or a file server"),
    "kernel": FaultClass("kernel", "the operating system's kernel"),
    "driver": FaultClass("driver", "the GPU driver or one of its services"),
    "network": FaultClass("network", "the network between nodes"),
    "operation": FaultClass("operation", "a person or program outside of unidle stopped it"),
    "user_code": FaultClass("user code", "the job's own code, data or memory"),
    "hang": FaultClass(UNKNOWN, "gangs hung there, for no known reason"),
    UNKNOWN: FaultClass(UNKNOWN, "not known"),
}
"""By name. Those of a job itself (``user_code``, ``operation``, often ``network``) take no node out."""

_XIDS: Final[dict[str, tuple[int, ...]]] = {
    "gpu_lost": (79,),
    "gpu_ecc": (48, 58, 63, 64, 92, 94, 95, 140, 156, 157, 160, 161, 168, 171, 172),
    "nvlink": (74, 108, *range(144, 151), 121, 136, 137, 155, 166, 170),
    "p2p": (167,),
    "power": (54, 162, 163, 164, 165),
    "driver": (78, 106, 107),
}
_OF_XID: Final = {code: kind for kind, codes in _XIDS.items() for code in codes}
_OF_KIND: Final[dict[str, str]] = {
    "gpu_lost": "gpu_lost", "gpu_init": "gpu", "amdgpu": "gpu", "npu": "gpu", "ecc": "gpu_ecc", "remap": "gpu_ecc",
    "sxid": "nvlink", "fabric": "nvlink", "driver": "driver", "service": "driver", "mce": "host", "pcie": "host",
    "silent": "network", "thermal": "cooling", "power": "power", "disk": "storage", "fs": "storage", "raid": "storage",
    "storage": "storage", "panic": "kernel", "kernel_bug": "kernel", "lockup": "kernel", "hung_task": "kernel",
    "oom": "user_code", "user_code": "user_code",
}  # fmt: skip
"""By the kind of ``unidle guard classify`` and of the detectors."""
_OF_CHECK: Final[dict[str, str]] = {
    "devices": "gpu_lost", "driver": "driver", "clocks": "gpu", "heat": "cooling", "ecc": "gpu_ecc", "remap": "gpu_ecc",
    "pcie": "p2p", "nvlink": "nvlink", "leftovers": "gpu", "nic": "nic", "infiniband": "ib_link", "storage": "storage",
    "memory": "host", "cpu": "host", "clock": "host", "shared_memory": "host", "kernel_log": "kernel",
    "storage_rate": "storage", "memory_pattern": "host", "gemm": "gpu", "host_to_device": "p2p", "allreduce": "p2p",
    "burn_in": "gpu",
}  # fmt: skip
"""By the probe of ``unidle check`` that failed; a probe without a line here is of an unknown kind."""
_OF_HEALTH: Final[dict[str, str]] = {
    "host_silent": "host", "node_unreachable": "host", "node_not_ready": "host",
}  # fmt: skip
"""By the code of the reason for which a node is not healthy."""
_OF_FAILURE: Final[dict[str, str]] = {
    "code": "user_code", "data": "user_code", "memory": "user_code", "machine": "host", "network": "network",
}  # fmt: skip
"""By the kind of a job's failure (:data:`unidle.jobs.FAILURE_KINDS`)."""
_APPLICATION: Final = 20  # the rank up to which an Xid is the application's own
_CHECK: Final = re.compile(r"\bunfit[^:]*: ([a-z_]+)[:.]")
_CARD: Final = re.compile(r": the card\b|\bfirmware\b")
_MEMORY: Final = re.compile(r"bad pages|marked as bad|uncorrect|could not correct|could not be corrected")
_HUNG: Final = re.compile(r"^\d+ gangs hung or lost their peers")
_SIGNALS: Final = frozenset({-9, -15, -2, -1, -3, 137, 143})


class SeenFault(NamedTuple):
    """A fault as the log has it (``unidle.events.guard.FaultSeen``); ``text``: its reason in words."""

    kind: str
    code: int | None
    action: str
    text: str


def class_of(fault: SeenFault) -> str:
    """The name of a fault's class (a key of :data:`CLASSES`)."""
    kind, code, action, text = fault
    if kind == "xid":
        return _of_xid(code)
    if kind == "nic":
        return "ib_link" if action in ("check_link", "watch") and not _CARD.search(text) else "nic"
    if kind in ("amdgpu", "npu") and _MEMORY.search(text):
        return "gpu_ecc"
    if kind == "preflight":
        found = _CHECK.search(text)
        return _OF_CHECK.get(found[1], UNKNOWN) if found is not None else "network"
    return kind if kind in CLASSES else _OF_KIND.get(kind, UNKNOWN)


def _of_xid(code: int | None) -> str:
    known = table().get(code or 0)
    if code in _OF_XID:
        return _OF_XID[code]
    if known is not None and known.role != "info" and known.rank <= _APPLICATION:
        return "user_code"
    return "gpu"


def class_of_health(because: Reason) -> str:
    """The class of an outage that no fault in the log explains, by its reason."""
    if _HUNG.search(because.text):
        return "hang"
    return _OF_HEALTH.get(because.code, UNKNOWN)


def class_of_failure(failure: str, exit_code: int | None) -> str:
    """The class of a job's own failure: its kind, and the exit code of the rank that failed first (minus a signal).

    A rank that a signal from outside ended, not for lack of memory and not by unidle, was stopped from outside.
    """
    if failure == UNKNOWN and exit_code in _SIGNALS:
        return "operation"
    return _OF_FAILURE.get(failure, UNKNOWN)


def component_of(name: str) -> str:
    """The component of a class; a name that is none (of a fault trace) is the component."""
    known = CLASSES.get(name)
    return known.component if known is not None else name
