"""Boxes that are pods: one for each job and node, made when it is needed, kept over attempts, and ended with the job.

What the API server is to do goes through a writer that never waits; what is there comes from a watch. Names follow from
job and node, so that a pod that is made twice is one, and what an earlier controller made is found by one list.
"""

from __future__ import annotations

import time
from collections.abc import Collection, Iterable
from dataclasses import dataclass, field
from typing import Final

from unidle.engine.hosts.box_link import BoxLink, Place
from unidle.engine.hosts.outbox import Outbox
from unidle.engine.hosts.timing import S
from unidle.engine.kube.manifest import (
    FINALIZER,
    SHAPE,
    PodPlan,
    PodSettings,
    place_of,
    pod_plans,
)
from unidle.engine.kube.nodes import KubeNodes
from unidle.engine.kube.pod_reading import HOPELESS, disrupted, past_deadline, waits_because
from unidle.engine.protocol import StartGang
from unidle.events.hosts import PodPhase
from unidle.jobs import Reason
from unidle.jobs.pod import PodWish
from unidle.kube.objects import PODS, Pod
from unidle.kube.protocol import (
    Create,
    Delayed,
    Delete,
    Dropped,
    KubeWriter,
    Patch,
    WriteDone,
    WriteRefused,
    WriteResult,
)

IDLE_NS: Final = 60 * S
"""So long pods stay for the next attempt of a job that has none; then they go, as what they hold is not free for others."""
_TROUBLE_NS: Final = 30 * S
_HOPELESS_NS: Final = 2 * S
_AGAIN_NS: Final = 20 * S


@dataclass(slots=True)
class PodState:
    """A pod as it is now. ``ours``: this controller deletes it; ``met``: its box has dialled; ``ended``: its end was
    reported; ``trouble_ns``: since when its containers do not start, for a reason.
    """

    pod: Pod
    ours: bool = False
    met: bool = False
    ended: bool = False
    disrupted: bool = False
    trouble_ns: int | None = None
    phase: PodPhase | None = None  # how far it had come when that was last reported
    annotated: int = 0  # the attempt that its annotations were last asked to name

    @property
    def uid(self) -> str:
        return self.pod.metadata.uid

    @property
    def leaves(self) -> bool:
        """Whether it takes no rank any more."""
        return self.ours or self.ended or self.disrupted or bool(self.pod.metadata.deletion_timestamp)


@dataclass(slots=True)
class _Job:
    plans: dict[str, PodPlan] = field(default_factory=dict)  # by node
    idle_ns: int | None = None  # since when it has no attempt


