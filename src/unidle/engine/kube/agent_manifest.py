"""The agents of a cluster: a DaemonSet, its service account, and what each privilege is for. Pure.

``scripts/kube_agent.py`` writes ``deploy/kubernetes/agent.yaml`` and the chart's template of it. The controller writes into
a ConfigMap where the hub is and the certificate of its authority: neither is secret. The agent has no rights at the API server: its token is for
the hub alone.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any, Final

from unidle.engine.kube.manifest import AGENT_ACCOUNT, TOKENS, token_volume

HUB: Final = "unidle-hub"
"""The ConfigMap with ``address`` (HOST:PORT) and ``authority`` (PEM)."""
LABELS: Final = {"app.kubernetes.io/name": "unidle-agent", "app.kubernetes.io/part-of": "unidle"}
SHARED: Final = {
    "hostPID": "ranks are processes of other pods",
    "hostPath /var/lib/kubelet/pods": "read only: which process is which rank",
    "hostPath /var/lib/kubelet/pod-resources": "read only: the kubelet's socket that lists which devices each pod has",
}
"""What the pod has of its node besides capabilities, and what it is for."""
ALWAYS: Final = {
    "DAC_READ_SEARCH": "read what ranks of any user wrote: their process numbers and kernel limits",
    "SYS_PTRACE": "see what ranks of any user do: their connections, what they wait for, and their stacks after a hang",
    "SYSLOG": "read the kernel log, where faults of GPUs, memory and disks are",
}
"""Capabilities of each agent, and what each is for."""
PROFILER: Final = {
    "BPF": "load the profiler's programs into the kernel",
    "PERFMON": "attach them to samples, scheduling and page faults",
    "CHECKPOINT_RESTORE": "read the programs that ranks run from, to name their functions",
}
"""Those that only `unidle profile` and continuous profiles need."""
_STATE: Final = "/var/lib/unidle"
_AUTHORITY: Final = "/etc/unidle"
_PODS: Final = "/var/lib/kubelet/pods"
_DEVICES: Final = "/var/lib/kubelet/pod-resources"


@dataclass(frozen=True, slots=True)
class AgentSettings:
    """``profile``: with the rights that profiles need; ``command``: how the image starts unidle; ``pull``: when it is pulled.

    ``name``: of account and DaemonSet; ``hub``: of the ConfigMap; ``labels``: of all of it.
    """

    namespace: str = "unidle"
    name: str = AGENT_ACCOUNT
    hub: str = HUB
    labels: Mapping[str, str] = field(default_factory=lambda: dict(LABELS))
    image: str = "unidle:dev"
    profile: bool = True
    command: tuple[str, ...] = ("unidle",)
    pull: str = "IfNotPresent"


def agent_objects(settings: AgentSettings) -> list[dict[str, Any]]:
    """The objects to apply, in this order."""
    meta = {"name": settings.name, "namespace": settings.namespace, "labels": dict(settings.labels)}
    account = {
        "apiVersion": "v1",
        "kind": "ServiceAccount",
        "metadata": meta,
        "automountServiceAccountToken": False,
    }
    hub = {"apiVersion": "v1", "kind": "ConfigMap", "metadata": meta | {"name": settings.hub}}
    spec = {
        "selector": {"matchLabels": dict(settings.labels)},
        "updateStrategy": {"type": "RollingUpdate", "rollingUpdate": {"maxUnavailable": "10%"}},
        "template": {"metadata": {"labels": dict(settings.labels)}, "spec": _pod(settings)},
    }
    return [account, hub, {"apiVersion": "apps/v1", "kind": "DaemonSet", "metadata": meta, "spec": spec}]


def _pod(settings: AgentSettings) -> dict[str, Any]:
    return {
        "serviceAccountName": settings.name,
        "automountServiceAccountToken": False,
        "enableServiceLinks": False,
        "hostPID": True,  # ranks are processes of other pods: their numbers, states and stacks
        "priorityClassName": "system-node-critical",  # a node without its agent is not checked
        "tolerations": [{"operator": "Exists"}],  # also a node that is drained or has a fault is watched
        "nodeSelector": {"kubernetes.io/os": "linux"},
        "terminationGracePeriodSeconds": 5,
        "containers": [_container(settings)],
        "volumes": [
            {"name": "state", "emptyDir": {}},
            token_volume(),
            {"name": "hub", "configMap": {"name": settings.hub}},
            {"name": "pods", "hostPath": {"path": _PODS, "type": "Directory"}},
            # the directory: a kubelet that starts again makes another socket
            {"name": "pod-resources", "hostPath": {"path": _DEVICES}},
        ],
    }


def _container(settings: AgentSettings) -> dict[str, Any]:
    rights = [*ALWAYS, *(PROFILER if settings.profile else ())]
    return {
        "name": "agent",
        "image": settings.image,
        "imagePullPolicy": settings.pull,
        "command": list(settings.command),
        "args": [
            "agent",
            f"--join={_AUTHORITY}/address",
            "--node=$(NODE_NAME)",
            f"--token-file={TOKENS}/token",
            f"--authority={_AUTHORITY}/authority",
            f"--pods={_PODS}",
            f"--pod-resources={_DEVICES}/kubelet.sock",
            f"--state={_STATE}/agent",
            "--kernel-log=syslog",
        ],
        "env": [
            {"name": "HOME", "value": _STATE},  # on the node's disk, which is checked so
            {"name": "NODE_NAME", "valueFrom": {"fieldRef": {"fieldPath": "spec.nodeName"}}},
            # the kubelet starts no agent before the controller has written this
            {
                "name": "UNIDLE_HUB",
                "valueFrom": {"configMapKeyRef": {"name": settings.hub, "key": "address"}},
            },
        ],
        "securityContext": _rights(rights),
        "resources": {
            "requests": {"cpu": "20m", "memory": "96Mi"},
            "limits": {"memory": "1Gi"},  # for profiles: at rest it has less than 80 MB
        },
        "volumeMounts": _mounts(),
    }


def _rights(capabilities: list[str]) -> dict[str, Any]:
    return {
        "runAsUser": 0,  # rights of a container's other users are lost at exec
        "allowPrivilegeEscalation": False,
        "readOnlyRootFilesystem": True,
        "capabilities": {"drop": ["ALL"], "add": capabilities},
        "seccompProfile": {"type": "RuntimeDefault"},
    }


def _mounts() -> list[dict[str, Any]]:
    return [
        {"name": "state", "mountPath": _STATE},
        {"name": "state", "mountPath": "/tmp", "subPath": "tmp"},  # noqa: S108 - in its own volume
        {"name": "unidle-token", "mountPath": TOKENS, "readOnly": True},
        {"name": "hub", "mountPath": _AUTHORITY, "readOnly": True},
        {"name": "pods", "mountPath": _PODS, "readOnly": True, "mountPropagation": "HostToContainer"},
        {"name": "pod-resources", "mountPath": _DEVICES, "readOnly": True},
    ]


def rights_of(settings: AgentSettings) -> Mapping[str, str]:
    """Capability -> what it is for."""
    return ALWAYS | (PROFILER if settings.profile else {})
