"""The nodes of a cluster, as its API server lists them. Agents, where they run, are their senses, and do not describe them."""

from __future__ import annotations

from dataclasses import replace
from typing import Any, Final

from unidle.engine.hosts.host_nodes import HostNode, HostNodes
from unidle.engine.hosts.outbox import HubFacts, Outbox
from unidle.engine.hosts.timing import HostsTiming, S
from unidle.engine.protocol import HealthChange, NodesChanged, Redeclared
from unidle.fleet import Fleet, Node
from unidle.hub.protocol import Peer
from unidle.jobs import Reason

NODE_GONE = "unidle/node-gone"
"""Taint of a node that has left the cluster, while ranks may run there."""


DOUBT_NS: Final = 60 * S
"""So long a node whose box was silent takes no job, unless a box there answers: the cluster finds a dead kubelet later."""


class KubeNodes(HostNodes):
    """A node that is not Ready is reported as faulty once no box of it answers. One that left the cluster stays in the
    fleet, for no new job, until no rank may run there.
    """

    def __init__(self, fleet: Fleet, start_ns: int, timing: HostsTiming, out: Outbox) -> None:
        super().__init__(fleet, start_ns, timing, out)
        self.doubted: list[HostNode] = []  # since this was last emptied

    def declare(self, fleet: Fleet) -> None:
        """Tiers, links, queues and policies are those of ``fleet`` from now on."""
        self._fleet = replace(fleet, nodes=())
        self._site, self._tiers = fleet.tiers[0].id, {tier.id for tier in fleet.tiers}
        self._out.seen.append(Redeclared(self._fleet))

    def rehang(self) -> None:
        """Nodes whose tier is no more hang from the top: those that left the cluster, as all others were listed again."""
        for link in self.at.values():
            if link.node.parent not in self._tiers:
                before, link.node = link.as_listed(), replace(link.node, parent=self._site)
                self._list(link, before)

    def put(self, node: Node) -> HostNode:
        """A node is listed, or changed."""
        if node.parent not in self._tiers:
            node = replace(node, parent=self._site)
        link = self.at.get(node.id)
        before = None if link is None else link.as_listed()
        if link is None:
            link = self.at[node.id] = HostNode(node, self._out.now_ns)
        link.node, link.leaving = node, False
        self._list(link, before)
        return link

    def doubt(self, node: str, because: Reason) -> None:
        """A box of a node was silent for its whole lease."""
        link = self.at.get(node)
        if link is None:
            return
        link.doubted_until_ns = self._out.now_ns + DOUBT_NS
        self.doubted.append(link)
        if not link.down:
            link.down = True
            self._out.seen.append(HealthChange(node, "fault", because))

    def removed(self, node: str) -> HostNode | None:
        """A node has left the cluster."""
        link = self.at.get(node)
        if link is not None and not link.leaving:
            before, link.leaving = link.as_listed(), True
            link.node = replace(link.node, taints=(*link.node.taints, NODE_GONE))
            self._list(link, before)
        return link

    def join(self, peer: Peer, heard_ns: int) -> HostNode | None:
        """An agent speaks for a node that the cluster has."""
        link = self.at.get(peer.node)
        if link is None:
            return None
        if link.peer is not None:
            self.of_peer.pop(link.peer.id, None)
        link.peer, link.heard_ns = peer, max(link.heard_ns, heard_ns)
        self.of_peer[peer.id] = link
        return link

    def unwatched(self, node: str) -> str:
        return "" if self.agent(node) is not None else f"no agent runs on node {node}, so it is not checked"

    def described(self, peer: int, body: dict[str, Any]) -> None:
        """The API server describes nodes."""

    def leave(self, peer: int, heard_ns: int, *, on_purpose: bool) -> HostNode | None:  # noqa: ARG002
        return super().leave(peer, heard_ns, on_purpose=False)

    def forget(self, node: str) -> HostNode | None:  # noqa: ARG002
        """It is the cluster that forgets nodes."""
        return None

    def look(self, link: HostNode, now_ns: int, hub: HubFacts, *, boxes: bool, used: bool) -> int | None:  # noqa: ARG002
        if link.leaving and not used:
            del self.at[link.node.id]
            self._out.seen.append(NodesChanged(gone=(link.node.id,)))
            return None
        doubted = now_ns < link.doubted_until_ns and not boxes
        if link.trouble is None and not link.leaving and not doubted:
            link.doubted_until_ns = 0
            self._recover(link)
            return None
        if boxes:
            self._recover(link)
        elif not link.down and link.trouble is not None:
            link.down = True
            self._out.seen.append(HealthChange(link.node.id, "fault", link.trouble))
        return now_ns + S