class PodBoxes:
    """A :class:`unidle.engine.hosts.box_maker.BoxMaker`. ``synced``: the watch has reported all pods that there are."""

    takes_parts = False

    def __init__(self, settings: PodSettings, writer: KubeWriter, out: Outbox, nodes: KubeNodes) -> None:
        self._settings, self._writer, self._out, self._nodes = settings, writer, out, nodes
        self.at: dict[Place, PodState] = {}
        self._jobs: dict[str, _Job] = {}
        self._creating: dict[str, tuple[Place, int]] = {}  # by name of the pod: and when that was asked for
        self._trouble: dict[Place, str] = {}
        self._refusals: dict[
            Place, int
        ] = {}  # by the kubelet, as the node has no room, for the present attempt
        self._open: set[str] | None = None
        self.synced = False

    # -- what the state machine asks -------------------------------------------------------------

    def wanted(self, command: StartGang) -> str:
        """Remember the pods of a gang, and end those that it has no use for. Why it can have none, else empty."""
        if not ((command.spec.pod or PodWish()).image or self._settings.image):
            return (
                "the job names no image, and a pod needs one: add `pod: {image: ...}` to the job, or start "
                "`unidle up` with --image"
            )
        devices = {device.id: device for device in self._nodes.fleet().devices()}
        plans = pod_plans(self._settings, command, devices)
        job = self._jobs.setdefault(command.job, _Job())
        job.plans, job.idle_ns = {plan.node: plan for plan in plans}, None
        for place in [place for place in self._refusals if place[1] == command.job]:
            del self._refusals[place]
        for place, state in list(self.at.items()):
            if place[1] == command.job:
                state.trouble_ns = None
                self._adjust(place, state)
            elif place[0] in job.plans and self._is_idle(place[1]):
                self._delete(state)
        return ""

    def fetch(self, link: BoxLink) -> None:
        """Create the pod of a box, unless it is there."""
        place = link.place
        plan = self._plan(place)
        if plan is None or not self.synced or place in self.at:
            return
        asked = self._creating.get(plan.name)
        if asked is not None and self._out.now_ns < asked[1] + _AGAIN_NS:
            return  # the watch will show it
        self._creating[plan.name] = (place, self._out.now_ns)
        self._writer.write(Create(PODS, plan.body))

    def leaves(self, link: BoxLink) -> bool:
        state = self.at.get(link.place)
        return state is not None and state.leaves

    def missing(self, link: BoxLink) -> str:
        state = self.at.get(link.place)
        if state is None:
            return self._trouble.get(link.place) or "its pod is not created yet"
        name = f"pod {state.pod.metadata.namespace}/{state.pod.metadata.name}"
        if state.leaves:
            return f"{name}, an earlier one, has not gone"
        _, text = waits_because(state.pod)
        if text:
            return f"{name}: {text}"
        phase = state.pod.status.phase or "Pending"
        return f"{name} is {phase}, and its box has not dialled the controller"

    def address(self, node: str, job: str) -> str:
        state = self.at.get((node, job))
        return (state.pod.status.pod_ip if state is not None else "") or self._nodes.address(node)

    def ended_by(self, link: BoxLink) -> Reason:
        state = self.at.get(link.place)
        because = None if state is None else disrupted(state.pod) or past_deadline(state.pod, time.time())
        text = f"the pod of job {link.job} on node {link.node} is deleted or stopped by others"
        return because or Reason("pod_deleted", text, {"node": link.node})

    def fenced(self, link: BoxLink) -> None:
        """Its node is bad: a later attempt there has a new pod, and none is placed there for a while."""
        text = f"the box of job {link.job} on node {link.node} was silent for its whole lease"
        self._nodes.doubt(link.node, Reason("box_silent", text, {"since_ns": link.heard_ns}))
        if (state := self.at.get(link.place)) is not None:
            state.ended = True  # for the log
            self._delete(state)

    def finish(self, job: str) -> None:
        """The pods of the job go."""
        if self._open is not None:
            self._open.discard(job)
        self._jobs.pop(job, None)
        for place in [place for place in self._refusals if place[1] == job]:
            del self._refusals[place]
        for place, state in list(self.at.items()):
            if place[1] == job:
                self._delete(state)

    def keep(self, jobs: Collection[str]) -> None:
        self._open = set(jobs)
        for place, state in list(self.at.items()):
            self._adjust(place, state)

    def released(self, job: str) -> None:
        """Its attempt has ended: the next one may come soon."""
        if job in self._jobs:
            self._jobs[job].idle_ns = self._out.now_ns

    # -- what is reported of pods ----------------------------------------------------------------

    def note(self, pod: Pod) -> None:
        """How a known pod is now."""
        place = place_of(self._settings, pod)
        state = None if place is None else self.at.get(place)
        if state is not None and state.uid == pod.metadata.uid:
            state.pod = pod

    def put(self, place: Place, pod: Pod) -> PodState:
        """A pod is there, or changed."""
        state = self.at.get(place)
        if state is None or state.uid != pod.metadata.uid:
            state = self.at[place] = PodState(pod)
        state.pod = pod
        self._creating.pop(pod.metadata.name, None)
        self._trouble.pop(place, None)
        if waits_because(pod)[0]:
            state.trouble_ns = self._out.now_ns if state.trouble_ns is None else state.trouble_ns
        else:
            state.trouble_ns = None
        self._adjust(place, state)
        return state

    def refused_again(self, place: Place) -> bool:
        """The kubelet had no room for a pod. Once is by chance, as one that ends may still count; whether it was so before."""
        count = self._refusals[place] = self._refusals.get(place, 0) + 1
        return count > 1

    def gone(self, place: Place, pod: Pod) -> None:
        state = self.at.get(place)
        if state is not None and state.uid == pod.metadata.uid:
            del self.at[place]

    def met(self, link: BoxLink) -> None:
        """The box of a pod has dialled. One that is being deleted takes no rank."""
        if (state := self.at.get(link.place)) is not None:
            state.met = True
            link.ending = link.ending or state.leaves

    def written(self, result: WriteResult) -> tuple[Place, str] | None:
        """What became of a write; the place of a pod that cannot be created, and why. What was created, the watch shows."""
        if not isinstance(result.write, Create):
            if isinstance(result, WriteRefused | Dropped):
                self._take_back(result.write)
            return None
        name = _name_of(result.write)
        if isinstance(result, WriteDone) or name not in self._creating:
            return None
        place = self._creating[name][0]
        if isinstance(result, Delayed):
            self._trouble[place] = f"its pod cannot be created yet: {result.error}"
            return None
        del self._creating[name]
        if isinstance(result, Dropped):
            return None
        self._trouble[place] = f"its pod cannot be created: {result.error}"
        return place, f"node {place[0]}: {self._trouble[place]}"

    def _take_back(self, write: object) -> None:
        """A deletion or patch was not carried out: it is tried again with the next change."""
        if isinstance(write, Delete):
            for state in self.at.values():
                if state.uid == write.uid:
                    state.ours = False

    def hopeless(self, now_ns: int) -> list[tuple[Place, str]]:
        """Pods that have not started for so long, for a reason, that it is no use to wait."""
        found = []
        for place, state in self.at.items():
            if state.trouble_ns is None or state.leaves or self._plan(place) is None:
                continue
            reason, text = waits_because(state.pod)
            if now_ns >= state.trouble_ns + (_HOPELESS_NS if reason in HOPELESS else _TROUBLE_NS):
                found.append((place, f"node {place[0]}: pod {state.pod.metadata.name}: {text}"))
        return found

    def tidy(self, now_ns: int) -> None:
        """End pods of jobs that have had no attempt for long, and let go of those whose end is in the log."""
        for name, job in self._jobs.items():
            if job.idle_ns is not None and now_ns >= job.idle_ns + IDLE_NS:
                job.plans, job.idle_ns = {}, None
                for place, state in list(self.at.items()):
                    if place[1] == name:
                        self._delete(state)

    def let_go(self, places: Iterable[Place]) -> None:
        """The ends of these pods are in the log: they may be removed."""
        for place in places:
            state = self.at.get(place)
            if state is None or not state.ended:
                continue
            self._delete(state)
            meta = state.pod.metadata
            if FINALIZER in meta.finalizers:
                rest = [one for one in meta.finalizers if one != FINALIZER]
                body = {"metadata": {"finalizers": rest}}
                self._writer.write(Patch(PODS, meta.namespace, meta.name, body, uid=meta.uid))

    # -- writes ----------------------------------------------------------------------------------

    def _plan(self, place: Place) -> PodPlan | None:
        job = self._jobs.get(place[1])
        return None if job is None else job.plans.get(place[0])

    def _is_idle(self, job: str) -> bool:
        return job not in self._jobs or self._jobs[job].idle_ns is not None

    def _adjust(self, place: Place, state: PodState) -> None:
        """Bring a pod in line with its plan: its annotations, or its end."""
        plan, meta = self._plan(place), state.pod.metadata
        if plan is None:
            job = self._jobs.get(place[1])
            over = self._open is not None and place[1] not in self._open and job is None
            if over or (job is not None and job.idle_ns is None):
                self._delete(state)
        elif state.leaves:
            return
        elif meta.annotations.get(SHAPE) != plan.shape:
            self._delete(state)
        elif state.annotated != plan.attempt and any(
            meta.annotations.get(key) != value for key, value in plan.annotations.items()
        ):
            state.annotated = plan.attempt
            body = {"metadata": {"annotations": plan.annotations}}
            self._writer.write(Patch(PODS, meta.namespace, meta.name, body, uid=meta.uid))

    def _delete(self, state: PodState) -> None:
        if not state.ours:
            state.ours = True
            meta = state.pod.metadata
            self._writer.write(Delete(PODS, meta.namespace, meta.name, uid=meta.uid))


def _name_of(write: Create) -> str:
    return str(write.body["metadata"]["name"])
