"""Whether the devices of watched attempts are used, from what the agents of their hosts measure."""

from __future__ import annotations

from dataclasses import dataclass, field, replace
from typing import Any

import msgspec

from unidle import wire
from unidle.engine.hosts.gang_state import Key
from unidle.engine.hosts.host_nodes import HostNodes
from unidle.engine.hosts.outbox import Outbox
from unidle.engine.protocol import Utilised, WatchGang
from unidle.hub import frames
from unidle.hub.protocol import Peer


@dataclass(slots=True)
class _Watched:
    command: WatchGang
    found: dict[str, Utilised | None] = field(default_factory=dict)  # by node; None: not known yet
    told: Utilised | None = None


class GangUses:
    """Has agents measure, and puts what they report together: one busy rank makes the gang busy."""

    def __init__(self, out: Outbox, nodes: HostNodes) -> None:
        self._out, self._nodes = out, nodes
        self._watched: dict[Key, _Watched] = {}

    def watch(self, command: WatchGang) -> None:
        key = (command.job, command.attempt)
        if not command.every_ns:
            watched = self._watched.pop(key, None)
            for node in watched.found if watched is not None else ():
                self._order(command, node)
        elif key not in self._watched:
            watched = self._watched[key] = _Watched(command)
            for node in dict.fromkeys(place.node for place in command.places):
                watched.found[node] = None
                self._order(command, node)

    def forget(self, key: Key) -> None:
        """The attempt has ended."""
        if (watched := self._watched.get(key)) is not None:
            self.watch(replace(watched.command, every_ns=0))

    def joined(self, node: str) -> None:
        """The node has an agent again, which may be a new one. What is known holds until it reports."""
        for watched in self._watched.values():
            if node in watched.found:
                self._order(watched.command, node)

    def gone(self, node: str) -> None:
        """Its agent has not answered for a while."""
        for watched in self._watched.values():
            if node in watched.found:
                self._unknown(watched, node, f"the agent of host {node} does not answer")

    def seen(self, peer: int, body: dict[str, Any], offset_ns: int) -> None:
        """An agent measured ranks of its node: it speaks for those alone."""
        link = self._nodes.of_peer.get(peer)
        try:
            seen = msgspec.convert(body, Utilised)
        except msgspec.ValidationError:
            return  # of another release
        watched = self._watched.get((seen.job, seen.attempt))
        if link is not None and watched is not None and link.node.id in watched.found:
            self._take(watched, link.node.id, replace(seen, since_ns=seen.since_ns + offset_ns))

    def _order(self, command: WatchGang, node: str) -> None:
        agent = self._nodes.agent(node)
        watched = self._watched.get((command.job, command.attempt))
        if agent is None:
            link = self._nodes.at.get(node)
            if watched is not None and (link is None or link.gone):
                self._unknown(watched, node, f"the agent of host {node} does not answer")
            return

        def answered(done: frames.Done) -> None:
            if watched is not None and not done.ok and done.why:
                self._unknown(watched, node, f"host {node}: {done.why}")

        self._send(command, agent, self._out.ask(agent.id, answered))

    def _send(self, command: WatchGang, agent: Peer, number: int) -> None:
        """The order has the places on the agent's node."""
        here = tuple(place for place in command.places if place.node == agent.node)
        body = msgspec.to_builtins(replace(command, places=here))
        self._out.tell(agent.id, frames.Run(number, self._out.fence, wire.USE, body))

    def _unknown(self, watched: _Watched, node: str, text: str) -> None:
        key = (watched.command.job, watched.command.attempt)
        self._take(watched, node, Utilised(*key, "unknown", self._out.now_ns, text))

    def _take(self, watched: _Watched, node: str, seen: Utilised) -> None:
        watched.found[node] = seen
        together = _together(watched.found)
        before = watched.told
        if together is not None and (
            before is None or (before.use, before.text) != (together.use, together.text)
        ):
            watched.told = together
            self._out.seen.append(together)


def _together(found: dict[str, Utilised | None]) -> Utilised | None:
    """None while too little is known: a host that is at work is enough, for the rest all hosts count."""
    known = [seen for seen in found.values() if seen is not None]
    if busy := [seen for seen in known if seen.use == "busy"]:
        return min(busy, key=lambda seen: seen.since_ns)
    if len(known) < len(found):
        return None
    if unknown := [seen for seen in known if seen.use == "unknown"]:
        return unknown[0]
    return max(known, key=lambda seen: seen.since_ns, default=None)
