"""Checks between nodes: which run, what came out, and what follows for a gang.

What to do is ``unidle.guard.links``'s. All nodes of a check take part at once, each on its own machine; the first leads.
"""

from __future__ import annotations

import json
import random
import secrets
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Annotated, Final

import msgspec

from unidle.engine.node_commands import LinkCheck, NodeCommand, NodeCommands, NodeOutcome
from unidle.events import types as ev
from unidle.fleet.policies import Between
from unidle.guard.links import LinksDecision, LinksReport, LinksResult, decide_links, judged
from unidle.guard.preflight import PreflightRules
from unidle.view.jobs import AttemptView
from unidle.view.spares import busy_nodes
from unidle.view.state import View

_PORTS: Final = (20_000, 32_000)
"""Of which the leader listens on one, where the policy names none: below those that systems give out by themselves."""
_ENOUGH: Final = 3
"""With fewer nodes a check cannot determine which of them is bad: others of the fleet take part."""
_TEXT: Final = 200


class _Answer(msgspec.Struct, frozen=True):
    """What the leader printed, with ``--brief``."""

    bad_nodes: tuple[str, ...]
    bad_links: tuple[tuple[str, str], ...]
    slow: tuple[tuple[str, str, float | None], ...]
    absent: tuple[Annotated[int, msgspec.Meta(ge=0)], ...]
    least_gbps: float | None = None


@dataclass(frozen=True, slots=True)
class _Run:
    """A check that is under way: an order for each node, the leader's first."""

    nodes: tuple[str, ...]
    orders: tuple[NodeCommand, ...]
    by: str = ""
    request: str = ""


class LinkChecks:
    """``commands`` run them; ``name`` is of this controller: what it begins no other controller looks for."""

    def __init__(self, commands: NodeCommands, name: str) -> None:
        self._commands, self._name = commands, name
        self._runs: list[_Run] = []
        self._count = 0

    @property
    def busy(self) -> bool:
        """Whether any runs."""
        return bool(self._runs)

    def decide(self, view: View, attempt: AttemptView, rules: PreflightRules, now_ns: int) -> LinksDecision:
        """What to do with the links of an attempt. A measurement that is due begins, once its nodes are in no other."""
        nodes = tuple(sorted({place.node for place in attempt.places} & view.nodes.keys()))
        if len(nodes) < 2 or not self._apart(view, nodes):
            return LinksDecision("start")
        results = [
            LinksResult(frozenset(one.nodes), one.fit, one.bad, one.at_ns, one.because)
            for one in view.care.links
        ]
        found = decide_links(nodes, results, view.care.returned, now_ns, rules)
        policy = view.fleet.guard.between
        if found.action == "measure" and found.not_before_ns <= now_ns and policy is not None:
            self._begin(view, (*nodes, *self._witnesses(view, nodes)), policy)
        return found

    def ask(self, view: View, nodes: Sequence[str], by: str, request: str) -> str:
        """Measure for a person; why that is not possible, else empty. The result has the name of the request."""
        wanted = tuple(sorted(set(nodes)))
        if len(wanted) < 2:
            return "a check of links needs two nodes"
        if unknown := [node for node in wanted if node not in view.nodes]:
            return f"the fleet has no such node: {unknown[0]}"
        if away := next((why for node in wanted if (why := self._commands.away(node))), ""):
            return away
        if not self._apart(view, wanted):
            return "these nodes share one network: there is no link between them"
        if not self._begin(view, wanted, view.fleet.guard.between or Between(), by, request):
            return "links of one of these nodes are being checked: try again when that has ended"
        return ""

    def results(self) -> Iterator[ev.LinksChecked]:
        """Those that have ended, each once."""
        for run in list(self._runs):
            outcome = self._commands.look(run.orders[0].name)
            for order in run.orders[1:]:
                self._commands.look(order.name)  # it is sent again where its connection broke
            if outcome is None:
                continue
            self._runs.remove(run)
            for order in run.orders:
                self._commands.forget(order.name)
            fit, bad, because = _judged(run.nodes, outcome)
            yield ev.LinksChecked(run.nodes, fit, bad, because, run.by, run.request)

    def act(self) -> None:
        """Begin what was decided on."""
        for run in self._runs:
            for order in run.orders:
                self._commands.begin(order)

    def _apart(self, view: View, nodes: Sequence[str]) -> bool:
        """Whether there is a network between the nodes; those of one machine have one only with namespaces of their own."""
        spaces = {there.netns for node in nodes if (there := view.node(node)) is not None}
        return self._commands.elsewhere or len(spaces) == len(nodes)

    def _witnesses(self, view: View, nodes: tuple[str, ...]) -> tuple[str, ...]:
        """Nodes that take part, so that it can be determined which end of a link is bad; idle ones first."""
        missing = _ENOUGH - len(nodes)
        if missing <= 0:
            return ()
        busy, care = busy_nodes(view), view.care
        others = [
            node
            for node in view.fleet.nodes
            if node.id not in nodes
            and node.id not in care.targets
            and (self._commands.elsewhere or node.netns)
            and not self._commands.away(node.id)
        ]
        return tuple(node.id for node in sorted(others, key=lambda node: node.id in busy)[:missing])

    def _begin(
        self, view: View, nodes: tuple[str, ...], policy: Between, by: str = "", request: str = ""
    ) -> bool:
        """Whether it begins: two checks of one node would take each other's bandwidth."""
        if any(not {*nodes}.isdisjoint(run.nodes) for run in self._runs):
            return False
        self._count += 1
        leader = view.node(nodes[0])
        address = leader.address if leader is not None else ""
        port, secret = random.randint(*(policy.ports or _PORTS)), secrets.token_hex(16)
        orders = []
        for rank, node in enumerate(nodes):
            there = view.node(node)
            what = LinkCheck(rank, len(nodes), address, port, secret, policy)
            name = f"links-{self._name}-{self._count}-{rank}"
            orders.append(
                NodeCommand(name, node, what, policy.timeout_ns, there.netns if there is not None else "")
            )
        self._runs.append(_Run(nodes, tuple(orders), by, request))
        return True


def _judged(nodes: tuple[str, ...], outcome: NodeOutcome) -> tuple[bool | None, tuple[str, ...], str]:
    """The outcome of the leader: whether the links are fit, which nodes are bad, and why."""
    last = (outcome.text.strip().splitlines() or [""])[-1]
    if outcome.late:
        return None, (), f"the check of links led by {nodes[0]} did not end in time"
    try:
        told = msgspec.json.decode(last.encode(errors="replace"), type=_Answer)
        absent = tuple(nodes[rank] for rank in told.absent)
        named = {*told.bad_nodes, *(node for pair in told.bad_links for node in pair)}
        named |= {node for a, b, _ in told.slow for node in (a, b)}
        if not named <= {*nodes}:
            raise ValueError("names other nodes")
    except (msgspec.MsgspecError, ValueError, IndexError):
        shown = json.dumps(last[:_TEXT])[1:-1] if last else f"exit code {outcome.code}"
        return None, (), f"the check of links led by {nodes[0]} did not run: {shown}"
    return judged(LinksReport(nodes, told.bad_nodes, told.bad_links, told.slow, absent, told.least_gbps))
