"""Kubernetes objects as unidle reads them: the fields used and no others, decoded from JSON by msgspec.

Times are text in RFC 3339 as the server gives them. Quantities (``"1500m"``, ``"2Gi"``) are read by
:mod:`unidle.kube.quantity`. The structs are frozen and hold no cycles.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, Generic, Protocol, TypeVar

import msgspec


class Struct(msgspec.Struct, frozen=True, rename="camel", gc=False, omit_defaults=True):
    """Base of all objects. Unknown fields are skipped without being stored."""


class OwnerReference(Struct, frozen=True, gc=False):
    api_version: str = ""
    kind: str = ""
    name: str = ""
    uid: str = ""
    controller: bool | None = None


class Metadata(Struct, frozen=True, gc=False):
    name: str = ""
    namespace: str = ""
    uid: str = ""
    resource_version: str = ""
    generation: int = 0
    labels: dict[str, str] = msgspec.field(default_factory=dict)
    annotations: dict[str, str] = msgspec.field(default_factory=dict)
    creation_timestamp: str = ""
    deletion_timestamp: str = ""
    deletion_grace_period_seconds: int | None = None
    finalizers: tuple[str, ...] = ()
    owner_references: tuple[OwnerReference, ...] = ()


class HasMetadata(Protocol):
    """An object of the API."""

    @property
    def metadata(self) -> Metadata: ...


T = TypeVar("T", bound=HasMetadata)


@dataclass(frozen=True, slots=True)
class ObjectKind(Generic[T]):
    """One kind of object: where the server has it, and the struct that it is decoded into."""

    group: str
    version: str
    plural: str
    type: type[T]
    namespaced: bool = True

    def path(self, namespace: str = "", name: str = "", sub: str = "") -> str:
        """The path on the server; without ``namespace`` that of all namespaces."""
        top = f"/apis/{self.group}/{self.version}" if self.group else f"/api/{self.version}"
        within = f"/namespaces/{namespace}" if self.namespaced and namespace else ""
        return "/".join(part for part in (f"{top}{within}/{self.plural}", name, sub) if part)

    def __str__(self) -> str:
        return f"{self.plural}.{self.group}" if self.group else self.plural


class Condition(Struct, frozen=True, gc=False):
    type: str = ""
    status: str = ""  # "True", "False", "Unknown"
    reason: str = ""
    message: str = ""
    last_transition_time: str = ""


# Nodes


class Taint(Struct, frozen=True, gc=False):
    key: str = ""
    value: str = ""
    effect: str = ""
    time_added: str = ""


class NodeSpec(Struct, frozen=True, gc=False):
    taints: tuple[Taint, ...] = ()
    unschedulable: bool = False
    provider_id: str = msgspec.field(default="", name="providerID")


class NodeAddress(Struct, frozen=True, gc=False):
    type: str = ""
    address: str = ""


class NodeInfo(Struct, frozen=True, gc=False):
    boot_id: str = msgspec.field(default="", name="bootID")
    kernel_version: str = ""
    kubelet_version: str = ""
    container_runtime_version: str = ""
    architecture: str = ""


class NodeStatus(Struct, frozen=True, gc=False):
    allocatable: dict[str, str] = msgspec.field(default_factory=dict)
    capacity: dict[str, str] = msgspec.field(default_factory=dict)
    addresses: tuple[NodeAddress, ...] = ()
    conditions: tuple[Condition, ...] = ()
    node_info: NodeInfo = NodeInfo()


class KubeNode(Struct, frozen=True, gc=False):
    metadata: Metadata = Metadata()
    spec: NodeSpec = NodeSpec()
    status: NodeStatus = NodeStatus()


# Pods


class Resources(Struct, frozen=True, gc=False):
    requests: dict[str, str] = msgspec.field(default_factory=dict)
    limits: dict[str, str] = msgspec.field(default_factory=dict)


class Container(Struct, frozen=True, gc=False):
    name: str = ""
    image: str = ""
    resources: Resources = Resources()
    restart_policy: str = ""  # "Always": an init container that stays (a sidecar)


class Toleration(Struct, frozen=True, gc=False):
    key: str = ""
    operator: str = ""
    value: str = ""
    effect: str = ""


class PodResourceClaim(Struct, frozen=True, gc=False):
    name: str = ""
    resource_claim_name: str = ""
    resource_claim_template_name: str = ""


class SchedulingGate(Struct, frozen=True, gc=False):
    name: str = ""


class PodSpec(Struct, frozen=True, gc=False):
    node_name: str = ""
    scheduler_name: str = ""
    containers: tuple[Container, ...] = ()
    init_containers: tuple[Container, ...] = ()
    overhead: dict[str, str] = msgspec.field(default_factory=dict)
    resources: Resources = Resources()  # of the whole pod
    priority: int = 0
    priority_class_name: str = ""
    node_selector: dict[str, str] = msgspec.field(default_factory=dict)
    tolerations: tuple[Toleration, ...] = ()
    scheduling_gates: tuple[SchedulingGate, ...] = ()
    resource_claims: tuple[PodResourceClaim, ...] = ()
    restart_policy: str = ""
    termination_grace_period_seconds: int | None = None
    active_deadline_seconds: int | None = None


class ContainerRunning(Struct, frozen=True, gc=False):
    started_at: str = ""


class ContainerWaiting(Struct, frozen=True, gc=False):
    reason: str = ""  # "ErrImagePull", "ImagePullBackOff", "CreateContainerError", ...
    message: str = ""


class Terminated(Struct, frozen=True, gc=False):
    exit_code: int = 0
    signal: int = 0
    reason: str = ""  # "OOMKilled", "Error", "Completed", ...
    message: str = ""  # the termination message
    started_at: str = ""
    finished_at: str = ""


class ContainerState(Struct, frozen=True, gc=False):
    running: ContainerRunning | None = None
    waiting: ContainerWaiting | None = None
    terminated: Terminated | None = None


class ContainerStatus(Struct, frozen=True, gc=False):
    name: str = ""
    ready: bool = False
    restart_count: int = 0
    state: ContainerState = ContainerState()
    last_state: ContainerState = ContainerState()
    image_id: str = msgspec.field(default="", name="imageID")
    container_id: str = msgspec.field(default="", name="containerID")


class PodStatus(Struct, frozen=True, gc=False):
    phase: str = ""
    reason: str = ""  # "Evicted", "NodeLost", "DeadlineExceeded", ...
    message: str = ""
    conditions: tuple[Condition, ...] = ()
    pod_ip: str = msgspec.field(default="", name="podIP")
    host_ip: str = msgspec.field(default="", name="hostIP")
    start_time: str = ""
    init_container_statuses: tuple[ContainerStatus, ...] = ()
    container_statuses: tuple[ContainerStatus, ...] = ()


class Pod(Struct, frozen=True, gc=False):
    metadata: Metadata = Metadata()
    spec: PodSpec = PodSpec()
    status: PodStatus = PodStatus()

    @property
    def ended(self) -> bool:
        """Whether it runs no more, and holds nothing of its node."""
        return self.status.phase in ("Succeeded", "Failed")


# Devices of resource.k8s.io


class PoolOfSlices(Struct, frozen=True, gc=False):
    name: str = ""
    generation: int = 0
    resource_slice_count: int = 0


class Attribute(Struct, frozen=True, gc=False):
    string: str | None = None
    int_: int | None = msgspec.field(default=None, name="int")
    bool_: bool | None = msgspec.field(default=None, name="bool")
    version: str | None = None


class Capacity(Struct, frozen=True, gc=False):
    value: str = ""


class ClusterDevice(Struct, frozen=True, gc=False):
    name: str = ""
    attributes: dict[str, Attribute] = msgspec.field(default_factory=dict)
    capacity: dict[str, Capacity] = msgspec.field(default_factory=dict)
    taints: tuple[Taint, ...] = ()


class ResourceSliceSpec(Struct, frozen=True, gc=False):
    driver: str = ""
    node_name: str = ""
    pool: PoolOfSlices = PoolOfSlices()
    devices: tuple[ClusterDevice, ...] = ()


class ResourceSlice(Struct, frozen=True, gc=False):
    metadata: Metadata = Metadata()
    spec: ResourceSliceSpec = ResourceSliceSpec()


class AnyObject(Struct, frozen=True, gc=False):
    """An object of which only the metadata is read."""

    metadata: Metadata = Metadata()


class RawObject(Struct, frozen=True, gc=False):
    """An object with its spec and status as plain values."""

    metadata: Metadata = Metadata()
    spec: dict[str, Any] = msgspec.field(default_factory=dict)
    status: dict[str, Any] = msgspec.field(default_factory=dict)


NODES = ObjectKind("", "v1", "nodes", KubeNode, namespaced=False)
PODS = ObjectKind("", "v1", "pods", Pod)
NAMESPACES = ObjectKind("", "v1", "namespaces", AnyObject, namespaced=False)
EVENTS = ObjectKind("events.k8s.io", "v1", "events", AnyObject)
CONFIG_MAPS = ObjectKind("", "v1", "configmaps", AnyObject)
SECRETS = ObjectKind("", "v1", "secrets", AnyObject)
SERVICES = ObjectKind("", "v1", "services", AnyObject)
JOBS = ObjectKind("batch", "v1", "jobs", AnyObject)
UNIDLE_QUEUES = ObjectKind("unidle.dev", "v1alpha1", "queues", RawObject, namespaced=False)
UNIDLE_TOPOLOGIES = ObjectKind("unidle.dev", "v1alpha1", "topologies", RawObject, namespaced=False)
UNIDLE_POLICIES = ObjectKind("unidle.dev", "v1alpha1", "fleetpolicies", RawObject, namespaced=False)
UNIDLE_JOBS = ObjectKind("unidle.dev", "v1alpha1", "jobs", RawObject)
RESOURCE_SLICES = ObjectKind("resource.k8s.io", "v1", "resourceslices", ResourceSlice, namespaced=False)
