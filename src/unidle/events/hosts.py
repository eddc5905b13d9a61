"""Events of hosts: nodes that come, change and leave, what others use of them, and ranks that do not answer."""

from __future__ import annotations

from typing import Literal

import msgspec
from msgspec import UNSET, UnsetType

from unidle.events import Base
from unidle.fleet import Fleet, LinkClass, Node
from unidle.fleet.policies import WatchSources
from unidle.jobs import Reason


class NodeEdit(msgspec.Struct, frozen=True, omit_defaults=True):
    """A known node with the same devices, of which only what changed is written.

    ``labels``: those with another value, and those that are gone (None).
    """

    id: str
    labels: dict[str, str | None] = {}
    taints: tuple[str, ...] | UnsetType = UNSET
    parent: str | UnsetType = UNSET
    cpus: float | UnsetType = UNSET
    memory_bytes: int | UnsetType = UNSET
    address: str | UnsetType = UNSET
    fabric: LinkClass | UnsetType | None = UNSET
    gpu_links: str | UnsetType = UNSET
    netns: str | UnsetType = UNSET
    watch: WatchSources | UnsetType | None = UNSET
    sources: tuple[str, ...] | UnsetType = UNSET


class ClockMeasured(Base, frozen=True, omit_defaults=True):
    """A host's clock since boot ``boot`` plus ``offset_ns`` is the log's time, give or take ``error_ns``.

    Written when that is first known, when it contradicts what was known, and when the error is quite another.
    """

    node: str
    boot: str
    offset_ns: int
    error_ns: int


class FleetChanged(Base, frozen=True, omit_defaults=True):
    """Nodes changed (``edits``), came or have other devices now (``put``), or left (``gone``: ids).

    Nodes keep their order, and new ones come last.
    """

    put: tuple[Node, ...] = ()
    edits: tuple[NodeEdit, ...] = ()
    gone: tuple[str, ...] = ()


class FleetDeclared(Base, frozen=True, omit_defaults=True):
    """All of the fleet but its nodes is this from now on: tiers, links, queues, policies. ``fleet`` has no nodes."""

    fleet: Fleet


OtherPhase = Literal["starting", "running", "ending"]


class OtherPod(msgspec.Struct, frozen=True, array_like=True):
    """A pod that unidle did not start, as ``NAMESPACE/NAME``, and the devices that are counted as its own."""

    name: str
    phase: OtherPhase
    devices: tuple[str, ...]


PodPhase = Literal["pod_binding", "volume_mount", "image_pull", "container_start"]
"""How far the pod of a job has come, as leaves of the ledger."""


class PodsSeen(Base, frozen=True, omit_defaults=True):
    """The pods of an attempt on these nodes have come so far."""

    job: str
    attempt: int
    nodes: tuple[str, ...]
    phase: PodPhase


class NodeTaken(Base, frozen=True, omit_defaults=True):
    """All that others use of a node from now on: cores, bytes of memory, devices (ids); zeros: nothing any more.

    ``pods``: of a cluster, those among them that have devices.
    """

    node: str
    cpus: float
    memory_bytes: int
    devices: tuple[str, ...]
    because: Reason
    pods: tuple[OtherPod, ...] = ()


class RanksSilent(Base, frozen=True, omit_defaults=True):
    """These ranks have not answered since ``since_ns``; 0: they answer again."""

    job: str
    attempt: int
    ranks: tuple[int, ...]
    since_ns: int


class AttemptDisrupted(Base, frozen=True, omit_defaults=True):
    """Others end the attempt: that is no failure, and its job waits again."""

    job: str
    attempt: int
    because: Reason


class RankLanded(Base, frozen=True, omit_defaults=True):
    """The host gave a rank other slices (ids) than were placed, as many, which it has from now on.

    An attempt that has one of them gets one of those that were placed instead, until the host reports what it got.
    """

    job: str
    attempt: int
    rank: int
    node: str
    slices: tuple[str, ...]
