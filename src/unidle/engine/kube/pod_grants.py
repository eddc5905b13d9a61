"""The devices that pods really have: the kubelet chooses them, its agent lists them, and each rank is shown its own.

Before a gang starts, the agents of its nodes are asked for the devices of its pods. A node whose agent does not know them
is not waited for: ranks there get the first, second, ... device of their pod, whichever that is.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Final

import msgspec

from unidle import wire
from unidle.engine.hosts.gang_state import GangState, Key
from unidle.engine.hosts.grants import RankGrant
from unidle.engine.hosts.host_nodes import HostNodes
from unidle.engine.hosts.outbox import Outbox
from unidle.engine.local.devices.visible import visible_devices
from unidle.engine.protocol import Landed
from unidle.errors import CannotRun
from unidle.fleet import Device, device_of
from unidle.hub import frames
from unidle.hub.protocol import Peer
from unidle.jobs import RankPlace
from unidle.kube.given import natural

_BY_UUID: Final = ("GPU-", "MIG-")  # ids that CUDA takes for devices

PodOf = Callable[[str, str], str]
"""Of a job on a node: ``NAMESPACE/NAME``."""
DevicesOf = Callable[[str, Mapping[str, Sequence[str]]], dict[str, int] | None]
"""The devices of the fleet that ids of a kubelet name on a node, each with how many of its parts; None where one is not known."""


class _Answer(msgspec.Struct, frozen=True):
    devices: dict[str, tuple[str, ...]] = {}


@dataclass(slots=True)
class _Asked:
    """Of one attempt: on which connection the agent of a node was asked, and which devices the pod there has."""

    sent: dict[str, int] = field(default_factory=dict)
    has: dict[str, dict[str, int] | None] = field(default_factory=dict)  # by node; None: not known


class PodGrants:
    """A :class:`unidle.engine.hosts.grants.RankGrants`. ``gangs`` are those that are not released."""

    def __init__(self, out: Outbox, nodes: HostNodes, gangs: dict[Key, GangState], pod: PodOf, devices: DevicesOf) -> None:  # fmt: skip
        self._out, self._nodes, self._gangs, self._pod, self._devices = out, nodes, gangs, pod, devices
        self._of: dict[Key, _Asked] = {}
        self._know: dict[str, int] = {}  # by node, the connection on which its agent listed devices
        self._got: dict[Key, dict[int, tuple[str, ...]]] = {}  # devices of ranks, where they are known

    # -- before a start --------------------------------------------------------------------------

    def ready(
        self, gang: GangState, again: Callable[[GangState], None], refused: Callable[[GangState, str], None]  # noqa: ARG002
    ) -> bool:  # fmt: skip
        asked = self._of.setdefault(gang.key, _Asked())
        waits = False
        for node in gang.nodes:
            agent = self._nodes.agent(node)
            if node in asked.has or agent is None or self._know.get(node) != agent.id:
                continue
            if not self._places(gang, node):
                continue
            waits = True
            if asked.sent.get(node) != agent.id:
                asked.sent[node] = agent.id
                self._ask(gang, node, agent, again)
        return not waits

    def _ask(self, gang: GangState, node: str, agent: Peer, again: Callable[[GangState], None]) -> None:
        def answered(done: frames.Done) -> None:
            asked = self._of.get(gang.key)
            if asked is None or asked.sent.get(node) != agent.id or self._out.heed(done):
                return
            if not done.ok and not done.why:
                self._know.pop(node, None)  # the connection ended: it is not waited for
            else:
                asked.has[node] = self._read(node, done) if done.ok else None
                self.landed(gang, node, asked.has[node])
            again(gang)

        body = {"pod": self._pod(gang.job, node)}
        number = self._out.ask(agent.id, answered)
        self._out.tell(agent.id, frames.Run(number, self._out.fence, wire.DEVICES, body))

    def _read(self, node: str, done: frames.Done) -> dict[str, int] | None:
        try:
            found = msgspec.convert(done.data, _Answer)
        except msgspec.ValidationError:
            return None
        return self._devices(node, found.devices) if found.devices else None

    def waits(self, gang: GangState) -> list[str]:  # noqa: ARG002 - it starts without, too
        return []

    def grants(self, gang: GangState) -> dict[int, RankGrant]:
        """Each rank with GPUs is shown those that it has, as its pod sees them."""
        found: dict[int, RankGrant] = {}
        for node in gang.nodes:
            places = self._places(gang, node)
            has = self._of[gang.key].has.get(node) if gang.key in self._of else None
            given = given_devices(places, has) if has is not None else None
            for place, env in zip(places, self._shown(node, places, given), strict=True):
                slices = given[place.rank] if given is not None else ()
                found[place.rank] = RankGrant(place.rank, slices, env)
        return found

    def _places(self, gang: GangState, node: str) -> list[RankPlace]:
        """The ranks on a node that have GPUs."""
        if gang.command is None or node not in self._nodes.at:
            return []
        gpus = {device.id for device in self._nodes.at[node].node.devices if device.kind == "gpu"}
        return [
            place
            for place in gang.command.places
            if place.node == node and any(device_of(name) in gpus for name in place.slices)
        ]

    def _shown(
        self, node: str, places: Sequence[RankPlace], given: Mapping[int, tuple[str, ...]] | None
    ) -> list[dict[str, str]]:
        """The variables of these ranks. A pod numbers its devices from 0 on; ids that CUDA takes need no number."""
        at = {device.id: device for device in self._nodes.at[node].node.devices}
        if given is None:
            had = [tuple(device_of(name) for name in place.slices) for place in places]
        else:
            had = [given[place.rank] for place in places]
        of_pod = list(dict.fromkeys(one for some in had for one in some if one in at))
        if given is not None:
            of_pod.sort(key=lambda one: natural(at[one].uuid))
        local = {one: k for k, one in enumerate(of_pod)}
        own = [
            [_as_in_pod(at[one], local[one], known=given is not None) for one in some if one in at]
            for some in had
        ]
        vendors = {device.vendor for device in at.values() if device.kind == "gpu"}
        try:
            return [visible_devices(some, vendors) for some in own]
        except CannotRun:  # of two vendors: the start reports it
            return [{} for _ in own]

    # -- what is reported ------------------------------------------------------------------------

    def reported(self, node: str, *, known: bool) -> None:
        """The agent of a node has listed the devices of its pods, or cannot."""
        agent = self._nodes.agent(node)
        if known and agent is not None:
            self._know[node] = agent.id
        else:
            self._know.pop(node, None)

    def look_again(self, node: str, given: Callable[[str, str], dict[str, int] | None]) -> None:
        """The list of a node is new: whether gangs that run there have the devices that are counted as theirs."""
        for gang in self._gangs.values():
            if node in gang.nodes and any(rank.begun for rank in gang.on(node)):
                self.landed(gang, node, given(node, self._pod(gang.job, node)))

    def landed(self, gang: GangState, node: str, has: dict[str, int] | None) -> None:
        """Report ranks that have other devices than were placed."""
        places = self._places(gang, node)
        found = given_devices(places, has) if has is not None else None
        for place in places if found is not None else ():
            slices = found[place.rank] if found is not None else ()
            before = self._got.setdefault(gang.key, {}).get(place.rank, place.slices)
            self._got[gang.key][place.rank] = slices
            if set(slices) != set(before) or set(slices) != set(place.slices):
                self._out.seen.append(Landed(*gang.key, place.rank, node, slices))

    def held(self, gang: GangState) -> dict[int, tuple[str, ...]]:
        """The devices of ranks, as far as they are known to be others than were placed."""
        return self._got.get(gang.key, {})

    # -- the end ---------------------------------------------------------------------------------

    def joined(self, node: str) -> None:
        """An agent lists the devices of its node on each connection."""

    def released(self, gang: GangState | None) -> list[str]:
        if gang is None:
            return []
        self._of.pop(gang.key, None)
        self._got.pop(gang.key, None)
        return gang.nodes


def given_devices(places: Sequence[RankPlace], has: Mapping[str, int]) -> dict[int, tuple[str, ...]] | None:
    """Which of a pod's devices each rank gets: those that were placed as far as the pod has them, else another one of it.

    None where the pod has others than whole devices, or not as many as were placed.
    """
    wanted = [name for place in places for name in place.slices]
    if len(has) != len(wanted) or any(count != 1 for count in has.values()):
        return None
    left = [device for device in has if device not in wanted]
    found = {}
    for place in places:
        found[place.rank] = tuple(name if name in has else left.pop(0) for name in place.slices)
    return found


def _as_in_pod(device: Device, local: int, *, known: bool) -> Device:
    if known and device.vendor == "nvidia" and device.uuid.startswith(_BY_UUID):
        return device
    return replace(device, uuid="", index=local, number=None)
