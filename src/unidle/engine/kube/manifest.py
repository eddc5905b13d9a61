"""The pod of one job on one node, as it is sent to the API server. Pure: the same input gives the same object.

``docs/how-to/kubernetes.md`` shows it. The box is its first process: an init container of unidle's image copies it into
the pod, with a Python of its own, so that the image of the job needs neither. Nothing in the pod is secret: its identity is a token
that the kubelet puts there, and which names the pod.
"""

from __future__ import annotations

import hashlib
import json
import math
import re
from collections import Counter
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final

from unidle.engine.local.ranks.own_python import words_of
from unidle.engine.protocol import StartGang
from unidle.fleet import Device, device_of
from unidle.jobs import JobSpec
from unidle.jobs.pod import PodEnvSource, PodMount, PodToleration, PodWish
from unidle.kube.objects import Pod

JOB: Final = "unidle.dev/job"
CONTROLLER: Final = "unidle.dev/controller"
ATTEMPT: Final = "unidle.dev/attempt"
RANKS: Final = "unidle.dev/ranks"
JOB_NAME: Final = "unidle.dev/job-name"  # the job's id, which may be no label
NODE: Final = "unidle.dev/node"
SHAPE: Final = "unidle.dev/shape"  # what cannot be changed in a pod that is there
FINALIZER: Final = "unidle.dev/end-is-logged"
CONTAINER: Final = "ranks"
AUDIENCE: Final = "unidle-hub"
AGENT_ACCOUNT: Final = "unidle-agent"
"""Service account of the agents, in the namespace of the controller unless another is named."""
PLACE: Final = "/unidle"
TOKENS: Final = "/var/run/secrets/unidle.dev"
_PYTHON: Final = tuple(words_of(f"{PLACE}/python"))
_BOX: Final = "/box.pyz"
_IMAGE_PYTHON: Final = "/python"  # in unidle's image
_TOKEN_S: Final = 3600
_SHARED: Final = "/dev/shm"  # noqa: S108 - data loaders share tensors there, and a container has but 64 MiB of it
_COPY_USER: Final = 65532  # as of unidle's own image; any will do
_STOP_S: Final = 10  # for the box, after the grace of its ranks
_RESOURCES: Final = {"nvidia": "nvidia.com/gpu", "amd": "amd.com/gpu", "ascend": "huawei.com/Ascend910"}
_LABEL: Final = re.compile(r"[A-Za-z0-9]([-A-Za-z0-9_.]{0,61}[A-Za-z0-9])?")


@dataclass(frozen=True, slots=True)
class PodSettings:
    """What all pods of a controller have. ``controller`` names it: two controllers never mistake each other's pods.

    ``hubs`` are where boxes reach it, ``authority`` is the PEM text that they check its certificate by. ``box_image`` is
    unidle's image; ``image`` the one of jobs that name none. ``agents``: namespace and name of the agents' service
    account; None: :data:`AGENT_ACCOUNT` in ``namespace``. ``agent_hub``: those of the ConfigMap from which agents read the
    first of ``hubs``; None: the site writes it. ``hooks``: namespace and image of Jobs that run commands of the site on nodes.
    ``runs``: the run root of the store, where what pods print is kept.
    """

    namespace: str
    controller: str
    hubs: tuple[tuple[str, int], ...]
    authority: str
    box_image: str
    image: str = ""
    agents: tuple[str, str] | None = None
    agent_hub: tuple[str, str] | None = None
    hooks: tuple[str, str] | None = None
    runs: Path | None = None


@dataclass(frozen=True, slots=True)
class PodPlan:
    """The pod that a job needs on a node. ``body`` is sent; ``shape`` is equal for plans that one pod can serve."""

    name: str
    job: str
    node: str
    shape: str
    attempt: int
    ranks: tuple[int, ...]
    body: Mapping[str, Any]

    @property
    def annotations(self) -> dict[str, str]:
        """Those that change with each attempt."""
        return {ATTEMPT: str(self.attempt), RANKS: ranges(self.ranks)}


def python_of(wish: PodWish | None) -> tuple[str, ...]:
    """In a pod of a job: the words before the arguments of the Python that starts its ranks."""
    return ("python3",) if wish is not None and wish.python == "image" else _PYTHON


def pod_name(controller: str, job: str, node: str) -> str:
    """At most 63 characters of a-z, 0-9 and '-': readable, and unique by its hash."""
    told = hashlib.sha256("\0".join((controller, job, node)).encode()).hexdigest()[:10]
    slug = re.sub(r"[^a-z0-9]+", "-", job.lower()).strip("-")[:40].strip("-") or "job"
    return f"{slug}-{told}"


def label_of(job: str) -> str:
    """A job's id as the value of a label: itself where it can be, else made of it with its hash."""
    if len(job) <= 63 and _LABEL.fullmatch(job):
        return job
    slug = re.sub(r"[^A-Za-z0-9]+", "-", job).strip("-")[:40].strip("-") or "job"
    return f"{slug}-{hashlib.sha256(job.encode()).hexdigest()[:10]}"


