"""What a job needs of its pods on a Kubernetes cluster, beyond its ranks and their devices. Other engines have no use for it."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Final, Literal

NO_CPUS: Final = "the job requests no CPUs: on a busy node its pods get only what all others leave; add `requests: {cpus: N}`, N for each rank"
"""Of a job on a cluster without that request: its pods have the smallest weight that there is."""
ImagePull = Literal["Always", "IfNotPresent", "Never"]
PodPython = Literal["own", "image"]
"""What supervises ranks in a pod: the Python that unidle brings along, or `python3` of the image."""
MountKind = Literal["claim", "secret", "config_map", "host_path", "memory", "empty"]
TaintEffect = Literal["NoSchedule", "PreferNoSchedule", "NoExecute"]


@dataclass(frozen=True, slots=True)
class PodMount:
    """A volume, mounted at ``path``. ``source``: the name of the claim, secret or config map, or the path on the host.

    ``size_bytes`` bounds one in memory, or an empty one; 0: no bound.
    """

    path: str
    kind: MountKind
    source: str = ""
    read_only: bool = False
    sub_path: str = ""
    size_bytes: int = 0


@dataclass(frozen=True, slots=True)
class PodEnvSource:
    """All entries of a secret or config map as environment variables, each with ``prefix`` in front."""

    kind: Literal["secret", "config_map"]
    source: str
    prefix: str = ""


@dataclass(frozen=True, slots=True)
class PodToleration:
    """A taint that the pods tolerate. Without ``key`` all of the effect; without ``value`` any of it."""

    key: str = ""
    value: str = ""
    effect: TaintEffect | None = None
    seconds: int | None = None


@dataclass(frozen=True, slots=True)
class PodWish:
    """``resources`` are extended resources for each rank, such as ``rdma/hca``. ``image`` empty: that of the cluster's settings.

    Without ``run_as_user`` the image's user, which may not be root. ``capabilities`` are added to none.
    """

    image: str = ""
    image_pull_policy: ImagePull | None = None
    image_pull_secrets: tuple[str, ...] = ()
    volumes: tuple[PodMount, ...] = ()
    env_from: tuple[PodEnvSource, ...] = ()
    service_account: str = ""
    tolerations: tuple[PodToleration, ...] = ()
    node_selector: dict[str, str] = field(default_factory=dict)
    resources: dict[str, int] = field(default_factory=dict)
    labels: dict[str, str] = field(default_factory=dict)
    annotations: dict[str, str] = field(default_factory=dict)
    priority_class: str = ""
    run_as_user: int | None = None
    fs_group: int | None = None
    capabilities: tuple[str, ...] = ()
    host_network: bool = False
    python: PodPython = "own"
