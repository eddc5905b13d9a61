"""Checks and remedies on other hosts: orders to their agents, by name, until one answer has come.

An order is sent again on each connection of its agent, which runs a name once. So it survives a connection that breaks, an
agent that is started again, and a restart of the host.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, Final

import msgspec

from unidle.clock import Clock
from unidle.engine.hosts.core import HostsCore
from unidle.engine.hosts.timing import S
from unidle.engine.node_commands import LinkCheck, NodeCheck, NodeCommand, NodeOutcome
from unidle.hub import frames
from unidle.hub.protocol import ClockOffset
from unidle.hub.refusals import printable
from unidle.words import counted

ANSWER_NS: Final = 10 * S  # for the answer, after the limit of the order
MOST_BYTES: Final = 512 * 1024  # of an order
_MOST_TEXT: Final = 64 * 1024


class Ended(msgspec.Struct, frozen=True):
    """The answer of an agent: how the order of this name ended."""

    name: str
    code: int | None = None
    late: bool = False
    text: str = ""
    restarted: bool = False


@dataclass(slots=True)
class _Order:
    """``peer``: the connection on which it was sent, None where it has to be sent."""

    order: NodeCommand
    begun_ns: int
    peer: int | None = None
    outcome: NodeOutcome | None = None


class HostCommands:
    """:class:`unidle.engine.node_commands.NodeCommands` where each node is a host with an agent.

    ``name`` is of the fleet: agents keep orders of fleets with other names apart. ``flush`` sends what is queued.
    """

    elsewhere: Final = True

    def __init__(self, core: HostsCore, clock: Clock, name: str, flush: Callable[[], None]) -> None:
        self._core, self._clock, self._name, self._flush = core, clock, name, flush
        self._orders: dict[str, _Order] = {}

    def away(self, node: str) -> str:
        """An agent that is only dialling again is waited for."""
        link = self._core.nodes.at.get(node)
        if link is None or link.leaving:
            return f"host {node} has left the fleet"
        return f"host {node} does not answer" if link.gone else ""

    def begin(self, order: NodeCommand) -> None:
        """Its limit counts from here, also while its host does not answer."""
        if order.name in self._orders:
            return
        one = self._orders[order.name] = _Order(order, self._clock.now_ns())
        if len(msgspec.json.encode(_body(self._name, order, order.limit_ns))) > MOST_BYTES:
            one.outcome = NodeOutcome(None, False, f"the command is longer than {MOST_BYTES} bytes")
        self._send(one)

    def look(self, name: str) -> NodeOutcome | None:
        one = self._orders.get(name)
        if one is None:
            return None
        if one.outcome is None and self._clock.now_ns() >= one.begun_ns + one.order.limit_ns + ANSWER_NS:
            limit = counted(round(one.order.limit_ns / S), "second")
            one.outcome = NodeOutcome(
                None, False, f"host {one.order.node} did not answer within {limit}", away=True
            )
        if one.outcome is None and (why := self._core.nodes.unwatched(one.order.node)):
            one.outcome = NodeOutcome(None, False, why)
        self._send(one)
        return one.outcome

    def forget(self, name: str) -> None:
        self._orders.pop(name, None)

    def _send(self, one: _Order) -> None:
        """Send it to the agent of its node, once for each connection of that."""
        order = one.order
        left_ns = one.begun_ns + order.limit_ns - self._clock.now_ns()
        agent = self._core.nodes.agent(order.node)
        if one.outcome is not None or agent is None or one.peer == agent.id:
            return
        offset = self._core.clock_of(agent)
        if offset is None and isinstance(order.what, NodeCheck) and order.what.log_since_ns is not None:
            return  # it is measured within a second, and the order is looked at until then
        one.peer = agent.id
        out = self._core.out
        number = out.ask(agent.id, lambda done: self._answered(one, done))
        what = {NodeCheck: "check", LinkCheck: "links"}.get(type(order.what), "hook")
        out.tell(
            agent.id, frames.Run(number, out.fence, what, _body(self._name, order, max(left_ns, S), offset))
        )
        self._flush()

    def _answered(self, one: _Order, done: frames.Done) -> None:
        if self._core.out.heed(done):
            return
        if not done.ok and not done.why:
            one.peer = None  # the connection ended
        elif not done.ok:
            one.outcome = NodeOutcome(None, False, f"host {one.order.node}: {printable(done.why)}")
        else:
            one.outcome = _outcome(one.order, self._name, done.data)


def _body(fleet: str, order: NodeCommand, limit_ns: int, offset: ClockOffset | None = None) -> dict[str, Any]:
    """What the agent needs; ``unidle.agent.orders`` reads it. ``offset``: of the agent's clock."""
    what = order.what
    body: dict[str, Any] = {"name": f"{fleet}-{order.name}", "limit_ns": limit_ns}
    if isinstance(what, NodeCheck):
        since_ns = what.log_since_ns
        if since_ns is not None and offset is not None:  # rather a line too many
            since_ns = max(since_ns - offset.offset_ns - offset.error_ns, 0)
        return body | {"tier": what.tier, "log_since_ns": since_ns, "used": what.used}
    if isinstance(what, LinkCheck):
        part: dict[str, Any] = msgspec.to_builtins(what)
        return body | part
    return body | {"words": what}


def _outcome(order: NodeCommand, fleet: str, data: dict[str, Any]) -> NodeOutcome:
    try:
        ended = msgspec.convert(data, Ended)
    except msgspec.ValidationError as error:
        return NodeOutcome(
            None, False, f"host {order.node}: the answer is not as agreed: {printable(str(error))}"
        )
    if ended.name != f"{fleet}-{order.name}":
        return NodeOutcome(None, False, f"host {order.node}: the answer is of another order")
    return NodeOutcome(ended.code, ended.late, ended.text[-_MOST_TEXT:], restarted=ended.restarted)
