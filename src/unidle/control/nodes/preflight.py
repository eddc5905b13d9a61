"""Before a gang starts its nodes are checked: once per machine, on it, with results that count for a while.

What to do is ``unidle.guard.preflight``'s. A check that could not tell is never held against a node. A gang does not wait
for a machine that does not answer: it is placed again.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Final

from unidle.control.nodes.link_checks import LinkChecks
from unidle.control.nodes.maintenance import links_are_checked, nodes_are_checked
from unidle.control.nodes.remedies import FIT_OF, judged, order_of
from unidle.control.nodes.used_directories import UsedDirectories
from unidle.engine.node_commands import NodeCheck, NodeCommand, NodeCommands
from unidle.events import types as ev
from unidle.fleet import Node
from unidle.guard.links import LinksDecision
from unidle.guard.preflight import FIT, Decision, PreflightResult, PreflightRules, Tier, decide_gang
from unidle.jobs import Reason
from unidle.view.jobs import AttemptView, JobView
from unidle.view.node_health import CheckView
from unidle.view.state import View
from unidle.words import age, counted

LOOK_EVERY_NS: Final = 50_000_000
_STANDARD_NS: Final = 30 * 86_400_000_000_000
_TIERS: Final[dict[str, Tier]] = {"quick": "quick", "standard": "standard", "burn-in": "burn-in"}


class Preflight:
    """Holds gangs back until their nodes have been checked. ``commands`` run the checks."""

    def __init__(self, commands: NodeCommands, name: str = "") -> None:
        self._commands = commands
        self._name = name  # of this controller: what it begins nobody else looks for
        self._held: dict[tuple[str, int], None] = {}
        self._running: dict[str, tuple[NodeCommand, Tier]] = {}  # by machine
        self._links = LinkChecks(commands, name)
        self._told: dict[str, int] = {}  # node -> the check that was held against it
        self._count = 0
        self._next_ns: int | None = None

    @property
    def next_ns(self) -> int | None:
        """When :meth:`look` may have an answer though nothing happened."""
        return self._next_ns

    def holds(self, job: JobView, attempt: AttemptView) -> bool:
        """Whether the attempt must not start yet. :meth:`look` gives an event when it may."""
        if attempt.checked_ns is not None:
            return False
        if any(rank.spawn_ns is not None for rank in attempt.ranks):
            return False
        self._held[job.id, attempt.number] = None
        return True

    def asked(self, view: View, nodes: tuple[str, ...], by: str, request: str) -> Iterator[ev.Event]:
        """Check the links between these nodes, as a person requested. Nothing is held against a node for the result alone."""
        if why := self._links.ask(view, nodes, by, request):
            yield ev.RequestRefused("guard", Reason("refused", f"{why} [{request}]"))

    def look(self, view: View, now_ns: int) -> Iterator[ev.Event]:
        """What follows now; an attempt that may start has a :class:`PreflightEnded`."""
        self._next_ns = None
        if not (self._held or self._running or self._links.busy):
            return
        yield from self._results()
        yield from self._links.results()
        used = _Used(view, self._commands)
        for name, number in list(self._held):
            job = view.jobs.open.get(name)
            attempt = job.live if job is not None else None
            if job is None or attempt is None or attempt.number != number:
                del self._held[name, number]
            elif attempt.stop is not None:
                del self._held[name, number]
                yield ev.PreflightEnded(name, number, False, attempt.stop.because)
            elif why := self._away(attempt):
                yield ev.StopAsked(name, number, "node_sick", 0, Reason("host_silent", why))
            else:
                yield from self._gang(view, job, attempt, used, now_ns)
        if self._running or self._links.busy:
            self._wake(now_ns + LOOK_EVERY_NS)

    def act(self) -> None:
        """Begin the checks that were decided on."""
        for order, _ in self._running.values():
            self._commands.begin(order)
        self._links.act()

    def _wake(self, at_ns: int) -> None:
        self._next_ns = at_ns if self._next_ns is None else min(self._next_ns, at_ns)

    def _results(self) -> Iterator[ev.Event]:
        for machine, (order, tier) in list(self._running.items()):
            outcome = self._commands.look(order.name)
            if outcome is None:
                continue
            del self._running[machine]
            self._commands.forget(order.name)
            said = judged(tier, outcome)
            yield ev.NodeChecked(order.node, tier, FIT_OF[said.answer], said.text)

    def _away(self, attempt: AttemptView) -> str:
        """Why the attempt cannot start soon; empty where all its machines may answer."""
        nodes = dict.fromkeys(place.node for place in attempt.places)
        return next((why for node in nodes if (why := self._commands.away(node))), "")

    def _gang(
        self, view: View, job: JobView, attempt: AttemptView, used: _Used, now_ns: int
    ) -> Iterator[ev.Event]:
        policy = view.fleet.guard
        tries = 1 if policy.preflight == "auto" else policy.quick.tries  # nobody asked to be kept waiting
        rules = PreflightRules(policy.preflight_age_ns, _STANDARD_NS, tries, policy.quick.pause_ns)
        each: tuple[Decision, ...] = ()
        if nodes_are_checked(view, job, attempt):
            each, bad = self._nodes(view, attempt, rules, used, now_ns)
            if bad or any(one.action == "again" for one in each):
                yield from bad
                return
        links = LinksDecision("start")
        if links_are_checked(view, attempt):
            links = self._links.decide(view, attempt, rules, now_ns)
            if links.action == "measure":
                self._wake(max(links.not_before_ns, now_ns + LOOK_EVERY_NS))
                return
            text = f"links: {links.because}"
            if bad := list(self._held_against(view, links.bad, links.at_ns, text)):
                self._wake(now_ns + 1)
                yield from bad
                return
        yield self._start(view, job, attempt, each, links, now_ns)

    def _nodes(
        self, view: View, attempt: AttemptView, rules: PreflightRules, used: _Used, now_ns: int
    ) -> tuple[tuple[Decision, ...], list[ev.Event]]:
        """The decisions on its nodes, and what is new against any of them; checks that are due begin."""
        policy = view.fleet.guard
        names = {place.node for place in attempt.places}
        nodes = {node.id: node for node in view.fleet.nodes if node.id in names}
        since_ns = min(attempt.placed_ns, now_ns - rules.pause_ns)
        known = {
            name: (_still_count(self._known(view, node), since_ns), _changed_ns(view, name))
            for name, node in nodes.items()
        }
        if policy.preflight != "standard":
            known = {name: (_as_thorough(results), None) for name, (results, _) in known.items()}
        _, each = decide_gang(known, now_ns, rules)
        bad: list[ev.Event] = []
        for one in each:
            tier = one.tier
            if one.action == "again" and tier is not None:
                chosen = tier if policy.preflight == "standard" else "quick"
                self._check(view, nodes[one.node], chosen, one, used, now_ns)
            elif one.action == "taint":
                at_ns = known[one.node][0][-1].at_ns
                bad += self._held_against(view, (one.node,), at_ns, f"node {one.node} is {one.because}")
        if bad:
            self._wake(now_ns + 1)
        return each, bad

    def _held_against(
        self, view: View, nodes: tuple[str, ...], at_ns: int, because: str
    ) -> Iterator[ev.FaultSeen]:
        """Evidence against nodes, once for each result. A fleet of one node has no other one to go to: what is wrong
        with it is reported, and it is used."""
        if len(view.fleet.nodes) == 1 and view.fleet.guard.preflight == "auto":
            return
        for node in nodes:
            if node in view.nodes and at_ns != self._told.get(node):
                self._told[node] = at_ns
                yield ev.FaultSeen(node, "preflight", "drain", at_ns, at_ns, Reason("unfit", because))

    def _start(
        self, view: View, job: JobView, attempt: AttemptView, each: tuple[Decision, ...], links: LinksDecision, now_ns: int
    ) -> ev.Event:  # fmt: skip
        """All that can be known is known; a node that may not be taken out is used all the same."""
        del self._held[job.id, attempt.number]
        parts = []
        if each:
            parts.append(f"{counted(len(each), 'node')} checked")
        if doubts := [one for one in each if one.because != FIT]:
            one = doubts[0]
            parts.append(f"{one.node}: {one.because}{_why_used(view, one.node, one.action == 'taint')}")
        if links.because:
            parts.append(f"{links.because}, {age(now_ns - links.at_ns)} ago")
            if links.action == "taint":
                parts[-1] += _why_used(view, links.bad[0], True)
        if doubts or links.action == "taint" or not links.fit:
            parts.append("the job starts nevertheless")
        return ev.PreflightEnded(job.id, attempt.number, True, Reason("checked", "; ".join(parts)))

    def _check(
        self, view: View, node: Node, tier: Tier, decision: Decision, used: _Used, now_ns: int
    ) -> None:
        """Have the node's machine checked, where that is not under way."""
        machine = self._machine(node)
        if machine in self._running:
            return
        if decision.not_before_ns > now_ns:
            self._wake(decision.not_before_ns)
            return
        policy = view.fleet.guard
        hook = policy.quick if tier == "quick" else policy.prove
        what: NodeCheck | tuple[str, ...] = hook.command
        if not what:
            what = NodeCheck(tier, _changed_ns(view, node.id) or None, used.of(node.id))
        self._count += 1
        name = f"preflight-{self._name}-{self._count}"
        self._running[machine] = order_of(name, node, node.id, what, hook.timeout_ns), tier

    def _machine(self, node: Node) -> str:
        return node.id if self._commands.elsewhere else f"{node.netns} {_log_of(node)}"

    def _known(self, view: View, node: Node) -> list[PreflightResult]:
        """All checks of the node's machine, oldest first: declared nodes of one machine and kernel log are one for this."""
        alike = [node.id]
        if not self._commands.elsewhere and not node.netns and node.address == "127.0.0.1":
            alike = [
                n.id
                for n in view.fleet.nodes
                if not n.netns and n.address == node.address and _log_of(n) == _log_of(node)
            ]
        found = [_result(name, one) for name in alike for one in view.care.checks.get(name, ())]
        return sorted(found, key=lambda one: one.at_ns)


