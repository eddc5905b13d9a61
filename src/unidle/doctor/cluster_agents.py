"""Whether the agents of a cluster run and have joined, and why not: asked of the API server and the controller."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, Final

import msgspec

from unidle.doctor.check import DoctorCheck
from unidle.errors import UnidleError
from unidle.kube.commands import CommandCalls, CommandTarget
from unidle.kube.protocol import ApiRequest, KubeError
from unidle.store.cluster import address_of_target
from unidle.store.open import open_store
from unidle.view.snapshot import load_view
from unidle.view.watching import without_agent
from unidle.words import counted

NEEDED_FOR: Final = (
    "checks of nodes, kernel logs, hangs, stragglers, idle devices and profiles; jobs run without"
)
_NAMED: Final = 4


def agents_check(calls: CommandCalls, target: CommandTarget) -> DoctorCheck:
    """The DaemonSet of the release and its pods, then which of them have joined the controller."""
    namespace, _, release = target.service.partition("/")
    name = f"{release}-agent"
    try:
        daemon = _get(calls, f"/apis/apps/v1/namespaces/{namespace}/daemonsets/{name}", f"daemonsets {name}")
    except KubeError as error:
        if error.status != 404:
            return _limited(f"not known: {error.problem}", "ask an administrator")
        unwatched = _unheard(target)
        if unwatched == []:
            return DoctorCheck("agents", "ok", "not of this release; one of each node has joined", NEEDED_FOR)
        return _limited("none: no node is watched", "set agents.enabled=true in the values of the chart")
    status: Mapping[str, Any] = daemon.get("status") or {}
    wanted, ready = int(status.get("desiredNumberScheduled", 0)), int(status.get("numberReady", 0))
    made = int(status.get("currentNumberScheduled", 0))
    detail = f"{ready} of {counted(wanted, 'agent')} ready"
    if ready < wanted or not wanted:
        why, remedy = _why(calls, namespace, name, release, made, wanted)
        return _limited(f"{detail}{f': {why}' if why else ''}", remedy)
    unheard = _unheard(target)
    if unheard is None:
        return _limited(f"{detail}; whether they have joined is not known", "see the check of the controller")
    if unheard:
        more = f" and {counted(len(unheard) - _NAMED, 'more node')}" if len(unheard) > _NAMED else ""
        return _limited(
            f"{detail}; not joined: that of {', '.join(unheard[:_NAMED])}{more}",
            f"see kubectl logs -n {namespace} daemonset/{name}",
        )
    return DoctorCheck("agents", "ok", f"{detail}, all have joined", NEEDED_FOR)


def _limited(detail: str, remedy: str) -> DoctorCheck:
    return DoctorCheck("agents", "limited", detail, NEEDED_FOR, remedy)


def _get(calls: CommandCalls, path: str, target: str) -> Any:
    return msgspec.json.decode(calls.client.call(ApiRequest("get", "GET", path, target)))


def _unheard(target: CommandTarget) -> list[str] | None:
    """Nodes whose agent has not joined the controller; None where it cannot be asked."""
    try:
        store = open_store(address_of_target(target), create=False)
        try:
            view = load_view(store)
        finally:
            store.close()
    except UnidleError:
        return None
    return without_agent(view, [node.id for node in view.fleet.nodes])


def _why(
    calls: CommandCalls, namespace: str, name: str, release: str, made: int, wanted: int
) -> tuple[str, str]:
    """Why agents are not ready, and the remedy; from their pods, else from the events of the DaemonSet."""
    if not wanted:
        return "no node is meant", "see agents.nodeSelector in the values of the chart"
    try:
        selector = f"app.kubernetes.io/name=unidle-agent,app.kubernetes.io/instance={release}"
        pods = _get(calls, f"/api/v1/namespaces/{namespace}/pods?labelSelector={selector}", "pods")["items"]
        if (found := _of_pods(pods, release)) is not None:
            return found
        if made < wanted or not pods:
            events = _get(
                calls,
                f"/api/v1/namespaces/{namespace}/events?fieldSelector=involvedObject.name={name}",
                "events",
            )
            return _of_events(events["items"], namespace)
    except KubeError as error:
        return f"why is not known: {error.problem}", "ask an administrator"
    return "", f"wait, or see kubectl describe -n {namespace} daemonset/{name}"


def _of_pods(pods: Sequence[Mapping[str, Any]], release: str) -> tuple[str, str] | None:
    """What the first pod that does not start waits for."""
    for pod in sorted(pods, key=lambda one: str(one["metadata"]["name"])):
        status = pod.get("status") or {}
        node = (pod.get("spec") or {}).get("nodeName") or "no node"
        for container in status.get("containerStatuses") or ():
            waiting = (container.get("state") or {}).get("waiting") or {}
            ended = (container.get("lastState") or {}).get("terminated") or {}
            reason, message = str(waiting.get("reason", "")), str(waiting.get("message", ""))
            if reason == "CreateContainerConfigError" and f"{release}-hub" in message:
                return (
                    f"on {node}: the controller has not written where it is into ConfigMap {release}-hub",
                    "see the check of the controller, and its log",
                )
            if reason and reason not in ("ContainerCreating", "PodInitializing"):
                code = f", exit code {ended['exitCode']}" if "exitCode" in ended else ""
                return f"on {node}: {reason}{code}: {message}"[
                    :300
                ], f"see kubectl logs {pod['metadata']['name']}"
        for condition in status.get("conditions") or ():
            if condition.get("type") == "PodScheduled" and condition.get("status") == "False":
                return str(condition.get("message", "its pod is not scheduled"))[
                    :300
                ], "see kubectl describe pod"
    return None


def _of_events(events: Sequence[Mapping[str, Any]], namespace: str) -> tuple[str, str]:
    """Why no pod is made, in the words of the last warning."""
    warnings = [one for one in events if one.get("type") == "Warning"]
    if not warnings:
        return "their pods are not made yet", "wait"
    last = max(warnings, key=lambda one: str(one.get("lastTimestamp") or one.get("eventTime") or ""))
    text = str(last.get("message", ""))[:400]
    remedy = "see kubectl get events"
    if "PodSecurity" in text:
        remedy = f"label the namespace: kubectl label namespace {namespace} pod-security.kubernetes.io/enforce=privileged, or set agents.enabled=false"
    return text, remedy
