"""The engine of a Kubernetes cluster: that of hosts, where pods are the boxes and the API server lists the nodes."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Final

import msgspec

from unidle import wire
from unidle.boot import boottime_ns
from unidle.clock import Clock
from unidle.engine.hosts.box_link import Place
from unidle.engine.hosts.box_maker import Hosting
from unidle.engine.hosts.engine import HostsEngine
from unidle.engine.hosts.gang_state import GangState, Key
from unidle.engine.hosts.host_nodes import HostNode, HostNodes
from unidle.engine.hosts.kept_output import KeptOutput
from unidle.engine.hosts.node_commands import HostCommands
from unidle.engine.hosts.outbox import Outbox
from unidle.engine.hosts.timing import HostsTiming, S
from unidle.engine.kube.hook_jobs import HookJobs, HookSettings
from unidle.engine.kube.hub_address import HubAddressNote
from unidle.engine.kube.manifest import PodSettings, place_of, pod_name
from unidle.engine.kube.node_marks import KubeMarks
from unidle.engine.kube.nodes import KubeNodes
from unidle.engine.kube.pod_grants import PodGrants
from unidle.engine.kube.pod_reading import disrupted, end_text, has_terminated, never_started, pod_phase
from unidle.engine.kube.pods import PodBoxes, PodState
from unidle.engine.kube.sources import OUT_OF_SERVICE, KubeSources
from unidle.engine.node_marks import NodeMark
from unidle.engine.protocol import JobArrived, LiveAttempt, Observation, PodsReached, StartGang, Taken
from unidle.events.hosts import PodPhase
from unidle.fleet import Fleet, device_of
from unidle.hub import frames
from unidle.hub.protocol import Hub, Received
from unidle.jobs import Reason
from unidle.kube.cluster_fleet import FleetChanges
from unidle.kube.given import NodeGiven
from unidle.kube.objects import Pod
from unidle.kube.protocol import Put, Vanished

WRITE_NS: Final = 2 * S - S // 5
"""So long after the lease was found fresh, requests to the API server may last: the store's lease then still holds."""


