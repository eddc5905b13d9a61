"""The boxes of the engine of hosts: their connections, and when the hub last acknowledged a sign of each."""

from __future__ import annotations

from dataclasses import dataclass, field

from unidle.engine.hosts.gang_state import Key
from unidle.engine.hosts.outbox import HubFacts
from unidle.hub.protocol import Peer

Place = tuple[str, str]  # node and job


@dataclass(slots=True)
class BoxLink:
    """The box of a job on a node. ``heard_ns`` (controller's clock): when the newest acknowledged sign of it was
    received. For a box of an earlier controller that is when this one started, as that one may have acknowledged
    until then. ``peer`` is None while it has no connection. ``ending``: it was stopped from outside, and takes no rank.
    """

    node: str
    job: str
    heard_ns: int
    peer: Peer | None = None
    hello_offset_ns: int = 0  # its CLOCK_BOOTTIME to the controller's clock, as far as its hello shows it
    silent: set[tuple[Key, int]] = field(default_factory=set)  # ranks that were reported to be silent
    asked_ns: int | None = None  # when its agent was last asked for it
    trouble: str = ""  # why its agent could not start it
    ending: bool = False

    @property
    def place(self) -> Place:
        return self.node, self.job

    def refresh(self, hub: HubFacts) -> None:
        """Take over when the hub last acknowledged a sign of it."""
        if self.peer is not None:
            self.heard_ns = max(self.heard_ns, hub.acknowledged_ns(self.peer.id))

    def answers(self, hub: HubFacts, now_ns: int, silent_ns: int) -> bool:
        """Whether it has a connection, and was not silent for so long."""
        self.refresh(hub)
        return self.peer is not None and now_ns < self.heard_ns + silent_ns

    def offset_ns(self, hub: HubFacts, agent: Peer | None) -> int:
        """What turns its boot-time clock into the controller's.

        The box and its host's ``agent`` have the same clock, so the better one of two measurements counts: that of a
        box that has just begun is of few exchanges.
        """
        peers = [self.peer] if self.peer is not None else []
        if agent is not None and peers and agent.boot == peers[0].boot:
            peers.append(agent)
        found = [clock for peer in peers if (clock := hub.offset(peer.id)) is not None]
        best = min(found, key=lambda clock: clock.error_ns, default=None)
        return self.hello_offset_ns if best is None else best.offset_ns


@dataclass(slots=True)
class BoxLinks:
    """All boxes, by place and by connection."""

    start_ns: int
    at: dict[Place, BoxLink] = field(default_factory=dict)
    of_peer: dict[int, BoxLink] = field(default_factory=dict)
    _on_node: dict[str, dict[str, BoxLink]] = field(default_factory=dict)
    _of_job: dict[str, dict[str, BoxLink]] = field(default_factory=dict)

    def get(self, node: str, job: str) -> BoxLink:
        link = self.at.get((node, job))
        if link is None:
            link = self.at[node, job] = BoxLink(node, job, self.start_ns)
            self._on_node.setdefault(node, {})[job] = link
            self._of_job.setdefault(job, {})[node] = link
        return link

    def join(self, peer: Peer, now_ns: int, heard_ns: int) -> BoxLink:
        """A box has a new connection; frames of the one before it are ignored."""
        link = self.get(peer.node, peer.job)
        if link.peer is not None:
            self.of_peer.pop(link.peer.id, None)
        link.peer = peer
        link.heard_ns = max(link.heard_ns, heard_ns)
        link.hello_offset_ns = now_ns - peer.hello.now
        link.trouble, link.ending = "", False
        self.of_peer[peer.id] = link
        return link

    def leave(self, peer: int, heard_ns: int) -> BoxLink | None:
        """A connection is over; None where it was replaced before."""
        link = self.of_peer.pop(peer, None)
        if link is not None:
            link.peer = None
            link.heard_ns = max(link.heard_ns, heard_ns)
        return link

    def on_node(self, node: str) -> list[BoxLink]:
        return list(self._on_node.get(node, {}).values())

    def of_job(self, job: str) -> list[BoxLink]:
        return list(self._of_job.get(job, {}).values())

    def forget(self, link: BoxLink) -> None:
        """Unless it has a connection."""
        if link.peer is None and self.at.pop(link.place, None) is not None:
            for index, key, inner in (
                (self._on_node, link.node, link.job),
                (self._of_job, link.job, link.node),
            ):
                del index[key][inner]
                if not index[key]:
                    del index[key]
