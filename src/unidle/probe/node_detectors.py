"""The detectors of one node: of its kernel log, its GPUs, and the machine's own parts.

Each detector is imported where it is made, in its own thread: a run that is short should not wait for them.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator
from typing import TYPE_CHECKING, Final

from unidle.fleet import Node
from unidle.fleet.policies import KERNEL_LOG_VARIABLE, WatchSources
from unidle.probe.detector import FaultDetector
from unidle.probe.device_names import DeviceNames
from unidle.probe.watcher import DetectorSpec

if TYPE_CHECKING:
    from unidle.probe.followed_file import End

OWN_LOGS: Final = ("/dev/kmsg", "journal", "syslog")
"""Sources of kernel logs that are of the machine that reads them."""
LOG, GPUS, MACHINE = "kernel log", "GPUs", "machine"
LOG_EVERY_S: Final = 0.25
COUNTERS_EVERY_S: Final = 2.0

Enter = Callable[[str], None]
"""Moves the calling thread into the network namespace of this name."""


def detectors_of(
    node: Node, offset_ns: int, enter: Enter, *, overlay: str = "", only: bool
) -> Iterator[DetectorSpec]:
    """Those of a node of this machine. ``offset_ns`` turns the boot-time clock into the log's.

    ``only``: it is the only node of the machine, so that the machine's own log and parts are its own. ``overlay``: a file
    with what NVML should report instead.
    """
    watch = node.watch or WatchSources()
    names = DeviceNames(node)
    log = log_of(node, only=only)
    if (log or only) and log != "off":
        end = _end_of(log) if log not in ("", "kmsg", "journal", "syslog") else None
        yield DetectorSpec(
            node.id, LOG, lambda kept: _log(node, log, names, kept, offset_ns, end), LOG_EVERY_S
        )
    laid = watch.nvml or overlay
    if laid or any(d.kind == "gpu" and d.vendor == "nvidia" for d in node.devices):
        yield DetectorSpec(node.id, GPUS, lambda kept: _gpus(node, names, kept, laid), COUNTERS_EVERY_S)
    if node.netns or only or log in ("kmsg", "journal", "syslog"):
        yield DetectorSpec(node.id, MACHINE, lambda kept: _machine(node, kept, enter), COUNTERS_EVERY_S)


def log_of(node: Node, *, only: bool) -> str:
    """The source of a node's kernel log, as :class:`WatchSources` has it; ``only`` as in :func:`detectors_of`."""
    own = node.watch.kernel_log if node.watch is not None else ""
    return own or (os.environ.get(KERNEL_LOG_VARIABLE, "") if only else "")


def _end_of(log: str) -> End:
    from unidle.probe.followed_file import End

    return End.of(log)


def _log(
    node: Node, log: str, names: DeviceNames, kept: str, offset_ns: int, end: End | None
) -> FaultDetector:
    from unidle.probe.log_watch import LogWatch

    return LogWatch(node.id, log, names, kept, offset_ns, end)


def _gpus(node: Node, names: DeviceNames, kept: str, overlay: str) -> FaultDetector:
    from unidle.probe.gpu_watch import GpuWatch

    return GpuWatch(node, names, kept, overlay)


def _machine(node: Node, kept: str, enter: Enter) -> FaultDetector:
    from unidle.probe.machine_watch import MachineWatch, SpaceWatch

    model = node.devices[0].model if node.devices else ""
    if not node.netns:
        return MachineWatch(node.id, kept, model=model)
    return SpaceWatch(node.id, node.netns, node.address, kept, enter, model)
