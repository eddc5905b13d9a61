"""Commands of the site on nodes of a cluster, such as remedies: each is a Job whose pod is pinned to the node.

The name of the Job follows from that of the command. So one that is begun again, also by the next controller, is the same
Job, and its pod is found by one list. Checks are those of the agents, as on hosts.
"""

from __future__ import annotations

import hashlib
import math
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any, Final

from unidle.clock import Clock
from unidle.engine.hosts.node_commands import ANSWER_NS, HostCommands
from unidle.engine.hosts.timing import S
from unidle.engine.kube.manifest import CONTROLLER
from unidle.engine.kube.pod_reading import waits_because
from unidle.engine.node_commands import NodeCommand, NodeOutcome
from unidle.kube.objects import JOBS, Pod
from unidle.kube.protocol import Create, Delete, Dropped, KubeWriter, WriteDone, WriteRefused, WriteResult

HOOK: Final = "unidle.dev/hook"
"""Label of the Job and its pod: the Job's name."""
HOST: Final = "/host"
"""Where the pod has the root directory of its node."""
NO_HOOKS: Final = (
    "commands of the site do not run on nodes of this cluster: start `unidle up` with --hook-namespace NAMESPACE, or set "
    "hooks.enabled=true in the values of the chart"
)
_KEPT_S: Final = 600  # a Job that has ended, if no controller removes it


@dataclass(frozen=True, slots=True)
class HookSettings:
    """``namespace``: of the Jobs, which allows privileged pods; ``image``: has what the commands need."""

    namespace: str
    image: str
    controller: str


@dataclass(slots=True)
class _Hook:
    order: NodeCommand
    begun_ns: int
    boot: str
    outcome: NodeOutcome | None = None
    made: bool = False


@dataclass(slots=True)
class HookJobs:
    """A :class:`unidle.engine.node_commands.NodeCommands`: checks go to ``agents``, commands of the site to Jobs.

    ``settings`` None: there are none. ``boot_of`` is the id of a node's boot, empty where it is unknown.
    """

    settings: HookSettings | None
    agents: HostCommands
    writer: KubeWriter
    clock: Clock
    boot_of: Callable[[str], str]
    elsewhere: bool = True
    _hooks: dict[str, _Hook] = field(default_factory=dict)  # by the name of the order
    _names: dict[str, str] = field(default_factory=dict)  # of the order, by that of the Job
    _pods: dict[str, Pod] = field(default_factory=dict)  # by the name of the Job

    def away(self, node: str) -> str:
        return self.agents.away(node)

    def begin(self, order: NodeCommand) -> None:
        """Its limit counts from here, also while its pod does not start."""
        if not isinstance(order.what, tuple):
            self.agents.begin(order)
            return
        if order.name in self._hooks:
            return
        hook = self._hooks[order.name] = _Hook(order, self.clock.now_ns(), self.boot_of(order.node))
        if self.settings is None:
            hook.outcome = NodeOutcome(None, False, NO_HOOKS)
            return
        body = hook_job(self.settings, order)
        self._names[body["metadata"]["name"]] = order.name
        self.writer.write(Create(JOBS, body))

    def look(self, name: str) -> NodeOutcome | None:
        hook = self._hooks.get(name)
        if hook is None:
            return self.agents.look(name)
        if hook.outcome is None and self.settings is not None:
            hook.outcome = self._seen(hook, self._pods.get(job_name(self.settings.controller, name)))
        return hook.outcome

    def forget(self, name: str) -> None:
        """The Job is removed with its pod."""
        hook = self._hooks.pop(name, None)
        if hook is None:
            self.agents.forget(name)
        elif self.settings is not None:
            job = job_name(self.settings.controller, name)
            self._names.pop(job, None)
            self._pods.pop(job, None)
            self.writer.write(Delete(JOBS, self.settings.namespace, job))

    def see(self, pod: Pod, *, gone: bool) -> None:
        """A pod came, changed or left; those of others are passed over."""
        settings, job = self.settings, pod.metadata.labels.get(HOOK)
        if job is None or settings is None or pod.metadata.namespace != settings.namespace:
            return
        if pod.metadata.labels.get(CONTROLLER) != settings.controller:
            return
        if not gone:
            self._pods[job] = pod
        elif (held := self._pods.get(job)) is not None and not held.ended:
            del self._pods[job]

    def written(self, result: WriteResult) -> None:
        """What became of a write of the controller."""
        write = result.write
        if not isinstance(write, Create) or write.kind is not JOBS:
            return
        hook = self._hooks.get(self._names.get(str(write.body["metadata"]["name"]), ""))
        if hook is None:
            return
        if isinstance(result, WriteDone):
            hook.made = True
        elif isinstance(result, WriteRefused):
            error = result.error
            remedy = (
                f'; grant the controller "create jobs.batch" in namespace {write.body["metadata"]["namespace"]}, '
                f"as the chart does with hooks.enabled=true"
                if error.status == 403 and "PodSecurity" not in error.problem
                else ""
            )
            hook.outcome = NodeOutcome(
                None, False, f"node {hook.order.node}: the command cannot be run: {error.problem}{remedy}"
            )
        elif isinstance(result, Dropped):
            hook.outcome = NodeOutcome(
                None, False, "the controller ended before the command was begun", away=True
            )

    def _seen(self, hook: _Hook, pod: Pod | None) -> NodeOutcome | None:
        """How it ended, by its pod; None while it has not."""
        ended = (
            None
            if pod is None
            else next((one.state.terminated for one in pod.status.container_statuses), None)
        )
        boot = self.boot_of(hook.order.node)
        restarted = bool(boot and hook.boot and boot != hook.boot)
        if pod is not None and pod.ended:
            text = "" if ended is None else ended.message.strip()
            if pod.status.reason == "DeadlineExceeded":
                return NodeOutcome(None, True, text)
            if ended is not None and not restarted:
                return NodeOutcome(128 + ended.signal if ended.signal else ended.exit_code, False, text)
            why = text or pod.status.message or pod.status.reason or "its pod has failed"
            return NodeOutcome(None, False, f"node {hook.order.node}: {why}", restarted=restarted)
        if self.clock.now_ns() < hook.begun_ns + hook.order.limit_ns + ANSWER_NS:
            return None
        why = (
            "no pod of its Job was made"
            if pod is None
            else waits_because(pod)[1] or f"its pod is {pod.status.phase}"
        )
        if not hook.made:
            why = "the API server did not take its Job"
        limit = round(hook.order.limit_ns / S)
        return NodeOutcome(
            None,
            False,
            f"node {hook.order.node}: no end within {limit} s: {why}",
            away=True,
            restarted=restarted,
        )


