"""Sources that are monitored for faults of a node."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class Watch:
    """``kernel_log``: ``kmsg``, ``journal``, ``off`` or the path of a log that is followed.

    Empty: this machine's own log where the node is the only one of its fleet, else nothing. ``pci`` are the PCI
    addresses of its devices in their order, for machines whose driver is not accessible. ``nvml`` is the path of
    a JSON file whose readings override those of NVML, for drills.
    """

    kernel_log: str = ""
    pci: tuple[str, ...] = ()
    nvml: str = ""
