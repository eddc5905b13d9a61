"""What the status of a pod means for the ranks in it. Pure.

Only the kubelet's word that the container has ended shows that its ranks are dead: a pod that is being deleted, or
whose node does not answer, may still run.
"""

from __future__ import annotations

from datetime import datetime
from typing import Final

from unidle.engine.kube.manifest import CONTAINER
from unidle.engine.local.ranks.own_python import LOADER
from unidle.events.hosts import PodPhase
from unidle.jobs import Reason
from unidle.kube.objects import Condition, ContainerStatus, Pod, Terminated

HOPELESS: Final = frozenset({"InvalidImageName", "ErrImageNeverPull", "CreateContainerConfigError"})
"""Why a container waits that will not pass by itself."""
_STARTING: Final = frozenset({"", "ContainerCreating", "PodInitializing"})
_OTHERS: Final = {
    "PreemptionByScheduler": ("pod_preempted", "a pod of higher priority preempts it"),
    "DeletionByTaintManager": ("pod_tainted", "a taint of its node that it does not tolerate removes it"),
    "EvictionByEvictionAPI": ("pod_evicted", "it is evicted through the API, as by `kubectl drain`"),
    "DeletionByPodGC": ("pod_collected", "its node left the cluster"),
    "TerminationByKubelet": ("pod_evicted", "the kubelet ends it"),
}
_ROOT_REMEDY: Final = (
    "; name the user in the job: `pod: {run_as_user: 1000}`, or 0 for root where the cluster allows it"
)
_LOADER: Final = f"/{LOADER}"
_NO_PYTHON: Final = '"python3"'
_SLACK_S: Final = 5.0  # between the clocks of node and controller


def ranks_container(pod: Pod) -> ContainerStatus | None:
    return next((one for one in pod.status.container_statuses if one.name == CONTAINER), None)


def pod_phase(pod: Pod) -> PodPhase:
    """How far a pod has come towards its ranks. The kubelet mounts volumes, makes the sandbox, and then pulls images."""
    if not pod.spec.node_name:
        return "pod_binding"
    status = ranks_container(pod)
    if status is not None and (status.state.running or status.state.terminated) is not None:
        return "container_start"
    ready = _condition(pod, "PodReadyToStartContainers")
    return "image_pull" if ready is not None and ready.status == "True" else "volume_mount"


def has_terminated(pod: Pod) -> bool:
    """Whether the kubelet reports that no process of the ranks is alive."""
    status = ranks_container(pod)
    return status is not None and status.state.terminated is not None


def never_started(pod: Pod) -> bool:
    """Whether a pod is over, and no process of ranks is known to have started in it."""
    status = ranks_container(pod)
    ran = status is not None and (status.state.running or status.last_state.terminated) is not None
    return pod.ended and not ran


def end_text(pod: Pod) -> str:
    """How a pod that has ended came to its end."""
    status = ranks_container(pod)
    terminated = None if status is None else status.state.terminated
    name = f"pod {pod.metadata.namespace}/{pod.metadata.name}"
    if pod.status.reason and pod.status.reason not in ("Completed", "Error"):
        return f"{name}: {_with(pod.status.reason, pod.status.message)}"
    if terminated is None:
        return f"{name} has ended: {_init_end(pod) or _with(pod.status.phase, pod.status.message)}"
    return f"{name} has ended: {_terminated(terminated)}"


def _terminated(ended: Terminated) -> str:
    how = f"signal {ended.signal}" if ended.signal else f"exit code {ended.exit_code}"
    reason = "" if ended.reason in ("Error", "Completed", "") else f"{ended.reason}, "
    text = f"{reason}{how}{f': {ended.message.strip()}' if ended.message.strip() else ''}"
    if _NO_PYTHON in ended.message and ended.exit_code in (126, 127, 128):
        return f"the image has no python3 (3.8 or newer); leave out `pod: {{python: image}}`: {text}"
    if _LOADER in ended.message and ended.exit_code in (126, 127, 128):
        return f"the image of --box-image is of an older release, or for another processor: {text}"
    return text


def _init_end(pod: Pod) -> str:
    """How an init container failed, if one did."""
    for one in pod.status.init_container_statuses:
        ended = one.state.terminated
        if ended is not None and (ended.exit_code or ended.signal):
            return f"init container {one.name}: {_terminated(ended)}"
    return ""


def disrupted(pod: Pod) -> Reason | None:
    """By whom a pod is ended or was ended, if not by itself. Who deletes it is not known of a plain deletion."""
    name = f"pod {pod.metadata.name} on node {pod.spec.node_name}"
    evidence: dict[str, int | float | str] = {"pod": pod.metadata.name, "node": pod.spec.node_name}
    if pod.status.reason == "DeadlineExceeded":
        return Reason("pod_deadline", f"{name}: its activeDeadlineSeconds are over", evidence)
    target = _condition(pod, "DisruptionTarget")
    if target is not None and target.status == "True":
        code, text = _OTHERS.get(target.reason, ("pod_disrupted", _with(target.reason, target.message)))
        if target.reason == "TerminationByKubelet" and target.message:
            text = f"{text}: {target.message.strip()}"
        return Reason(code, f"{name}: {text}", evidence)
    if pod.status.reason in ("Evicted", "NodeShutdown", "Terminated", "Shutdown", "NodeLost"):
        return Reason("pod_evicted", f"{name}: {_with(pod.status.reason, pod.status.message)}", evidence)
    if pod.metadata.deletion_timestamp:
        return Reason("pod_deleted", f"{name} was deleted by others", evidence)
    return None


def past_deadline(pod: Pod, now_s: float) -> Reason | None:
    """Whether a pod that is stopped has had its time, at ``now_s`` since 1970: its ranks end before its status shows that."""
    try:
        start_s = datetime.fromisoformat(pod.status.start_time).timestamp()
    except ValueError:
        return None
    if (
        pod.spec.active_deadline_seconds is None
        or now_s < start_s + pod.spec.active_deadline_seconds - _SLACK_S
    ):
        return None
    evidence: dict[str, int | float | str] = {"pod": pod.metadata.name, "node": pod.spec.node_name}
    text = f"pod {pod.metadata.name} on node {pod.spec.node_name}: its activeDeadlineSeconds are over"
    return Reason("pod_deadline", text, evidence)


def waits_because(pod: Pod) -> tuple[str, str]:
    """Reason and text of why its containers do not start; empty while nothing is wrong."""
    for one in (*pod.status.init_container_statuses, *pod.status.container_statuses):
        waiting = one.state.waiting
        if waiting is not None and waiting.reason not in _STARTING:
            remedy = _ROOT_REMEDY if "runAsNonRoot" in waiting.message else ""
            return waiting.reason, f"container {one.name}: {_with(waiting.reason, waiting.message)}{remedy}"
    return "", ""


def _condition(pod: Pod, kind: str) -> Condition | None:
    return next((one for one in pod.status.conditions if one.type == kind), None)


def _with(reason: str, message: str) -> str:
    message = " ".join(message.split())[:600]
    return ": ".join(part for part in (reason, message) if part) or "unknown"
