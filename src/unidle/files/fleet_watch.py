"""The ``watch`` field of a fleet file: sources that are monitored for faults of a node."""

from __future__ import annotations

import os
from pathlib import Path as File
from typing import Annotated, Final

from msgspec import Meta, Struct

from unidle.files.document import Document, Path
from unidle.files.values import END, PRINTABLE_PATTERN, PRINTABLE_SAYS
from unidle.fleet.policies import WatchSources
from unidle.words import counted

_OWN: Final = ("kmsg", "syslog", "journal", "off")
_FileName = Annotated[
    str, Meta(min_length=1, max_length=4096, pattern=PRINTABLE_PATTERN, extra={"says": PRINTABLE_SAYS})
]
_Address = Annotated[
    str,
    Meta(
        pattern=r"^[0-9a-fA-F]{4,8}:[0-9a-fA-F]{2}:[0-9a-fA-F]{2}(\.[0-7])?" + END,
        extra={"says": "a PCI address", "remedy": "for instance 0000:3b:00.0"},
    ),
]


class WatchPart(Struct, frozen=True, forbid_unknown_fields=True, kw_only=True):
    """Sources that are monitored for faults of a node."""

    kernel_log: Annotated[
        _FileName | None,
        Meta(
            description="Kernel log: kmsg, syslog (the same by a system call, for containers), journal, off, or the path of a log file to follow. A range in the path is "
            "expanded in parallel with the range in id. Default: the log of this machine if the fleet has one "
            "node, otherwise none.",
            examples=["/var/log/remote/n[1-4].log"],
        ),
    ] = None
    pci: Annotated[
        Annotated[tuple[_Address, ...], Meta(max_length=1024)],
        Meta(
            description="PCI addresses of its devices, in order. For nodes whose GPU driver is not on this machine.",
            examples=[["0000:3b:00.0", "0000:5e:00.0"]],
        ),
    ] = ()
    nvml: Annotated[
        _FileName | None,
        Meta(
            description="For drills only: JSON file with readings for each device, which override those of NVML. Default: "
            "none.",
            examples=["nvml-n[1-4].json"],
        ),
    ] = None


def check_watch(document: Document, part: WatchPart, path: Path, devices: int) -> None:
    """Errors: :class:`unidle.errors.BadInput` where there are more addresses than devices, or one twice."""
    pci = part.pci
    if len(pci) > devices:
        raise document.error(
            (*path, "pci"), f"{counted(len(pci), 'address')} for {counted(devices, 'device')}", value=list(pci),
            remedy="name one address for each device",
        )  # fmt: skip
    if len({one.lower() for one in pci}) < len(pci):
        raise document.error(
            (*path, "pci"), "an address is there twice", value=list(pci), remedy="each device has its own"
        )


def watch_of(part: WatchPart, kernel_log: str, nvml: str, base_dir: str) -> WatchSources:
    """The watch of one node; ``kernel_log`` and ``nvml`` are its own of the ranges, empty for none."""
    log = kernel_log if not kernel_log or kernel_log in _OWN else _absolute(base_dir, kernel_log)
    return WatchSources(log, part.pci, _absolute(base_dir, nvml) if nvml else "")


def _absolute(base_dir: str, name: str) -> str:
    return os.path.normpath(File(base_dir, name).absolute())


def watch_as_mapping(watch: WatchSources | None) -> dict[str, object]:
    """As the fleet file has it."""
    if watch is None:
        return {}
    told: dict[str, object] = {"kernel_log": watch.kernel_log, "pci": list(watch.pci), "nvml": watch.nvml}
    return {name: value for name, value in told.items() if value}
