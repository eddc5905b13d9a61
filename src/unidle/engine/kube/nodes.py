"""The nodes of a cluster, as its API server lists them. Agents, where they run, are their senses, and do not describe them."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

from unidle.engine.hosts.host_nodes import HostNode, HostNodes
from unidle.engine.hosts.outbox import HubFacts
from unidle.engine.hosts.timing import S
from unidle.engine.protocol import HealthChange, NodesChanged
from unidle.fleet import Node
from unidle.hub.protocol import Peer

NODE_GONE = "unidle/node-gone"
"""Taint of a node that has left the cluster, while ranks may run there."""


class KubeNodes(HostNodes):
    """A node that is not Ready is reported as faulty once no box of it answers. One that left the cluster stays in the
    fleet, for no new job, until no rank may run there.
    """

    def put(self, node: Node) -> HostNode:
        """A node is listed, or changed. One of a tier that came later hangs from the top."""
        if node.parent not in self._tiers:
            node = replace(node, parent=self._site)
        link = self.at.get(node.id)
        before = None if link is None else link.as_listed()
        if link is None:
            link = self.at[node.id] = HostNode(node, self._out.now_ns)
        link.node, link.leaving = node, False
        self._list(link, before)
        return link

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
        if link.trouble is None and not link.leaving:
            self._recover(link)
            return None
        if boxes:
            self._recover(link)
        elif not link.down and link.trouble is not None:
            link.down = True
            self._out.seen.append(HealthChange(link.node.id, "fault", link.trouble))
        return now_ns + S
