"""etcd, the API server, its controllers, the scheduler and kwok: in one network namespace of their own."""

from __future__ import annotations

import json
from typing import Any, Final

from kube_cluster import pki
from kube_cluster.api import Api
from kube_cluster.assets import Assets
from kube_cluster.layout import API_PORT, MASTER, Layout
from kube_cluster.processes import Starter

MASTERS: Final = "system:masters"
GATES: Final = "GenericWorkload=true"
"""Workload and PodGroup, beta in 1.37 and off by default: what kube-scheduler needs to place a gang."""
GROUPS: Final = "scheduling.k8s.io/v1beta1=true"
_MANY_KWOK: Final = 200
_ETCD: Final = "http://127.0.0.1:2379"


AUDIT: Final = {
    "apiVersion": "audit.k8s.io/v1",
    "kind": "Policy",
    "omitStages": ["RequestReceived"],
    "rules": [
        {"level": "None", "userGroups": ["system:serviceaccounts:kube-system"]},
        {"level": "Metadata", "userGroups": ["system:serviceaccounts"]},
        {"level": "None"},
    ],
}
"""What the API server writes down: requests by service accounts, for tests of which rights are used."""


def identities(layout: Layout) -> pki.Authority:
    """The authority, and files of all that the control plane shows and is. A kubelet's are made with its node."""
    authority = pki.Authority(layout.pki, "ca")
    proxies = pki.Authority(layout.pki, "proxy-ca")
    names = (*pki.API_NAMES, layout.address(0), layout.api_service, "127.0.0.1")
    authority.sign(layout.pki / "apiserver", "kube-apiserver", names=names)
    authority.sign(layout.pki / "to-kubelets", "kube-apiserver", [MASTERS])
    proxies.sign(layout.pki / "proxy", "front-proxy-client")
    pki.signing_pair(layout.pki)
    for user in ("kube-controller-manager", "kube-scheduler"):
        pair = authority.sign(layout.pki / user, f"system:{user}")
        pki.write_kubeconfig(layout.pki / f"{user}.conf", layout, authority.file, pair, user)
    admin = authority.sign(layout.pki / "admin", "admin", [MASTERS])
    pki.write_kubeconfig(layout.kubeconfig, layout, authority.file, admin, "admin")
    return authority


def start_api(starter: Starter, assets: Assets) -> None:
    """etcd and the API server; it is not ready yet."""
    layout = starter.layout
    etcd: dict[str, Any] = {
        "name": MASTER,
        "data-dir": layout.master / "etcd",
        "listen-client-urls": _ETCD,
        "advertise-client-urls": _ETCD,
        "listen-peer-urls": "http://127.0.0.1:2380",
        "initial-advertise-peer-urls": "http://127.0.0.1:2380",
        "initial-cluster": f"{MASTER}=http://127.0.0.1:2380",
        "unsafe-no-fsync": "true",
        "quota-backend-bytes": 4 << 30,
        "log-level": "warn",
    }
    starter.start("etcd", MASTER, [assets.program("etcd"), *_options(etcd)])
    (layout.master / "audit.json").write_text(json.dumps(AUDIT))
    starter.start(
        "kube-apiserver", MASTER, [assets.program("kube-apiserver"), *_options(_api_options(layout))]
    )