def place_of(settings: PodSettings, pod: Pod) -> tuple[str, str] | None:
    """Node and job of a pod of this controller; None for any other, also one that only has its labels."""
    meta = pod.metadata
    node, job = meta.annotations.get(NODE, ""), meta.annotations.get(JOB_NAME, "")
    own = (
        meta.namespace == settings.namespace
        and meta.labels.get(CONTROLLER) == settings.controller
        and meta.name == pod_name(settings.controller, job, node)
    )
    return (node, job) if own and pod.spec.node_name == node else None


def ranges(numbers: Iterable[int]) -> str:
    """``0-2,5``."""
    found: list[list[int]] = []
    for number in sorted(numbers):
        if found and number == found[-1][1] + 1:
            found[-1][1] = number
        else:
            found.append([number, number])
    return ",".join(str(a) if a == b else f"{a}-{b}" for a, b in found)


def pod_plans(settings: PodSettings, command: StartGang, devices: Mapping[str, Device]) -> list[PodPlan]:
    """The pods of a gang, one for each of its nodes."""
    return [
        _plan(settings, command, node, devices)
        for node in dict.fromkeys(place.node for place in command.places)
    ]


def _plan(settings: PodSettings, command: StartGang, node: str, devices: Mapping[str, Device]) -> PodPlan:
    places = [place for place in command.places if place.node == node]
    names = [name for place in places for name in place.slices]
    held = Counter(
        _RESOURCES[device.vendor]
        for name in names
        if (device := devices.get(device_of(name))) is not None and device.kind == "gpu"
    )
    spec = _pod_spec(settings, command.spec, command.job, node, len(places), held)
    shape = hashlib.sha256(json.dumps(spec, sort_keys=True).encode()).hexdigest()[:16]
    wish = command.spec.pod or PodWish()
    ranks = tuple(place.rank for place in places)
    plan = PodPlan(
        pod_name(settings.controller, command.job, node), command.job, node, shape, command.attempt, ranks, {}
    )
    metadata = {
        "name": plan.name,
        "namespace": settings.namespace,
        "labels": {
            **wish.labels,
            JOB: label_of(command.job),
            CONTROLLER: settings.controller,
            "app.kubernetes.io/managed-by": "unidle",
        },
        "annotations": {
            **wish.annotations,
            JOB_NAME: command.job,
            NODE: node,
            SHAPE: shape,
            **plan.annotations,
        },
        "finalizers": [FINALIZER],
    }
    body = {"apiVersion": "v1", "kind": "Pod", "metadata": metadata, "spec": spec}
    return PodPlan(plan.name, plan.job, node, shape, command.attempt, ranks, body)


def _pod_spec(
    settings: PodSettings, spec: JobSpec, job: str, node: str, ranks: int, held: Mapping[str, int]
) -> dict[str, Any]:
    wish = spec.pod or PodWish()
    volumes, mounts = _volumes(wish.volumes)
    found: dict[str, Any] = {
        "nodeName": node,
        "restartPolicy": "Never",
        "terminationGracePeriodSeconds": math.ceil(spec.grace_s) + _STOP_S,
        "automountServiceAccountToken": False,
        "enableServiceLinks": False,
        "initContainers": [_box_copy(settings, wish)],
        "containers": [_container(settings, wish, job, node) | {"resources": _resources(spec, ranks, held)}],
        "volumes": [
            {"name": "unidle", "emptyDir": {}},
            token_volume(),
            *volumes,
        ],
    }  # fmt: skip
    found["containers"][0]["volumeMounts"] += mounts
    if all(mount["mountPath"].rstrip("/") != _SHARED for mount in mounts):
        found["volumes"].append({"name": "unidle-shm", "emptyDir": {"medium": "Memory"}})
        found["containers"][0]["volumeMounts"].append({"name": "unidle-shm", "mountPath": _SHARED})
    optional: dict[str, Any] = {
        "imagePullSecrets": [{"name": name} for name in wish.image_pull_secrets],
        "serviceAccountName": wish.service_account,
        "tolerations": [_toleration(one) for one in wish.tolerations],
        "priorityClassName": wish.priority_class,
        "securityContext": _user(wish),
        "hostNetwork": wish.host_network,
    }
    return found | {name: value for name, value in optional.items() if value}


def token_volume() -> dict[str, Any]:
    """The volume with the token by which a pod proves to the hub who it is, and which is good for nothing else."""
    token = {"audience": AUDIENCE, "expirationSeconds": _TOKEN_S, "path": "token"}
    return {"name": "unidle-token", "projected": {"sources": [{"serviceAccountToken": token}]}}


