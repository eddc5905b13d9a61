"""The nodes of the fleet as their agents describe them: who joins, who leaves, and which take no new jobs."""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Any

import msgspec

from unidle.engine.hosts.host_devices import offers_parts, ruled
from unidle.engine.hosts.outbox import HubFacts, Outbox
from unidle.engine.hosts.timing import HostsTiming, S
from unidle.engine.protocol import HealthChange, NodesChanged
from unidle.fleet import Fleet, Node
from unidle.hub.protocol import Peer
from unidle.jobs import Reason

AGENT_GONE = "unidle/agent-gone"
"""Taint of a node whose agent does not answer while its boxes do: what runs continues, no other job starts there."""


@dataclass(slots=True)
class HostNode:
    """A node. ``down``: neither its agent nor a box answers. ``leaving``: its agent left on purpose.

    ``trouble``: why it is not ready by the word of its cluster, where it has one; ``doubted_until_ns``: a box of it was
    silent for its whole lease, which its cluster may not know yet. ``makes_parts``: its agent makes parts of devices.
    """

    node: Node
    heard_ns: int
    peer: Peer | None = None
    down: bool = False
    gone: bool = False  # its agent does not answer
    leaving: bool = False
    trouble: Reason | None = None
    doubted_until_ns: int = 0
    makes_parts: bool = False

    def as_listed(self) -> Node:
        """The node as the fleet has it now."""
        if not self.gone:
            return self.node
        return replace(self.node, taints=(*self.node.taints, AGENT_GONE))


class HostNodes:
    """``fleet`` has what no host can say (tiers, queues, policies), and the nodes that are known from before."""

    def __init__(self, fleet: Fleet, start_ns: int, timing: HostsTiming, out: Outbox) -> None:
        self._fleet, self._timing, self._out = fleet, timing, out
        self._site = fleet.tiers[0].id if fleet.tiers else ""
        self._tiers = {tier.id for tier in fleet.tiers}
        self.at = {node.id: HostNode(node, start_ns) for node in fleet.nodes}
        self.of_peer: dict[int, HostNode] = {}

    def fleet(self) -> Fleet:
        """What there is now."""
        return replace(self._fleet, nodes=tuple(link.as_listed() for link in self.at.values()))

    def agent(self, node: str) -> Peer | None:
        link = self.at.get(node)
        return None if link is None else link.peer

    def unwatched(self, node: str) -> str:  # noqa: ARG002
        """Why no agent of a node is to be waited for; empty: each has one, or will have it again."""
        return ""

    def address(self, node: str) -> str:
        """Where other hosts reach a node; the loopback address of one that is not known."""
        link = self.at.get(node)
        return link.node.address if link is not None and link.node.address else "127.0.0.1"

    def join(self, peer: Peer, heard_ns: int) -> HostNode | None:
        """An agent has a new connection; None where it does not describe its node."""
        known = self.at.get(peer.node)
        described = peer.hello.agent.node if peer.hello.agent is not None else {}
        found = self._decoded(peer, described)
        node = found[0] if found is not None else (None if known is None else known.node)
        if node is None:
            return None
        before = None if known is None else known.as_listed()
        link = known or HostNode(node, heard_ns)
        if link.peer is not None:
            self.of_peer.pop(link.peer.id, None)
        link.node, link.peer, link.heard_ns = node, peer, max(link.heard_ns, heard_ns)
        link.gone = link.leaving = False
        link.makes_parts = found is not None and found[1]
        self.at[peer.node], self.of_peer[peer.id] = link, link
        self._list(link, before)
        self._recover(link)
        return link

    def described(self, peer: int, body: dict[str, Any]) -> None:
        """An agent describes its node again."""
        link = self.of_peer.get(peer)
        if link is None or link.peer is None:
            return
        found = self._decoded(link.peer, body.get("node"))
        if found is not None:
            before = link.as_listed()
            link.node, link.makes_parts = found
            self._list(link, before)

    def leave(self, peer: int, heard_ns: int, *, on_purpose: bool) -> HostNode | None:
        """A connection is over; None where it was replaced before, or was no agent's."""
        link = self.of_peer.pop(peer, None)
        if link is not None:
            link.peer = None
            link.heard_ns = max(link.heard_ns, heard_ns)
            link.leaving = on_purpose
        return link

    def forget(self, node: str) -> HostNode | None:
        """A node whose agent is not connected leaves the fleet, once no rank may run there; None where there is no such node."""
        link = self.at.get(node)
        if link is not None:
            link.leaving = True
        return link

    def look(self, link: HostNode, now_ns: int, hub: HubFacts, *, boxes: bool, used: bool) -> int | None:
        """What an agent's silence means; when to look again. ``boxes``: one of the node answers; ``used``: it has ranks."""
        if link.peer is not None:
            link.heard_ns = max(link.heard_ns, hub.acknowledged_ns(link.peer.id))
        if link.leaving and not used:
            del self.at[link.node.id]
            self._out.seen.append(NodesChanged(gone=(link.node.id,)))
            return None
        due_ns = link.heard_ns + self._timing.silent_ns
        if not link.leaving and now_ns < due_ns:
            self._answers(link)
            return due_ns
        if not link.gone:
            before, link.gone = link.as_listed(), True
            self._list(link, before)
        if boxes or link.leaving:
            self._recover(link)
        elif not link.down:
            link.down = True
            silent_s = (now_ns - link.heard_ns) / S
            text = f"host {link.node.id} has not answered for {silent_s:.1f} s"
            because = Reason("host_silent", text, {"since_ns": link.heard_ns})
            self._out.seen.append(HealthChange(link.node.id, "fault", because))
        return now_ns + S

    def _answers(self, link: HostNode) -> None:
        """The agent is there."""
        if link.gone:
            before, link.gone = link.as_listed(), False
            self._list(link, before)
        self._recover(link)

    def _recover(self, link: HostNode) -> None:
        if link.down:
            link.down = False
            because = Reason("host_answers", f"host {link.node.id} answers again")
            self._out.seen.append(HealthChange(link.node.id, "healthy", because))

    def _list(self, link: HostNode, before: Node | None) -> None:
        if (now := link.as_listed()) != before:
            self._out.seen.append(NodesChanged(put=(now,)))

    def _decoded(self, peer: Peer, described: object) -> tuple[Node, bool] | None:
        """The node, as far as this fleet can take it: it hangs from a tier that there is, others can reach it, and its
        devices are cut as this fleet allows. And whether its agent makes parts of them.
        """
        try:
            node = msgspec.convert(described, Node)
        except msgspec.ValidationError:
            return None
        if node.id != peer.node or any(device.node != node.id for device in node.devices):
            return None
        links = node.gpu_links if node.gpu_links in self._fleet.gpu_links else ""
        parent = node.parent if node.parent in self._tiers else self._site
        own = node.address if not node.address.startswith("127.") else peer.address or node.address
        node = replace(node, parent=parent, gpu_links=links, address=own, netns="")
        return ruled(node, self._fleet.host_devices), offers_parts(node)
