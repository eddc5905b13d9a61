"""Where the signs of a node's faults are read from."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class Watch:
    """``kernel_log``: ``kmsg``, ``journal``, ``off`` or the path of a log that is followed.

    Empty: this machine's own log where the node is the only one of its fleet, else nothing. ``pci`` are the PCI addresses
    of its devices in their order, for machines whose driver cannot be asked. ``nvml`` names a JSON file that is laid over
    what NVML tells, for drills.
    """

    kernel_log: str = ""
    pci: tuple[str, ...] = ()
    nvml: str = ""
