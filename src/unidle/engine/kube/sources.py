"""What the engine has of a cluster: watches of nodes, pods and ResourceSlices, the fleet that they amount to, and a writer."""

from __future__ import annotations

import time
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Final

from unidle.engine.kube.declared import FleetDeclarations
from unidle.kube import objects
from unidle.kube.cluster_fleet import ClusterFleet, FleetChanges
from unidle.kube.objects import KubeNode, Pod
from unidle.kube.protocol import Behind, KubeError, KubeWriter, Put, Vanished, Watch

_STEP_S: Final = 0.02


@dataclass(slots=True)
class KubeSources:
    """``slices`` None: the cluster has no ResourceSlices; ``declarations``: objects that say more of the fleet. ``also_close``: what ends with the engine."""

    nodes: Watch[KubeNode]
    pods: Watch[Pod]
    slices: Watch[objects.ResourceSlice] | None
    writer: KubeWriter
    fleet: ClusterFleet
    declarations: FleetDeclarations
    also_close: list[Callable[[], None]] = field(default_factory=list)
    at_start: FleetChanges = field(default_factory=FleetChanges)  # what the first poll reports, too
    out_of_service: dict[str, bool] = field(default_factory=dict)  # by node that came or changed
    boots: dict[str, str] = field(default_factory=dict)  # by node, the id of its boot
    nodes_seen: list[Put[KubeNode] | Vanished[KubeNode]] = field(default_factory=list)  # until they are taken
    _pods_seen: list[Put[Pod] | Vanished[Pod]] = field(default_factory=list)

    @property
    def wake_fds(self) -> list[int]:
        found = [self.nodes.wake_fd, self.pods.wake_fd, self.writer.wake_fd]
        return found if self.slices is None else [*found, self.slices.wake_fd]

    def list_all(self, within_s: float) -> None:
        """Wait until all nodes and pods are listed. Errors: KubeError where the cluster does not answer in time."""
        until_s = time.monotonic() + within_s
        error: KubeError | None = None
        while not (self.nodes.synced and self.pods.synced):
            error = self._look() or error
            if error is not None and (not error.may_pass or time.monotonic() > until_s):
                raise error
            if time.monotonic() > until_s:
                raise KubeError("nodes and pods could not be listed in time", verb="list", reason="TimedOut")
            time.sleep(_STEP_S)
        self._look()

    def poll(self) -> tuple[FleetChanges, list[Put[Pod] | Vanished[Pod]]]:
        """What is new: of the fleet, and of pods in order. Never blocks."""
        self._look()
        pods, self._pods_seen = self._pods_seen, []
        first, self.at_start = self.at_start, FleetChanges()
        now = self.fleet.changes()
        changes = FleetChanges(
            first.put + now.put,
            first.gone + now.gone,
            first.health + now.health,
            first.used + now.used,
            tiers=now.tiers,
        )
        return changes, pods

    def close(self) -> None:
        for one in (self.nodes, self.pods, self.slices, self.writer):
            if one is not None:
                one.close()
        for close in self.also_close:
            close()

    def _look(self) -> KubeError | None:
        error = None
        for event in self.nodes.poll():
            if isinstance(event, Put | Vanished):
                self.fleet.see_node(event)
                self.nodes_seen.append(event)
                self.boots[event.object.metadata.name] = event.object.status.node_info.boot_id
                self.out_of_service[event.object.metadata.name] = isinstance(event, Put) and any(
                    taint.key == OUT_OF_SERVICE for taint in event.object.spec.taints
                )
            elif isinstance(event, Behind):
                error = event.error
        for slice_event in self.slices.poll() if self.slices is not None else ():
            if isinstance(slice_event, Put | Vanished):
                self.fleet.see_slice(slice_event)
        for change in self.pods.poll():
            if isinstance(change, Put | Vanished):
                self.fleet.see_pod(change)
                self._pods_seen.append(change)
            elif isinstance(change, Behind):
                error = change.error or error
        return error


OUT_OF_SERVICE: Final = "node.kubernetes.io/out-of-service"
"""Taint by which an administrator vouches that nothing runs on a node any more."""