def _box_copy(settings: PodSettings, wish: PodWish) -> dict[str, Any]:
    """Where the job names no user, ranks have that of their image, and this one has its own: the box image need not name it."""
    user = {} if wish.run_as_user is not None else {"runAsUser": _COPY_USER}
    return {
        "name": "unidle-box",
        "image": settings.box_image,
        "command": [*words_of(_IMAGE_PYTHON), "-I", _BOX, "--copy", PLACE],
        "volumeMounts": [{"name": "unidle", "mountPath": PLACE}],
        "securityContext": _rights(()) | user,
    }


def _user(wish: PodWish) -> dict[str, Any]:
    """Who the processes of the pod are: as the level ``restricted`` of Pod Security demands, unless the job requests root."""
    found: dict[str, Any] = {
        "runAsNonRoot": wish.run_as_user != 0,
        "seccompProfile": {"type": "RuntimeDefault"},
    }
    if wish.run_as_user is not None:
        found["runAsUser"] = wish.run_as_user
    if wish.fs_group is not None:
        found["fsGroup"] = wish.fs_group
    return found


def _rights(capabilities: Iterable[str]) -> dict[str, Any]:
    """Of a container."""
    added = sorted(set(capabilities))
    allowed: dict[str, Any] = {"drop": ["ALL"], **({"add": added} if added else {})}
    return {"allowPrivilegeEscalation": False, "capabilities": allowed}


def _container(settings: PodSettings, wish: PodWish, job: str, node: str) -> dict[str, Any]:
    told = {
        "hub": [list(hub) for hub in settings.hubs],
        "authority": settings.authority,
        "token_file": f"{TOKENS}/token",
        "node": node,
        "job": job,
    }
    found: dict[str, Any] = {
        "name": CONTAINER,
        "image": wish.image or settings.image,
        "command": [*python_of(wish), "-I", f"{PLACE}{_BOX}", f"{PLACE}/box", "--output"],
        "env": [{"name": "UNIDLE_BOX", "value": json.dumps(told, sort_keys=True)}],
        "volumeMounts": [
            {"name": "unidle", "mountPath": PLACE},
            {"name": "unidle-token", "mountPath": TOKENS, "readOnly": True},
        ],
        "securityContext": _rights(wish.capabilities),
    }
    if wish.env_from:
        found["envFrom"] = [_env_source(one) for one in wish.env_from]
    if wish.image_pull_policy is not None:
        found["imagePullPolicy"] = wish.image_pull_policy
    return found


def _resources(spec: JobSpec, ranks: int, held: Mapping[str, int]) -> dict[str, Any]:
    """What all ranks of the pod together request; extended resources need a limit that is the same."""
    wish = spec.pod or PodWish()
    extended = {name: str(count * ranks) for name, count in wish.resources.items()}
    extended |= {name: str(count) for name, count in held.items()}
    requests = dict(extended)
    if spec.requests.cpu_milli:
        requests["cpu"] = f"{spec.requests.cpu_milli * ranks}m"
    if spec.requests.memory_bytes:
        requests["memory"] = str(spec.requests.memory_bytes * ranks)
    found = {"requests": requests, "limits": extended}
    return {name: value for name, value in found.items() if value}


def _volumes(wanted: Iterable[PodMount]) -> tuple[list[dict[str, Any]], list[dict[str, Any]]]:
    """Volumes and their mounts; one source that is mounted twice is one volume."""
    volumes: dict[str, dict[str, Any]] = {}
    mounts: list[dict[str, Any]] = []
    names: dict[str, str] = {}
    for number, mount in enumerate(wanted):
        source = _source(mount)
        key = json.dumps(source, sort_keys=True) if mount.source else str(number)
        name = names.setdefault(key, f"volume-{len(names)}")
        volumes[name] = {"name": name, **source}
        found: dict[str, Any] = {"name": name, "mountPath": mount.path}
        if mount.read_only:
            found["readOnly"] = True
        if mount.sub_path:
            found["subPath"] = mount.sub_path
        mounts.append(found)
    return list(volumes.values()), mounts


def _source(mount: PodMount) -> dict[str, Any]:
    if mount.kind == "claim":
        return {"persistentVolumeClaim": {"claimName": mount.source}}
    if mount.kind == "secret":
        return {"secret": {"secretName": mount.source}}
    if mount.kind == "config_map":
        return {"configMap": {"name": mount.source}}
    if mount.kind == "host_path":
        return {"hostPath": {"path": mount.source}}
    if mount.kind == "memory":
        return {"emptyDir": {"medium": "Memory", "sizeLimit": str(mount.size_bytes)}}
    return {"emptyDir": {}}


def _env_source(one: PodEnvSource) -> dict[str, Any]:
    kind = "secretRef" if one.kind == "secret" else "configMapRef"
    return {kind: {"name": one.source}, **({"prefix": one.prefix} if one.prefix else {})}


def _toleration(one: PodToleration) -> dict[str, Any]:
    found: dict[str, Any] = {"operator": "Equal" if one.value else "Exists"}
    optional = {"key": one.key, "value": one.value, "effect": one.effect, "tolerationSeconds": one.seconds}
    return found | {name: value for name, value in optional.items() if value not in ("", None)}