def job_name(controller: str, name: str) -> str:
    """Of the Job of an order."""
    return f"unidle-hook-{hashlib.sha256(f'{controller}/{name}'.encode()).hexdigest()[:16]}"


def hook_job(settings: HookSettings, order: NodeCommand) -> dict[str, Any]:
    """The Job. Its pod sees the processes and, at :data:`HOST`, the files of the node, and may do there what root may."""
    name = job_name(settings.controller, order.name)
    labels = {HOOK: name, CONTROLLER: settings.controller, "app.kubernetes.io/managed-by": "unidle"}
    notes = {"unidle.dev/node": order.node, "unidle.dev/command": order.name}
    return {
        "apiVersion": "batch/v1",
        "kind": "Job",
        "metadata": {"name": name, "namespace": settings.namespace, "labels": labels, "annotations": notes},
        "spec": {
            "backoffLimit": 0,
            "ttlSecondsAfterFinished": _KEPT_S,
            "template": {"metadata": {"labels": labels}, "spec": _pod_spec(settings.image, order)},
        },
    }


def _pod_spec(image: str, order: NodeCommand) -> dict[str, Any]:
    assert isinstance(order.what, tuple)
    container = {
        "name": "hook",
        "image": image,
        "imagePullPolicy": "IfNotPresent",
        "command": list(order.what),
        "terminationMessagePolicy": "FallbackToLogsOnError",
        "securityContext": {"privileged": True, "runAsUser": 0},
        "volumeMounts": [{"name": "host", "mountPath": HOST, "mountPropagation": "HostToContainer"}],
    }
    return {
        "nodeName": order.node,
        "restartPolicy": "Never",
        "activeDeadlineSeconds": max(1, math.ceil(order.limit_ns / S)),
        "terminationGracePeriodSeconds": 2,
        "automountServiceAccountToken": False,
        "enableServiceLinks": False,
        "hostPID": True,
        "tolerations": [{"operator": "Exists"}],  # it is for nodes that are out of use
        "containers": [container],
        "volumes": [{"name": "host", "hostPath": {"path": "/", "type": "Directory"}}],
    }
