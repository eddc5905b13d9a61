"""Before a gang starts its nodes are checked: once per machine, with results that count for a while.

What to do is ``unidle.guard.preflight``'s. A check that could not tell is never held against a node.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Final

from unidle.control.nodes.hooks import HookEngine, HookOrder
from unidle.control.nodes.remedies import check_words, filled, judged, log_since_s, used_directories
from unidle.events import types as ev
from unidle.fleet import Node
from unidle.guard.preflight import Decision, PreflightResult, PreflightRules, Tier, decide_gang
from unidle.jobs import Reason
from unidle.view.jobs import AttemptView, JobView
from unidle.view.node_health import CheckView
from unidle.view.state import View
from unidle.words import counted

LOOK_EVERY_NS: Final = 50_000_000
_STANDARD_NS: Final = 30 * 86_400_000_000_000
_TIERS: Final[dict[str, Tier]] = {"quick": "quick", "standard": "standard", "burn-in": "burn-in"}


class Preflight:
    """Holds gangs back until their nodes have been checked. ``hands`` run the checks; without them none is held."""

    def __init__(self, hands: HookEngine | None = None, name: str = "") -> None:
        self._hands = hands
        self._name = name  # of this controller: what it begins nobody else looks for
        self._held: dict[tuple[str, int], None] = {}
        self._running: dict[str, tuple[HookOrder, Node, Tier]] = {}  # by machine
        self._told: dict[str, int] = {}  # node -> the check that was held against it
        self._count = 0
        self._next_ns: int | None = None

    @property
    def next_ns(self) -> int | None:
        """When :meth:`look` may have an answer though nothing happened."""
        return self._next_ns

    def holds(self, job: JobView, attempt: AttemptView) -> bool:
        """Whether the attempt must not start yet. :meth:`look` gives an event when it may."""
        if self._hands is None or attempt.checked_ns is not None:
            return False
        if any(rank.spawn_ns is not None for rank in attempt.ranks):
            return False
        self._held[job.id, attempt.number] = None
        return True

    def look(self, view: View, now_ns: int) -> Iterator[ev.Event]:
        """What follows now; an attempt that may start has a :class:`PreflightEnded`."""
        self._next_ns = None
        if not self._held:
            return
        yield from self._results()
        for name, number in list(self._held):
            job = view.jobs.open.get(name)
            attempt = job.live if job is not None else None
            if job is None or attempt is None or attempt.number != number:
                del self._held[name, number]
            elif attempt.stop is not None:
                del self._held[name, number]
                yield ev.PreflightEnded(name, number, False, attempt.stop.because)
            else:
                yield from self._gang(view, job, attempt, now_ns)
        if self._running:
            self._wake(now_ns + LOOK_EVERY_NS)

    def act(self) -> None:
        """Begin the checks that were decided on."""
        for order, _, _ in self._running.values():
            assert self._hands is not None
            self._hands.begin(order)

    def _wake(self, at_ns: int) -> None:
        self._next_ns = at_ns if self._next_ns is None else min(self._next_ns, at_ns)

    def _results(self) -> Iterator[ev.Event]:
        for machine, (order, node, tier) in list(self._running.items()):
            assert self._hands is not None
            outcome = self._hands.look(order.name)
            if outcome is None:
                continue
            del self._running[machine]
            said = judged(tier, outcome)
            fit = {"ok": True, "failed": False, "silent": None}[said.answer]
            yield ev.NodeChecked(node.id, tier, fit, said.text)

    def _gang(self, view: View, job: JobView, attempt: AttemptView, now_ns: int) -> Iterator[ev.Event]:
        policy = view.fleet.guard
        names = {place.node for place in attempt.places}
        nodes = {node.id: node for node in view.fleet.nodes if node.id in names}
        known = {name: (_results_of(view, node), _changed_ns(view, name)) for name, node in nodes.items()}
        tries = 1 if policy.preflight == "auto" else policy.quick.tries  # nobody asked to be kept waiting
        rules = PreflightRules(policy.preflight_age_ns, _STANDARD_NS, tries, policy.quick.pause_ns)
        if policy.preflight != "standard":
            known = {name: (_as_thorough(results), None) for name, (results, _) in known.items()}
        _, each = decide_gang(known, now_ns, rules)
        waits = False
        for one in each:
            tier = one.tier
            if one.action == "again" and tier is not None:
                waits = True
                self._check(
                    view, nodes[one.node], tier if policy.preflight == "standard" else "quick", one, now_ns
                )
            elif _may_taint(view, one) and (at_ns := known[one.node][0][-1].at_ns) != self._told.get(
                one.node
            ):
                self._told[one.node] = at_ns
                waits = True
                self._wake(now_ns + 1)
                because = Reason("unfit", f"node {one.node} is {one.because}")
                yield ev.FaultSeen(one.node, "preflight", "drain", at_ns, at_ns, because)
        if not waits:
            yield self._start(view, job, attempt, each)

    def _start(self, view: View, job: JobView, attempt: AttemptView, each: tuple[Decision, ...]) -> ev.Event:
        """All that can be known is known; a node that may not be taken out is used all the same."""
        del self._held[job.id, attempt.number]
        doubts = [one for one in each if one.because != "proved fit"]
        text = f"{counted(len(each), 'node')} checked"
        if doubts:
            one = doubts[0]
            here = view.care.targets.get(one.node)
            more = f"; {here.because.text}" if one.action == "taint" and here is not None else ""
            text += f"; {one.node}: {one.because}{more}; the job starts nevertheless"
        return ev.PreflightEnded(job.id, attempt.number, True, Reason("checked", text))

    def _check(self, view: View, node: Node, tier: Tier, decision: Decision, now_ns: int) -> None:
        """Have the node's machine checked, where that is not under way."""
        if node.netns in self._running:
            return
        if decision.not_before_ns > now_ns:
            self._wake(decision.not_before_ns)
            return
        policy = view.fleet.guard
        hook = policy.quick if tier == "quick" else policy.prove
        since_s = log_since_s(_changed_ns(view, node.id) or 0, view.clock_offset_ns)
        own = check_words(node, node.id, tier, since_s, used_directories(view, waiting=False))
        words = filled(hook.command or own, node, node.id, "")
        self._count += 1
        order = HookOrder(f"preflight-{self._name}-{self._count}", words, hook.timeout_ns)
        self._running[node.netns] = (order, node, tier)


def _may_taint(view: View, decision: Decision) -> bool:
    """A fleet of one node has no other one to go to: what is wrong with it is reported, and it is used."""
    return decision.action == "taint" and (len(view.fleet.nodes) > 1 or view.fleet.guard.preflight != "auto")


def _results_of(view: View, node: Node) -> list[PreflightResult]:
    """All checks of the node's machine, oldest first: declared nodes of one machine are one for this."""
    if not node.netns and node.address == "127.0.0.1":
        alike = [n.id for n in view.fleet.nodes if not n.netns and n.address == node.address]
    else:
        alike = [node.id]
    found = [_result(name, one) for name in alike for one in view.care.checks.get(name, ())]
    return sorted(found, key=lambda one: one.at_ns)


def _result(name: str, check: CheckView) -> PreflightResult:
    return PreflightResult(name, _TIERS[check.tier], check.fit, check.at_ns, check.because)


def _as_thorough(results: list[PreflightResult]) -> list[PreflightResult]:
    """The results as those of standard checks: for a policy that requires only the quick check."""
    return [PreflightResult(r.node, "standard", r.fit, r.at_ns, r.because) for r in results]


def _changed_ns(view: View, node: str) -> int | None:
    return view.care.returned.get(node)