class _Used:
    """Directories that jobs use, listed when a check first needs them."""

    def __init__(self, view: View, commands: NodeCommands) -> None:
        self._view, self._elsewhere = view, commands.elsewhere
        self._found: UsedDirectories | None = None

    def of(self, node: str) -> tuple[str, ...]:
        if self._found is None:
            self._found = UsedDirectories(self._view, elsewhere=self._elsewhere, waiting=False)
        return self._found.of(node)


def _log_of(node: Node) -> str:
    """The kernel log that a check of the node reads; empty: that of its machine."""
    return node.watch.kernel_log if node.watch is not None else ""


def _why_used(view: View, node: str, bad: bool) -> str:
    """Why a node that is bad is used nevertheless."""
    here = view.care.targets.get(node)
    return f"; {here.because.text}" if bad and here is not None else ""


def _result(name: str, check: CheckView) -> PreflightResult:
    return PreflightResult(name, _TIERS[check.tier], check.fit, check.at_ns, check.because)


def _still_count(results: list[PreflightResult], since_ns: int) -> list[PreflightResult]:
    """Without checks that could not tell before: a node whose agent was away then is checked for the next gang."""
    return [one for one in results if one.fit is not None or one.at_ns >= since_ns]


def _as_thorough(results: list[PreflightResult]) -> list[PreflightResult]:
    """The results as those of standard checks: for a policy that requires only the quick check."""
    return [PreflightResult(r.node, "standard", r.fit, r.at_ns, r.because) for r in results]


def _changed_ns(view: View, node: str) -> int | None:
    return view.care.returned.get(node)