def _api_options(layout: Layout) -> dict[str, Any]:
    own = layout.pki
    return {
        "etcd-servers": _ETCD,
        "bind-address": "0.0.0.0",  # of its own namespace
        "secure-port": API_PORT,
        "advertise-address": layout.address(0),
        "service-cluster-ip-range": layout.service_range,
        "tls-cert-file": own / "apiserver.crt",
        "tls-private-key-file": own / "apiserver.key",
        "client-ca-file": own / "ca.crt",
        "service-account-issuer": "https://kubernetes.default.svc",
        "service-account-key-file": own / "accounts.pub",
        "service-account-signing-key-file": own / "accounts.key",
        "authorization-mode": "Node,RBAC",
        "enable-admission-plugins": "NodeRestriction",
        "allow-privileged": "true",
        "kubelet-certificate-authority": own / "ca.crt",
        "kubelet-client-certificate": own / "to-kubelets.crt",
        "kubelet-client-key": own / "to-kubelets.key",
        "kubelet-preferred-address-types": "InternalIP",
        "requestheader-client-ca-file": own / "proxy-ca.crt",
        "requestheader-allowed-names": "front-proxy-client",
        "requestheader-extra-headers-prefix": "X-Remote-Extra-",
        "requestheader-group-headers": "X-Remote-Group",
        "requestheader-username-headers": "X-Remote-User",
        "proxy-client-cert-file": own / "proxy.crt",
        "proxy-client-key-file": own / "proxy.key",
        "audit-policy-file": layout.master / "audit.json",
        "audit-log-path": layout.audit,
        "audit-log-maxsize": 100,
        "audit-log-maxbackup": 1,
        "feature-gates": GATES,
        "runtime-config": GROUPS,
    }


def start_controllers(starter: Starter, assets: Assets, kwok: int) -> None:
    """The controller manager and the scheduler. The API server has to be ready."""
    layout = starter.layout
    manager = layout.pki / "kube-controller-manager.conf"
    controllers: dict[str, Any] = {
        "kubeconfig": manager,
        "authentication-kubeconfig": manager,
        "authorization-kubeconfig": manager,
        "bind-address": "127.0.0.1",
        "leader-elect": "false",
        "use-service-account-credentials": "true",
        "service-account-private-key-file": layout.pki / "accounts.key",
        "root-ca-file": layout.pki / "ca.crt",
        "allocate-node-cidrs": "false",
        "node-monitor-period": "1s",
        "node-monitor-grace-period": "50s" if kwok > _MANY_KWOK else "12s",
        "feature-gates": GATES,
    }
    program = "kube-controller-manager"
    starter.start(program, MASTER, [assets.program(program), *_options(controllers)])
    scheduler = layout.pki / "kube-scheduler.conf"
    places: dict[str, Any] = {
        "kubeconfig": scheduler,
        "authentication-kubeconfig": scheduler,
        "authorization-kubeconfig": scheduler,
        "bind-address": "127.0.0.1",
        "leader-elect": "false",
        "feature-gates": GATES,
    }
    starter.start("kube-scheduler", MASTER, [assets.program("kube-scheduler"), *_options(places)])


def start_kwok(starter: Starter, assets: Assets, kwok: int) -> None:
    """Renews the leases of its nodes, and lets the pods on them run without a process."""
    options: dict[str, Any] = {
        "kubeconfig": starter.layout.kubeconfig,
        "config": assets.stages,
        "manage-nodes-with-annotation-selector": "kwok.x-k8s.io/node=fake",
        "node-lease-duration-seconds": 40 if kwok > _MANY_KWOK else 20,
        "cidr": f"10.{starter.layout.octet}.254.0/24",
    }
    starter.start("kwok", MASTER, [assets.program("kwok"), *_options(options)])


def kwok_node(name: str) -> dict[str, Any]:
    """A node that exists only in the API server. Pods are placed there only if they tolerate it."""
    room = {"cpu": "64", "memory": "512Gi", "pods": "110"}
    return {
        "apiVersion": "v1",
        "kind": "Node",
        "metadata": {
            "name": name,
            "annotations": {"kwok.x-k8s.io/node": "fake"},
            "labels": {
                "kubernetes.io/hostname": name,
                "kubernetes.io/os": "linux",
                "kubernetes.io/arch": "amd64",
                "type": "kwok",
            },
        },
        "spec": {"taints": [{"key": "kwok.x-k8s.io/node", "value": "fake", "effect": "NoSchedule"}]},
        "status": {"allocatable": room, "capacity": room},
    }


def usable(api: Api) -> bool:
    """Whether a pod can be created: its service account exists."""
    return api.exists("/api/v1/namespaces/default/serviceaccounts/default")


def _options(told: dict[str, Any]) -> list[str]:
    return [f"--{name}={value}" for name, value in told.items()]
