"""The engine of a Kubernetes cluster: that of hosts, where pods are the boxes and the API server lists the nodes."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

from unidle.clock import Clock
from unidle.engine.hosts.box_link import Place
from unidle.engine.hosts.box_maker import Hosting
from unidle.engine.hosts.engine import HostsEngine
from unidle.engine.hosts.timing import HostsTiming
from unidle.engine.kube.manifest import PodSettings
from unidle.engine.kube.nodes import KubeNodes
from unidle.engine.kube.pod_reading import disrupted, end_text, has_terminated, never_started
from unidle.engine.kube.pods import PodBoxes, PodState
from unidle.engine.protocol import Observation, Taken
from unidle.fleet import Fleet, Node
from unidle.hub.protocol import Hub
from unidle.kube import objects
from unidle.kube.objects import Pod
from unidle.kube.protocol import Gone, Put, Synced, Watch, Writer

OUT_OF_SERVICE = "node.kubernetes.io/out-of-service"
"""Taint by which an administrator vouches that nothing runs on a node any more."""


@dataclass(frozen=True, slots=True)
class KubeParts:
    """What the engine has of the cluster: watches of all nodes and all pods, a writer, and how nodes are read.

    ``node_of`` makes a node of the fleet; ``taken_of`` what pods of others hold of a node, of all its pods that are not
    this controller's.
    """

    nodes: Watch[objects.Node]
    pods: Watch[Pod]
    writer: Writer
    node_of: Callable[[objects.Node], Node]
    taken_of: Callable[[Node, list[Pod]], Taken]


class KubeEngine(HostsEngine):
    """Runs gangs over boxes that are pods. ``settings`` are those of all pods.

    What is reported of pods is taken in after what their boxes sent, so that the ends of ranks are their own marks
    where those have arrived.
    """

    def __init__(
        self, hub: Hub, fleet: Fleet, clock: Clock, fence: int, timing: HostsTiming, parts: KubeParts, settings: PodSettings
    ) -> None:  # fmt: skip
        self._parts = parts
        hosting = Hosting(
            lambda fleet, start_ns, timing, out: KubeNodes(fleet, start_ns, timing, out),
            lambda out, nodes, hub, timing: PodBoxes(settings, parts.writer, out, nodes),  # noqa: ARG005
        )
        super().__init__(hub, fleet, clock, fence, timing, hosting)
        assert isinstance(self._core.maker, PodBoxes) and isinstance(self._core.nodes, KubeNodes)  # noqa: PT018
        self.pods, self._nodes, self._word = self._core.maker, self._core.nodes, self._core.host_word
        self._ended: list[Place] = []  # whose ends are reported, and in the log by the next poll
        self._others: dict[str, dict[str, Pod]] = {}  # by node and UID
        self._changed: set[str] = set()  # nodes of which others hold something else
        self._taken: dict[str, Taken] = {}
        for watch in (parts.nodes, parts.pods, parts.writer):
            self.also_wake(watch.wake_fd)

    def release(self, job: str, attempt: int) -> None:
        super().release(job, attempt)
        self.pods.released(job)

    def poll(self) -> list[Observation]:
        ended, self._ended = self._ended, []
        self.pods.let_go(ended)
        seen = super().poll()
        now_ns = self._clock.now_ns()
        self._core.out.now_ns = now_ns
        for event in self._parts.nodes.poll():
            self._take_node(event, now_ns)
        for change in self._parts.pods.poll():
            self._take_pod(change)
        for result in self._parts.writer.poll():
            if (refused := self.pods.written(result)) is not None:
                self._word.hopeless(self._core.boxes.get(*refused[0]), refused[1])
        for place, why in self.pods.hopeless(now_ns):
            self._word.hopeless(self._core.boxes.get(*place), why)
        self.pods.tidy(now_ns)
        self._report_taken()
        self._flush()
        more, self._core.out.seen = self._core.out.seen, []
        return seen + more

    def close(self) -> None:
        """Let go of the cluster and the hub; what runs continues within the leases of its boxes."""
        self._parts.nodes.close()
        self._parts.pods.close()
        self._parts.writer.close()
        super().close()

    # -- nodes -----------------------------------------------------------------------------------

    def _take_node(self, event: object, now_ns: int) -> None:
        if isinstance(event, Put):
            node = self._parts.node_of(event.object)
            link = self._nodes.put(node, not_ready(event.object))
            self._changed.add(node.id)
            if any(taint.key == OUT_OF_SERVICE for taint in event.object.spec.taints):
                for box in self._core.boxes.on_node(node.id):
                    text = f"node {node.id} is out of service, by its taint {OUT_OF_SERVICE}"
                    self._word.ended(box, text)
        elif isinstance(event, Gone):
            found = self._nodes.removed(event.object.metadata.name)
            if found is None:
                return
            link = found
        else:
            return
        self._core.look_at_node_at(link, now_ns)

    # -- pods ------------------------------------------------------------------------------------

    def _take_pod(self, event: object) -> None:
        if isinstance(event, Put):
            if (place := self.pods.place_of(event.object)) is not None:
                self._own(place, self.pods.put(place, event.object))
            else:
                self._foreign(event.object, there=not event.object.ended)
        elif isinstance(event, Gone):
            if (place := self.pods.place_of(event.object)) is not None:
                self.pods.gone(place, event.object)
                self._core.fetch(self._core.boxes.get(*place))
            else:
                self._foreign(event.object, there=False)
        elif isinstance(event, Synced) and not self.pods.synced:
            self.pods.synced = True
            self._word.listed()

    def _own(self, place: Place, state: PodState) -> None:
        """What the state of one of the own pods means for its ranks."""
        pod, link = state.pod, self._core.boxes.get(*place)
        if state.ended:
            self._ended.append(place)
            return
        because = None if state.ours else disrupted(pod)
        if because is not None and not state.disrupted:
            state.disrupted = True
            self._word.ends(link, because)
        # one that was never seen to start may have started on a node that reports nothing
        if not (has_terminated(pod) or (never_started(pod) and not state.met)):
            return
        state.ended = True
        self._ended.append(place)
        text = end_text(pod)
        self._word.ended(link, text)
        if not state.met and not state.ours and because is None and not pod.status.reason.startswith("OutOf"):
            self._word.hopeless(link, f"node {place[0]}: {text}")

    # -- what others use -------------------------------------------------------------------------

    def _foreign(self, pod: Pod, *, there: bool) -> None:
        node = pod.spec.node_name
        if not node:
            return
        pods = self._others.setdefault(node, {})
        if there:
            pods[pod.metadata.uid] = pod
        else:
            pods.pop(pod.metadata.uid, None)
        self._changed.add(node)

    def _report_taken(self) -> None:
        if not self.pods.synced:
            return
        changed, self._changed = self._changed, set()
        for name in changed:
            link = self._nodes.at.get(name)
            if link is None:
                continue
            taken = self._parts.taken_of(link.node, list(self._others.get(name, {}).values()))
            if taken != self._taken.get(name):
                self._taken[name] = taken
                self._core.out.seen.append(taken)


def not_ready(node: objects.Node) -> str:
    """Why the kubelet of a node is not ready; empty if it is."""
    ready = next((one for one in node.status.conditions if one.type == "Ready"), None)
    if ready is None:
        return "it has reported nothing yet"
    if ready.status == "True":
        return ""
    return (
        ": ".join(part for part in (ready.reason, " ".join(ready.message.split())[:300]) if part) or "unknown"
    )
