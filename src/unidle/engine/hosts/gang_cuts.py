"""Parts of devices on hosts: the agents make what the ranks of a gang get before any of them starts, and free it at the end.

Both orders may be repeated: an agent gives an attempt the same again, and of attempts that hold parts it is sent the
whole list. So nothing is lost where an agent, a box or the controller is killed between any two of these steps.
"""

from __future__ import annotations

from collections.abc import Callable, Collection
from dataclasses import dataclass, field
from typing import Final

import msgspec

from unidle import wire
from unidle.engine.hosts.box_maker import BoxMaker
from unidle.engine.hosts.gang_state import GangState, Key
from unidle.engine.hosts.grants import RankGrant
from unidle.engine.hosts.host_nodes import HostNodes
from unidle.engine.hosts.outbox import Outbox
from unidle.engine.protocol import Landed, StartGang
from unidle.fleet import Node, device_of, is_cuttable
from unidle.hub import frames
from unidle.hub.protocol import Peer

NO_PARTS: Final = "parts of devices cannot be made in pods: request whole devices"


class _Made(msgspec.Struct, frozen=True):
    ranks: tuple[RankGrant, ...] = ()


@dataclass(slots=True)
class CutState:
    """Of one attempt: on which connection of its agent each node was asked, which have answered, and with what."""

    sent: dict[str, int] = field(default_factory=dict)
    made: set[str] = field(default_factory=set)
    grants: dict[int, RankGrant] = field(default_factory=dict)


def why_not_in_parts(command: StartGang, maker: BoxMaker) -> str:
    """Why a gang that is placed on parts of devices cannot have them; empty where it can, or has none."""
    parts = command.parts or any("#" in name for place in command.places for name in place.slices)
    return NO_PARTS if parts and not maker.takes_parts else ""


class GangCuts:
    """``gangs`` are those that are not released, by job and attempt."""

    def __init__(self, out: Outbox, nodes: HostNodes, gangs: dict[Key, GangState]) -> None:
        self._out, self._nodes, self._gangs = out, nodes, gangs
        self._of: dict[Key, CutState] = {}

    def grants(self, gang: GangState) -> dict[int, RankGrant]:
        """By rank; nothing for a rank with whole devices."""
        state = self._of.get(gang.key)
        return {} if state is None else state.grants

    def ready(
        self, gang: GangState, again: Callable[[GangState], None], refused: Callable[[GangState, str], None]
    ) -> bool:
        """Whether the hosts have made what its ranks get. If not, agents are asked: ``again`` or ``refused`` follows."""
        waits = self.waits(gang)
        for node in waits:
            agent = self._nodes.agent(node)
            state = self._of.setdefault(gang.key, CutState())
            if agent is not None and state.sent.get(node) != agent.id:
                state.sent[node] = agent.id
                self._ask(gang, node, agent, again, refused)
        return not waits

    def waits(self, gang: GangState) -> list[str]:
        """Nodes whose agents have still to make something of it."""
        if gang.command is None:
            return []
        made: Collection[str] = self._of[gang.key].made if gang.key in self._of else ()
        return [node for node in gang.nodes if node not in made and self._cuts(gang.command, node)]

    def _cuts(self, command: StartGang, node: str) -> bool:
        """Whether ranks of a gang may get parts of devices there."""
        there = self._nodes.at.get(node)
        if there is None:
            return False
        wanted = {name for place in command.places if place.node == node for name in place.slices}
        if command.spec.share is not None or not wanted.isdisjoint(command.parts):
            return True
        devices = {device_of(name) for name in wanted}
        return any(is_cuttable(device) for device in there.node.devices if device.id in devices)

    def _ask(
        self, gang: GangState, node: str, agent: Peer,
        again: Callable[[GangState], None], refused: Callable[[GangState, str], None],
    ) -> None:  # fmt: skip
        def answered(done: frames.Done) -> None:
            state = self._of.get(gang.key)
            if state is None or state.sent.get(node) != agent.id:
                return
            if not done.ok and not done.why:
                del state.sent[node]  # the connection ended
                return
            if not done.ok:
                if not self._out.heed(done):
                    refused(gang, f"node {node}: {done.why}")
                return
            if why := self._take(gang, state, node, done):
                refused(gang, f"node {node}: {why}")
            else:
                again(gang)

        assert gang.command is not None
        body = _order(gang.command, node, self._nodes.at[node].node)
        self._out.tell(
            agent.id, frames.Run(self._out.ask(agent.id, answered), self._out.fence, wire.SLICES, body)
        )

    def _take(self, gang: GangState, state: CutState, node: str, done: frames.Done) -> str:
        """Take in what a host made; why it cannot be used, else empty."""
        try:
            made = msgspec.convert(done.data, _Made)
        except msgspec.ValidationError as error:
            return f"the answer is not as agreed: {error}"
        mine = {rank.rank for rank in gang.ranks if rank.node == node}
        if mine - {one.rank for one in made.ranks}:
            return "the answer lacks a rank"
        state.made.add(node)
        for one in made.ranks:
            if one.rank not in mine or gang.command is None:
                continue
            state.grants[one.rank] = one
            if one.slices and set(one.slices) != set(gang.command.places[one.rank].slices):
                self._out.seen.append(Landed(*gang.key, one.rank, node, one.slices))
        return ""

    # -- the end ---------------------------------------------------------------------------------

    def joined(self, node: str) -> None:
        """An agent has a new connection: what attempts that are over held there is freed."""
        self._tell_held(node)

    def released(self, gang: GangState | None) -> list[str]:
        """An attempt is over, and is none of ``gangs`` any more. Its nodes; none for one that is not known."""
        if gang is None:
            return []
        cut = self._of.pop(gang.key, None) is not None
        for node in gang.nodes:
            if cut or (gang.command is not None and self._cuts(gang.command, node)):
                self._tell_held(node)
        return gang.nodes

    def _tell_held(self, node: str) -> None:
        link = self._nodes.at.get(node)
        if link is None or link.peer is None or not link.makes_parts:
            return
        attempts = [key for key, gang in self._gangs.items() if node in gang.nodes]
        number = self._out.ask(link.peer.id)
        self._out.tell(
            link.peer.id, frames.Run(number, self._out.fence, wire.SLICES_HELD, {"attempts": attempts})
        )


def _order(command: StartGang, node: str, there: Node) -> dict[str, object]:
    """What the agent of a node needs; ``unidle.agent.cuts`` reads it."""
    places = [place for place in command.places if place.node == node]
    wanted = {name for place in places for name in place.slices}
    used = {device_of(name) for name in wanted}
    return {
        "job": command.job,
        "attempt": command.attempt,
        "places": msgspec.to_builtins(places),
        "share": msgspec.to_builtins(command.spec.share),
        "parts": {name: msgspec.to_builtins(part) for name, part in command.parts.items() if name in wanted},
        "devices": msgspec.to_builtins([device for device in there.devices if device.id in used]),
    }
