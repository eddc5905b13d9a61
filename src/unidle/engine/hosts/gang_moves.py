"""What is to be done for a gang now: boxes, `prepare`, `start`, `stop`. Each call does what can be done, and nothing twice.

No rank is started before every box of the attempt is connected and has answered ``prepare`` on that connection. Repeats
are harmless, because a box starts each rank of an attempt once.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Final

from unidle.engine.hosts.box_link import BoxLink, BoxLinks
from unidle.engine.hosts.box_maker import BoxMaker
from unidle.engine.hosts.gang_state import GangState, RankState, numbers
from unidle.engine.hosts.grants import RankGrants
from unidle.engine.hosts.host_nodes import HostNodes
from unidle.engine.hosts.job_saves import saves_of
from unidle.engine.hosts.orders import BoxHost, granted, start_frames
from unidle.engine.hosts.outbox import HubFacts, Outbox
from unidle.engine.hosts.timing import HostsTiming
from unidle.engine.protocol import StartGang
from unidle.errors import CannotRun
from unidle.hub import frames
from unidle.hub.protocol import Peer

TRIES: Final = 3  # of `prepare`, before a gang is given up
NEVER_STARTED: Final = "stopped before it was started"

OrdersOf = Callable[[StartGang, int, dict[str, BoxHost]], list[frames.RankOrders]]
"""The orders of all ranks of a gang, from its port and the hosts of its nodes."""


class GangMoves:
    """Brings gangs on: works on their state, and puts frames and marks into the outbox."""

    def __init__(
        self, out: Outbox, boxes: BoxLinks, maker: BoxMaker, nodes: HostNodes, hub: HubFacts, timing: HostsTiming,
        orders: OrdersOf, cuts: RankGrants,
    ) -> None:  # fmt: skip
        self._out, self._boxes, self._maker, self._nodes, self._hub = out, boxes, maker, nodes, hub
        self._timing, self._orders, self._cuts = timing, orders, cuts

    def move(self, gang: GangState) -> None:
        """Do all that can be done for a gang now."""
        if gang.halted:
            self._halt(gang)
        elif gang.unsettled and not self._out.superseded:
            self._begin(gang)

    def give_up(self, gang: GangState, why: str) -> None:
        """Start no rank of it any more. Those that no box has begun are ended."""
        gang.halted = gang.halted or why
        self.move(gang)

    def overdue(self, gang: GangState) -> None:
        """Give a gang up whose boxes had their time."""
        since_ns = gang.waits_since_ns
        if since_ns is not None and self._out.now_ns >= since_ns + self._timing.start_within_ns:
            self.give_up(gang, self._missing(gang))

    # -- start -----------------------------------------------------------------------------------

    def _begin(self, gang: GangState) -> None:
        if gang.command is None or not any(self._is_due(gang, rank) for rank in gang.ranks):
            gang.waits_since_ns = None
            return
        if gang.waits_since_ns is None:
            gang.waits_since_ns = self._out.now_ns
        links = {node: self._boxes.get(node, gang.job) for node in gang.nodes}
        peers = {
            node: link.peer
            for node, link in links.items()
            if link.peer is not None and not link.ending and not self._maker.leaves(link)
        }
        for node, link in links.items():
            if node not in peers:
                self._maker.fetch(link)
        if len(peers) < len(links):
            return
        for node, peer in peers.items():
            self._prepare(gang, node, peer)
        cut = self._cuts.ready(gang, self.move, self._turned_away)
        if not cut or any(gang.prepared.get(node, (0, {}))[0] != peer.id for node, peer in peers.items()):
            return
        if gang.look.holds(gang.command, self._out.now_ns):
            gang.waits_since_ns = None  # the boxes are there
        else:
            self._start(gang, links, peers)

    def _is_due(self, gang: GangState, rank: RankState) -> bool:
        """Whether the rank's start is to be sent, on the connection that its box has now."""
        if rank.ended or rank.begun:
            return False
        peer = self._boxes.get(rank.node, gang.job).peer
        return peer is None or rank.sent != peer.id

    def _prepare(self, gang: GangState, node: str, peer: Peer) -> None:
        if gang.prepare_sent.get(node) == peer.id:
            return
        gang.prepare_sent[node] = peer.id

        def answered(done: frames.Done) -> None:
            if done.ok:
                gang.prepared[node] = (peer.id, done.data)
                self.looked(gang, done.data.get("looked"))
                self.move(gang)
            elif done.why and not self._out.heed(done) and gang.prepare_sent.get(node) == peer.id:
                self._refused(gang, node, done.why)

        number = self._out.ask(peer.id, answered)
        leader = node == gang.ranks[0].node
        saves = None
        if gang.command is not None:
            saves = saves_of(gang.command, self._maker.address(node, gang.job), leader=leader)
        self._out.tell(peer.id, frames.Prepare(number, self._out.fence, gang.attempt, leader, saves))

    def looked(self, gang: GangState, said: object) -> None:
        """The box of rank 0 has read the newest checkpoint, or a part of it."""
        if said is not None:
            self._out.seen += gang.look.take(*gang.key, said)

    def _refused(self, gang: GangState, node: str, why: str) -> None:
        """A box is not ready: it is asked again with the next look at the gang, a few times."""
        gang.refusals += 1
        if gang.refusals < TRIES:
            del gang.prepare_sent[node]
        else:
            self.give_up(gang, f"node {node}: {why}")

    def _turned_away(self, gang: GangState, why: str) -> None:
        """A host does not make what was placed there: the gang is placed elsewhere, as long as none of it runs."""
        if gang.halted or any(rank.begun or rank.may_run for rank in gang.ranks):
            self.give_up(gang, why)
            return
        gang.halted, gang.waits_since_ns = why, None
        self._out.turn_away(gang, why, for_good=False)

    def _start(self, gang: GangState, links: dict[str, BoxLink], peers: dict[str, Peer]) -> None:
        """Every box is there and prepared: give each the ranks that it has not begun."""
        assert gang.command is not None
        port = gang.prepared[gang.ranks[0].node][1].get("port")
        if not isinstance(port, int):
            self.give_up(gang, f"node {gang.ranks[0].node} did not reserve a port")
            return
        if gang.port not in (None, port):
            self.give_up(gang, "the port of the gang was lost with the box of rank 0")
            return
        gang.port, gang.waits_since_ns = port, None
        hosts = {
            node: BoxHost(
                peers[node].boot,
                self._offset_ns(link),
                self._maker.address(node, gang.job),
                _interface(gang, node),
            )
            for node, link in links.items()
        }
        due = {node: [rank for rank in gang.on(node) if self._is_due(gang, rank)] for node in peers}
        try:
            orders = granted(self._orders(gang.command, port, hosts), self._cuts.grants(gang))
            chunks = {node: start_frames(orders, ranks) for node, ranks in due.items()}
        except (OSError, CannotRun) as error:
            self.give_up(gang, str(error))
            return
        for node, peer in peers.items():
            for chunk in chunks[node]:
                number = self._out.ask(peer.id, self._started(gang, peer, [one.rank for one in chunk]))
                self._out.tell(peer.id, frames.Start(number, self._out.fence, gang.attempt, chunk))
            for rank in due[node]:
                rank.may_run, rank.sent = True, peer.id

    def _offset_ns(self, link: BoxLink) -> int:
        return link.offset_ns(self._hub, self._nodes.agent(link.node))

    def _started(self, gang: GangState, peer: Peer, ranks: list[int]) -> Callable[[frames.Done], None]:
        def answered(done: frames.Done) -> None:
            if not done.ok and done.why and not self._out.heed(done):  # its marks have the reason, and end it
                number = self._out.ask(peer.id)
                self._out.tell(peer.id, frames.Stop(number, self._out.fence, gang.attempt, ranks, 0))

        return answered

    def _missing(self, gang: GangState) -> str:
        """Why a gang could not be started in time."""
        within_s = self._timing.start_within_ns // 1_000_000_000
        for node in gang.nodes:
            link = self._boxes.get(node, gang.job)
            if link.peer is None:
                return (
                    f"the box of node {node} was not there within {within_s} s: {self._maker.missing(link)}"
                )
        if uncut := self._cuts.waits(gang):
            return f"the parts of devices were not made within {within_s} s: {', '.join(uncut)}"
        waits = [node for node in gang.nodes if node not in gang.prepared]
        return f"the boxes were not prepared within {within_s} s: {', '.join(waits) or 'of several tries'}"

    # -- stop ------------------------------------------------------------------------------------

    def _halt(self, gang: GangState) -> None:
        """Nothing of it is started any more; what runs is stopped only where that was asked for."""
        gang.waits_since_ns = None
        asked = gang.grace_ns is not None
        for rank in gang.ranks:
            if not rank.ended and not rank.may_run:
                text = NEVER_STARTED if asked else f"the rank cannot be started: {gang.halted}"
                self._out.lost(gang, rank, text)
        for node in gang.nodes:
            ranks = [rank for rank in gang.risky(node) if asked or not rank.begun]
            peer = self._boxes.get(node, gang.job).peer if ranks else None
            if peer is not None and gang.stop_sent.get(node) != (peer.id, gang.grace_ns):
                gang.stop_sent[node] = (peer.id, gang.grace_ns)
                self._stop(gang, peer, numbers(ranks), gang.grace_ns or 0)

    def _stop(self, gang: GangState, peer: Peer, ranks: list[int], grace_ns: int) -> None:
        def answered(done: frames.Done) -> None:
            if not done.ok and done.why:
                self._out.heed(done)

        number = self._out.ask(peer.id, answered)
        self._out.tell(peer.id, frames.Stop(number, self._out.fence, gang.attempt, ranks, grace_ns))


def _interface(gang: GangState, node: str) -> str:
    found = gang.prepared[node][1].get("interface")
    return found if isinstance(found, str) else ""