class KubeEngine(HostsEngine):
    """Runs gangs over boxes that are pods. ``settings`` are those of all pods; ``may_write``: whether the store's lease
    surely holds. ``sources`` have listed all nodes and pods; they are closed with the engine.

    What is reported of pods is taken in after what their boxes sent, so that the ends of ranks are their own marks
    where those have arrived.
    """

    def __init__(
        self, hub: Hub, fleet: Fleet, clock: Clock, fence: int, timing: HostsTiming, sources: KubeSources,
        settings: PodSettings, *, may_write: Callable[[], bool],
    ) -> None:  # fmt: skip
        self._sources, self._settings, self._may_write = sources, settings, may_write
        self._declarations = sources.declarations

        def boxes(out: Outbox, nodes: HostNodes, *_: object) -> PodBoxes:
            assert isinstance(nodes, KubeNodes)
            return PodBoxes(settings, sources.writer, out, nodes)

        def grants(out: Outbox, nodes: HostNodes, gangs: dict[Key, GangState]) -> PodGrants:
            return PodGrants(out, nodes, gangs, self._pod_of, sources.fleet.devices_of)

        kept = None if settings.runs is None else KeptOutput(settings.runs, self._say)
        super().__init__(hub, fleet, clock, fence, timing, Hosting(KubeNodes, boxes, grants, kept))
        pods, nodes = self._core.maker, self._core.nodes
        assert isinstance(pods, PodBoxes)
        assert isinstance(nodes, KubeNodes)
        assert isinstance(self._core.cuts, PodGrants)
        self.pods, self._nodes, self._word = pods, nodes, self._core.host_word
        self._grants, self._given = self._core.cuts, set[str]()  # nodes whose devices were listed again
        self._marks = KubeMarks(sources.writer, lambda pod: place_of(settings, pod) is not None, self._say)
        assert isinstance(self.commands, HostCommands)
        self.commands = self._hooks = _hook_jobs(settings, self.commands, sources, clock)
        self._note = self._address_note()
        self.arrivals: Callable[[], list[JobArrived]] = list
        """Jobs that are submitted in the cluster; asked with each poll."""
        self.say: Callable[[str], None] | None = None
        """Called with a line for the person who runs the controller, such as a right that it lacks."""
        # of pods that came so far, and their nodes
        self._phases: dict[tuple[str, int, PodPhase], list[str]] = {}
        self._ended: list[Place] = []  # whose ends are reported, and in the log by the next poll
        for node in fleet.nodes:
            if sources.fleet.node(node.id) is None:
                nodes.removed(node.id)
        for fd in sources.wake_fds:
            self.also_wake(fd)

    def _address_note(self) -> HubAddressNote | None:
        """Writes for agents where the hub is; None where nothing has to."""
        settings = self._settings
        if settings.agent_hub is None:
            return None
        return HubAddressNote(
            self._sources.writer, settings.agent_hub, settings.hubs[0], settings.authority, self._say
        )

    def adopt(self, live: Sequence[LiveAttempt]) -> None:
        super().adopt(live)
        self._sources.fleet.look_again({place.node for one in live for place in one.command.places})

    def release(self, job: str, attempt: int) -> None:
        gang = self._core.gangs.get((job, attempt))
        super().release(job, attempt)
        self.pods.released(job)
        self._sources.fleet.look_again(gang.nodes if gang is not None else ())

    def held(self, node: str) -> set[str]:
        """Devices of a node that gangs have."""
        found: set[str] = set()
        for gang in self._core.gangs.values():
            if node not in gang.nodes or gang.command is None:
                continue
            got = self._grants.held(gang)
            for place in gang.command.places:
                if place.node == node:
                    found.update(map(device_of, got.get(place.rank, place.slices)))
        return found

    def start(self, command: StartGang) -> None:
        super().start(command)
        self._sources.fleet.look_again({place.node for place in command.places})

    def mark(self, marks: Mapping[str, NodeMark]) -> None:
        self._marks.wanted = marks

    def poll(self) -> list[Observation]:
        if self._may_write():
            self._sources.writer.allow_until(boottime_ns() + WRITE_NS)
        ended, self._ended = self._ended, []
        self.pods.let_go(ended)
        declared = self._declarations.poll()
        if declared:
            self._sources.fleet.read_by(self._declarations.rules(self._sources.fleet.rules))
        given, self._given = self._given, set()
        changes, pods = self._sources.poll()
        # before what boxes sent: one that reports its end is asked why, and the cluster may have shown that already
        for change in pods:
            self.pods.note(change.object)
            self._hooks.see(change.object, gone=isinstance(change, Vanished))
        seen = super().poll()
        now_ns = self._core.out.now_ns = self._clock.now_ns()
        self._take_fleet(changes, now_ns, declared=declared)
        for name in sorted(given):  # of which this poll has the ids of devices
            self._grants.look_again(name, self._sources.fleet.given_to)
        for change in pods:
            self._take_pod(change)
        phases, self._phases = self._phases, {}
        for (job, attempt, phase), nodes in phases.items():
            self._core.out.seen.append(PodsReached(job, attempt, tuple(nodes), phase))
        self._take_written(now_ns)
        for place, why in self.pods.hopeless(now_ns):
            self._word.hopeless(self._core.boxes.get(*place), why)
        self.pods.tidy(now_ns)
        nodes_seen, self._sources.nodes_seen = self._sources.nodes_seen, []
        for node in nodes_seen:
            self._marks.see(node.object, gone=isinstance(node, Vanished))
        if self._note is not None:
            self._note.act(now_ns)
        self._marks.act(self._sources.pods.objects.values, now_ns)
        if not self.pods.synced:
            self.pods.synced = True
            self._word.listed()
        self._flush()
        more, self._core.out.seen = self._core.out.seen, []
        return [*seen, *more, *self.arrivals()]

    def _received(self, event: Received, now_ns: int) -> None:
        super()._received(event, now_ns)
        frame = event.frame
        if isinstance(frame, frames.Seen) and frame.what == wire.DEVICES:
            self._take_given(event.peer, frame.body)

    def _take_given(self, peer: int, body: dict[str, object]) -> None:
        """An agent lists which devices the pods of its node have."""
        link = self._nodes.of_peer.get(peer)
        if link is None:
            return
        try:
            given = msgspec.convert(body, NodeGiven)
        except msgspec.ValidationError:
            return  # of another release: it is not known
        self._grants.reported(link.node.id, known=not given.why)
        self._sources.fleet.give(link.node.id, given)
        self._given.add(link.node.id)

    def _pod_of(self, job: str, node: str) -> str:
        return f"{self._settings.namespace}/{pod_name(self._settings.controller, job, node)}"

    def _take_written(self, now_ns: int) -> None:
        for result in self._sources.writer.poll():
            self._marks.written(result, now_ns)
            self._hooks.written(result)
            if self._note is not None:
                self._note.written(result, now_ns)
            if (refused := self.pods.written(result)) is not None:
                self._word.hopeless(self._core.boxes.get(*refused[0]), refused[1])

    def close(self) -> None:
        """Let go of the cluster and the hub; what runs continues within the leases of its boxes."""
        self._sources.close()
        super().close()

    def _say(self, line: str) -> None:
        if self.say is not None:
            self.say(line)

    def _take_fleet(self, changes: FleetChanges, now_ns: int, *, declared: bool) -> None:
        moved = bool(changes.put or changes.gone) and self._declarations.names_nodes
        if again := declared or changes.tiers or moved:
            listed = self._sources.fleet
            self._nodes.declare(self._declarations.fleet(listed.tiers, listed.nodes))
        for node in changes.put:
            self._core.look_at_node_at(self._nodes.put(node), now_ns)
        if again:
            self._nodes.rehang()
        for read in changes.health:
            if (link := self._nodes.at.get(read.node.id)) is not None:
                link.trouble = None if read.health == "healthy" else read.because
                self._core.look_at_node_at(link, now_ns)
                self._give_up_waiting(link)
        doubted, self._nodes.doubted = self._nodes.doubted, []
        for link in doubted:
            self._core.look_at_node_at(link, now_ns)
        for name in changes.gone:
            if (link := self._nodes.removed(name)) is not None:
                self._core.look_at_node_at(link, now_ns)
        for use in changes.used:
            taken = Taken(use.node, use.cpus, use.memory_bytes, use.devices, use.because, use.pods)
            self._core.out.seen.append(taken)
        vouched, self._sources.out_of_service = self._sources.out_of_service, {}
        for name in (name for name, yes in vouched.items() if yes):
            for box in self._core.boxes.on_node(name):
                self._word.ended(box, f"node {name} is out of service, by its taint {OUT_OF_SERVICE}")

    def _give_up_waiting(self, link: HostNode) -> None:
        """Gangs do not wait for boxes on a node that is not ready."""
        if link.trouble is not None:
            for box in self._core.boxes.on_node(link.node.id):
                if box.peer is None:
                    self._word.hopeless(box, f"node {link.node.id}: {link.trouble.text}")

    def _take_pod(self, change: Put[Pod] | Vanished[Pod]) -> None:
        pod = change.object
        place = place_of(self._settings, pod)
        if place is None:
            return
        if isinstance(change, Put):
            self._look_at_pod(place, self.pods.put(place, pod))
        else:
            self.pods.gone(place, pod)
            self._core.fetch(self._core.boxes.get(*place))

    def _follow_start(self, place: Place, state: PodState) -> None:
        """How far a pod has come, for its gang while that has not started; a pod that stays for the next one has come far."""
        phase = pod_phase(state.pod)
        if phase == state.phase:
            return
        state.phase = phase
        for attempt in self._core.of_job.get(place[1], {}):
            self._phases.setdefault((place[1], attempt, phase), []).append(place[0])

    def _look_at_pod(self, place: Place, state: PodState) -> None:
        """What the state of one of the own pods means for its ranks."""
        pod, link = state.pod, self._core.boxes.get(*place)
        if state.ended:
            self._ended.append(place)
            return
        self._follow_start(place, state)
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
        no_room = pod.status.reason.startswith("OutOf")
        if no_room and self.pods.refused_again(place):
            self._word.no_room(link, Reason("pod_no_room", f"node {place[0]}: {text}", {"node": place[0]}))
        unlucky = because is not None or no_room
        if not state.met and not state.ours and not unlucky:
            self._word.hopeless(link, f"node {place[0]}: {text}")


def _hook_jobs(settings: PodSettings, agents: HostCommands, sources: KubeSources, clock: Clock) -> HookJobs:
    hooks = settings.hooks and HookSettings(*settings.hooks, settings.controller)
    return HookJobs(hooks, agents, sources.writer, clock, lambda node: sources.boots.get(node, ""))
