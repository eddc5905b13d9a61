"""What a cluster has for unidle, and what is missing: asked of its API server, as the user of the kubeconfig."""

from __future__ import annotations

from typing import Any, Final

import msgspec

from unidle import __version__
from unidle.doctor.check import DoctorCheck, State
from unidle.doctor.cluster_agents import agents_check
from unidle.errors import UnidleError
from unidle.kube.commands import CommandCalls, CommandTarget
from unidle.kube.objects import NODES
from unidle.kube.protocol import ApiRequest, KubeError

LEAST_VERSION: Final = (1, 30)
_REVIEW: Final = "/apis/authorization.k8s.io/v1/selfsubjectaccessreviews"
_KINDS: Final = ("jobs", "queues", "topologies", "fleetpolicies")
_RIGHTS: Final = (
    ("list", "jobs", ""),
    ("create", "jobs", ""),
    ("get", "jobs", "log"),
    ("create", "jobs", "profile"),
)
_DEVICES: Final = ("nvidia.com/gpu", "amd.com/gpu", "huawei.com/Ascend910")
INSTALL: Final = "run `unidle kube install`"


def checks(target: CommandTarget) -> list[DoctorCheck]:
    """All checks, in the order to show them; after one that the others need, they are left out. Errors: BadInput."""
    calls = CommandCalls(target)
    try:
        found = [_server(calls)]
        if found[0].state != "ok":
            return found
        found += [_kinds(calls), _nodes(calls), *_controller(calls, target), agents_check(calls, target)]
        return found
    finally:
        calls.close()


def _ask(calls: CommandCalls, path: str, target: str) -> Any:
    return msgspec.json.decode(calls.client.call(ApiRequest("get", "GET", path, target)))


def _server(calls: CommandCalls) -> DoctorCheck:
    needed = "everything on the cluster"
    try:
        told = _ask(calls, "/version", "version")
    except KubeError as error:
        return DoctorCheck("API server", "missing", error.problem, needed, error.remedy or "")
    text = f"{told.get('major', '')}.{told.get('minor', '')}"
    numbers = tuple(int("".join(c for c in part if c.isdigit()) or 0) for part in text.split("."))
    detail = f"Kubernetes {told.get('gitVersion', text)} at {calls.client.access.server}"
    if numbers < LEAST_VERSION:
        return DoctorCheck("API server", "missing", detail, needed, "use Kubernetes 1.30 or newer")
    return DoctorCheck("API server", "ok", detail, needed, "")


def _kinds(calls: CommandCalls) -> DoctorCheck:
    needed = "jobs as objects (kubectl apply)"
    try:
        told = _ask(calls, "/apis/unidle.dev/v1alpha1", "unidle.dev")
    except KubeError as error:
        return DoctorCheck("custom resources", "missing", f"unidle.dev: {error.problem}", needed, INSTALL)
    served = {one["name"] for one in told.get("resources", ())}
    if missing := [kind for kind in _KINDS if kind not in served]:
        return DoctorCheck(
            "custom resources", "missing", f"not served: {', '.join(missing)}", needed, INSTALL
        )
    return DoctorCheck("custom resources", "ok", ", ".join(_KINDS), needed, "")


def _nodes(calls: CommandCalls) -> DoctorCheck:
    needed = "running jobs"
    try:
        nodes = calls.client.list_all(NODES).items
    except KubeError as error:
        return DoctorCheck("nodes", "limited", f"not known: {error.problem}", needed, "ask an administrator")
    ready = [
        node
        for node in nodes
        if any(c.type == "Ready" and c.status == "True" for c in node.status.conditions)
    ]
    devices = sum(int(node.status.allocatable.get(name, "0")) for node in ready for name in _DEVICES)
    detail = f"{len(ready)} of {len(nodes)} Ready, {devices} GPUs"
    if not ready:
        return DoctorCheck("nodes", "missing", detail, needed, "see kubectl describe nodes")
    return DoctorCheck("nodes", "ok", detail, needed, "")


def _controller(calls: CommandCalls, target: CommandTarget) -> list[DoctorCheck]:
    """The controller as commands reach it, and what this user may do there."""
    needed = "commands with --context"
    try:
        told = calls.call("hello")
    except UnidleError as error:
        return [DoctorCheck("controller", "missing", error.problem, needed, error.remedy or INSTALL)]
    release, namespace = str(told["release"]), str(told["namespace"])
    detail = f"release {release} at {target.service}, jobs in namespace {namespace}, you are {told['user']}"
    state: State = "ok" if release == __version__ else "limited"
    remedy = "" if state == "ok" else f"use the same release here: this is {__version__}"
    return [DoctorCheck("controller", state, detail, needed, remedy), _rights(calls, namespace)]


def _rights(calls: CommandCalls, namespace: str) -> DoctorCheck:
    needed = "submitting, output and profiles of jobs"
    missing = []
    for verb, resource, sub in _RIGHTS:
        attributes = {
            "namespace": namespace,
            "verb": verb,
            "group": "unidle.dev",
            "resource": resource,
            "subresource": sub,
        }
        body = {"apiVersion": "authorization.k8s.io/v1", "kind": "SelfSubjectAccessReview",
                "spec": {"resourceAttributes": attributes}}  # fmt: skip
        request = ApiRequest(
            "create", "POST", _REVIEW, "selfsubjectaccessreviews.authorization.k8s.io", body=msgspec.json.encode(body)
        )  # fmt: skip
        try:
            answer = msgspec.json.decode(calls.client.call(request))
        except KubeError as error:
            return DoctorCheck(
                "rights", "limited", f"not known: {error.problem}", needed, "ask an administrator"
            )
        if not (answer.get("status") or {}).get("allowed"):
            missing.append(f"{verb} {resource}{f'/{sub}' if sub else ''}")
    if missing:
        return DoctorCheck(
            "rights", "limited", f"not granted in {namespace}: {', '.join(missing)}", needed,
            "have the ClusterRole unidle-user bound to you there",
        )  # fmt: skip
    return DoctorCheck("rights", "ok", f"jobs in {namespace}: list, create, log, profile", needed, "")
