"""This host as a node of a fleet: devices, links, CPUs, memory, address and labels."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any

import msgspec

from unidle.agent import host_limits
from unidle.errors import CannotRun
from unidle.fleet import GpuLinks, Node
from unidle.fleet.policies import WatchSources

if TYPE_CHECKING:
    from unidle.agent.cuts import HostCuts


@dataclass(frozen=True, slots=True)
class FoundNode:
    """A node and the links of its GPUs (None: one GPU, or not known). ``source``: how the devices were found."""

    node: Node
    links: GpuLinks | None
    source: str

    def to_json(self) -> dict[str, Any]:
        """As in the hello of an agent: the fields of the node, and ``links`` where they are known."""
        body: dict[str, Any] = msgspec.to_builtins(self.node)
        return body if self.links is None else body | {"links": msgspec.to_builtins(self.links)}


def find_node(
    name: str, address: str, labels: Mapping[str, str], cpu_devices: int | None, kernel_log: str = "",
    cuts: HostCuts | None = None,
) -> FoundNode:  # fmt: skip
    """The node with the GPUs of this machine that this process may use; without GPUs, with CPU devices.

    ``cpu_devices``: so many of these, None: one per CPU, 0: none. Devices are ``NAME/0``, ``NAME/1``, ...
    ``kernel_log``: see :class:`unidle.fleet.policies.WatchSources`; empty: this machine's own. ``cuts`` finds how they can
    be cut.

    Errors: :class:`CannotRun` without any device.
    """
    from unidle.engine.local.devices.discovery import discover

    cpus = host_limits.cpus()
    fleet = discover(cpu_devices or max(int(cpus), 1))
    [found] = fleet.nodes
    if cpu_devices == 0:
        found = replace(found, devices=tuple(d for d in found.devices if d.kind == "gpu"))
    if not found.devices:
        raise CannotRun(
            f"this host has no device for a fleet ({fleet.source.removeprefix('discovered: ')})", field="--cpu-devices",
            value=cpu_devices, remedy="leave it out for one device per CPU; `unidle doctor` shows why no GPU was found",
        )  # fmt: skip
    numa = host_limits.numa_nodes()
    node = replace(
        found,
        id=name,
        address=address,
        cpus=cpus,
        memory_bytes=host_limits.memory_bytes(),
        devices=tuple(replace(d, id=f"{name}/{d.index}", node=name) for d in found.devices),
        labels=found.labels | ({"numa": str(numa)} if numa else {}) | dict(labels),
        gpu_links=name if found.gpu_links else "",
        watch=WatchSources(kernel_log) if kernel_log else None,
    )
    if cuts is not None:
        node = cuts.offered(node)
    return FoundNode(node, fleet.gpu_links.get(found.gpu_links), fleet.source)
