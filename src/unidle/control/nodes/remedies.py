"""Looks after sick nodes: evidence in, states, stops and remedies out. What to do is ``unidle.guard.remedy``'s."""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Generator, Iterator
from dataclasses import dataclass, replace
from typing import Final

import msgspec

from unidle.control.nodes.used_directories import UsedDirectories
from unidle.engine.node_commands import NodeCheck, NodeCommand, NodeCommands, NodeOutcome
from unidle.events import types as ev
from unidle.events.guard import CareState
from unidle.fleet import Health, Node
from unidle.fleet.policies import RUNGS
from unidle.guard import maintenance, remedy
from unidle.guard.remedy_model import Answer, RemedyInputs, RemedyResult, Set, StopJob, TargetUse
from unidle.jobs import Reason
from unidle.view.jobs import AttemptView, JobView
from unidle.view.node_health import CareView
from unidle.view.remedies import identity_of
from unidle.view.state import View
from unidle.words import counted

HEALTH: Final[dict[CareState, Health]] = {
    "healthy": "healthy", "suspect": "healthy", "draining": "healthy", "quarantine": "quarantine", "remedy": "repair",
    "proving": "quarantine", "probation": "quarantine", "out": "fault", "maintenance": "maintenance",
}  # fmt: skip
LOOK_EVERY_NS: Final = 100_000_000
_FIT, _UNFIT = 0, 1
FIT_OF: Final[dict[Answer, bool | None]] = {"ok": True, "failed": False, "silent": None, "away": None}
"""Whether a node is fit by the answer of its check; None: undetermined."""
_WITH_JOBS: Final = ("draining", "probation")
_MOST_MOVES: Final = 32
_AFTER_RESTART: Final = ("reboot", "replace")  # remedies that a restart of the machine completes
_TEXT: Final = 200


class GuardRequest(msgspec.Struct, frozen=True, omit_defaults=True):
    """Body of an inbox request of kind ``guard``: a command or report of an operator or a site's monitor about a node.

    ``links`` is a check between ``nodes``; ``text`` is its name, by which its result is found in the log.
    """

    verb: str  # drain, return, maintain, cordon, uncordon, report, links
    target: str
    by: str
    text: str = ""
    from_ns: int = 0
    until_ns: int = 0
    deadline_ns: int = 0
    unproved: bool = False
    kind: str = ""
    action: str = ""
    nodes: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True)
class _Known:
    """The fleet by name."""

    index: dict[str, int]
    """Of nodes by name, the view's own: another one where nodes or devices came, left or moved."""
    node_of: dict[str, str]  # by device
    tier: dict[str, int]  # nodes in it


class RemedyWatch:
    """``commands`` carry out remedies and checks; without them nothing can be repaired or proved."""

    def __init__(self, commands: NodeCommands | None = None) -> None:
        self._commands = commands
        self._known: _Known | None = None
        self._orders: dict[str, NodeCommand] = {}  # of what is under way
        self._next_ns: int | None = None
        self._now_ns = 0

    @property
    def next_ns(self) -> int | None:
        """When :meth:`look` may have an answer though nothing happened."""
        return self._next_ns

    # -- asked from outside ------------------------------------------------------------------------

    def asked(self, view: View, request: GuardRequest, now_ns: int) -> Iterator[ev.Event]:
        """What follows from a request."""
        known, target = self._fleet(view), request.target
        if target not in view.nodes and (
            target not in known.node_of or request.verb in ("maintain", "cordon")
        ):
            yield _refused(
                f"the fleet has no such {'node' if '/' not in target else 'node or device'}: {target}"
            )
            return
        here = view.care.targets.get(target)
        said: Set | Reason | None = None
        if request.verb == "drain":
            said = maintenance.drain(
                target, here, request.deadline_ns or now_ns + maintenance.DRAIN_NS, request.by
            )
        elif request.verb == "return":
            said = yield from _returned(view, request, now_ns)
        elif request.verb in ("cordon", "uncordon"):
            because = Reason("cordon", request.text or f"{request.verb}ed by {request.by}")
            yield ev.CordonSet(target, request.verb == "cordon", request.by, because)
        elif request.verb == "maintain":
            yield ev.MaintenanceSet(
                target, request.from_ns, request.until_ns, request.deadline_ns or request.from_ns, request.by
            )
        elif request.verb == "report":
            node = known.node_of.get(target, target)
            device = target if target in known.node_of else ""
            because = Reason("reported", request.text or f"reported by {request.by}")
            yield ev.FaultSeen(node, request.kind or "other", request.action, now_ns, now_ns, because, device)
        else:
            yield _refused(f"no such request: {request.verb}")
        if isinstance(said, Set):
            yield from _events(view, said, request.by)
        elif said is not None and said.code == "refused":
            yield ev.RequestRefused("guard", said)

    # -- each turn ---------------------------------------------------------------------------------

    def look(self, view: View, now_ns: int) -> Iterator[ev.Event]:
        """What follows now; each event is to be applied to the view before the next is asked for."""
        care = view.care
        self._next_ns, self._now_ns = None, now_ns
        if care.idle:
            return
        for target in dict.fromkeys([*care.targets, *care.pending, *care.strikes, *care.windows]):
            for _ in range(_MOST_MOVES):
                moves = remedy.decide(
                    target,
                    care.targets.get(target),
                    self._facts(view, target, now_ns),
                    view.fleet.guard,
                    now_ns,
                )
                yield from self._told(view, target)
                for move in moves:
                    yield from _moved(view, move)
                if not any(isinstance(move, Set) for move in moves):
                    break
                self._next_ns = now_ns + 1  # what was decided may concern another target
            self._wake(view, target, now_ns)

    def act(self, view: View) -> None:
        """Start the remedies and checks that the log orders. Call it after the log is written."""
        commands = self._commands
        if commands is None:
            return
        busy = {name_of(here): here for here in view.care.targets.values() if here.busy}
        for name in self._orders.keys() - busy.keys():
            commands.forget(name)
        self._orders = {
            name: self._orders.get(name) or self._order(view, here, commands) for name, here in busy.items()
        }
        for order in self._orders.values():
            commands.begin(order)

    def excuse(self, view: View, job: JobView, event: ev.Event) -> ev.Event:
        """A gang that failed on a node which is being taken out waits again: it was not the job's fault."""
        attempt = job.attempts[-1] if job.attempts else None
        failed = isinstance(event, ev.RetryPlanned) or (
            isinstance(event, ev.JobEnded) and event.state == "failed"
        )
        if attempt is None or not failed or not view.care.targets or attempt.outcome != "failed":
            return event
        for here in view.care.targets.values():
            if (
                here.state != "suspect"
                and here.since_ns >= attempt.placed_ns  # it may have begun while the node was on probation
                and _uses(attempt, here.target)
            ):
                return ev.Requeued(job.id, Reason("node_sick", f"{here.target} is sick: {here.cause.text}"))
        return event

    # -- what is known -----------------------------------------------------------------------------

    def _facts(self, view: View, target: str, now_ns: int) -> RemedyInputs:
        care, known, policy = view.care, self._fleet(view), view.fleet.guard
        here = care.targets.get(target)
        of_node = known.node_of.get(target, "")
        node = of_node or target
        others = {r.node for r in care.targets.values() if r.state != "suspect" and r.node != node}
        nodes = {name: there.parent for name in (node, *others) if (there := view.node(name)) is not None}
        tier = nodes.get(node, "")
        at_node = care.targets.get(node) if of_node else None
        parts = [r for r in care.targets.values() if r.node == node and r.target != node]
        recent = {name for at, name in care.falls if now_ns - at < policy.breaker.within_ns}
        return RemedyInputs(
            nodes=len(view.nodes),
            tier_nodes=known.tier.get(tier, 1),
            out=len(others),
            tier_out=sum(nodes.get(name) == tier for name in others),
            falls=len(recent),
            begun=tuple(at for at in care.begun if now_ns - at < 3_600_000_000_000),
            offences=tuple(care.offences.get(identity_of(view, target), ())),
            pending=tuple(care.pending.get(target, ())),
            strikes=tuple(care.strikes.get(target, ())),
            jobs=_held(view, target) if here is not None and here.state in _WITH_JOBS else (),
            result=self._result(here) if here is not None and here.busy else None,
            of_node=of_node,
            node_busy=at_node is not None and at_node.state != "suspect",
            part_busy=not of_node and any(r.busy for r in parts),
            window=care.windows.get(target),
        )

    def _fleet(self, view: View) -> _Known:
        if self._known is None or self._known.index is not view.nodes:
            tier = dict(Counter(node.parent for node in view.fleet.nodes))
            self._known = _Known(view.nodes, {d.id: d.node for d in view.fleet.devices()}, tier)
        return self._known

    def _result(self, here: CareView) -> RemedyResult | None:
        found = self._commands.look(name_of(here)) if self._commands is not None else None
        return None if found is None else judged(here.busy, found)

    def _told(self, view: View, target: str) -> Iterator[ev.Event]:
        """The result of a check, for who reads the log and for the gangs that come next."""
        here = view.care.targets.get(target)
        if here is None or here.busy not in (remedy.TIER, remedy.QUICK):
            return
        result = self._result(here)
        if result is not None:
            yield ev.NodeChecked(here.node, here.busy, FIT_OF[result.answer], result.text)

    def _wake(self, view: View, target: str, now_ns: int) -> None:
        here = view.care.targets.get(target)
        times = []
        if here is not None:
            times.append(remedy.next_ns(here, self._facts(view, target, now_ns), view.fleet.guard, now_ns))
            if here.busy and self._commands is not None:
                times.append(now_ns + LOOK_EVERY_NS)
        window = view.care.windows.get(target)
        if window is not None and here is None:
            times.append(window.drain_by_ns - view.fleet.guard.drain_ns)
        for at_ns in times:
            if at_ns is not None and at_ns > now_ns and (self._next_ns is None or at_ns < self._next_ns):
                self._next_ns = at_ns

    def _order(self, view: View, here: CareView, commands: NodeCommands) -> NodeCommand:
        policy, node = view.fleet.guard, view.node(here.node)
        what: NodeCheck | tuple[str, ...]
        if here.busy in RUNGS:
            hook = next(hook for rung, hook in policy.remedies.items() if rung == here.busy)
            what = hook.command
        else:
            hook = policy.quick if here.busy == remedy.QUICK else policy.prove
            since_ns = max(here.repaired_ns, view.care.returned.get(here.node, 0))
            used = UsedDirectories(view, elsewhere=commands.elsewhere, waiting=True).of(here.node)
            what = hook.command or NodeCheck(here.busy, since_ns or None, used)
        device = here.target if here.target != here.node else ""
        return order_of(name_of(here), node, here.node, what, hook.timeout_ns, device)


def name_of(here: CareView) -> str:
    """What a remedy or check is called: by its place in the log, so that it is begun once."""
    return f"{here.at_ns}-{here.seq}-{here.busy}"


def order_of(
    name: str, node: Node | None, node_id: str, what: NodeCheck | tuple[str, ...], limit_ns: int, device: str = ""
) -> NodeCommand:  # fmt: skip
    """The order for a node, which may have left the fleet (None); the words of a command are filled in."""
    if isinstance(what, NodeCheck):
        if node is not None and node.watch is not None:
            what = replace(what, kernel_log=node.watch.kernel_log)
    else:
        what = filled(what, node, node_id, device)
    return NodeCommand(name, node_id, what, limit_ns, node.netns if node is not None else "")


def filled(words: tuple[str, ...], node: Node | None, name: str, device: str) -> tuple[str, ...]:
    address = node.address if node is not None else ""
    values = {"{node}": name, "{device}": device, "{address}": address}
    found = []
    for word in words:
        for place, value in values.items():
            word = word.replace(place, value)
        found.append(word)
    return tuple(found)


def judged(what: str, outcome: NodeOutcome) -> RemedyResult:
    """The result of an outcome. Exit codes of a check: 0 fit, 1 unfit, others undetermined; of a remedy: 0 done."""
    last = (outcome.text.strip().splitlines() or [""])[-1]
    if outcome.late:
        return RemedyResult("silent", "it did not end in time and was killed")
    if outcome.restarted and what in _AFTER_RESTART:
        return RemedyResult("ok", "the machine has restarted")
    if outcome.code is None:
        return RemedyResult("away" if outcome.away else "silent", _printable(last))
    text = _printable(_of_check(outcome.text) or last or f"exit code {outcome.code}")
    answer: Answer = "ok" if outcome.code == _FIT else "failed"
    if what not in RUNGS and outcome.code not in (_FIT, _UNFIT):
        answer = "silent"
    return RemedyResult(answer, text)


def _of_check(text: str) -> str:
    """The first check that failed or could not tell, of what ``unidle check --json`` printed; empty for other text."""
    try:
        told = json.loads(text)
        wrong = sorted((c["ok"] is None, k) for k, c in enumerate(told["checks"]) if not c["ok"])
        if not wrong:
            return f"{counted(len(told['checks']), 'check')} passed"
        check = told["checks"][wrong[0][1]]
        return f"{check['name']}: {check['because']}"
    except (ValueError, KeyError, TypeError, RecursionError):
        return ""


def _printable(text: str) -> str:
    """As the log may have it: a machine can answer anything, such as half a surrogate pair."""
    return "".join(c if c.isprintable() else "\N{REPLACEMENT CHARACTER}" for c in text[:_TEXT])


def _moved(view: View, move: Set | StopJob) -> Iterator[ev.Event]:
    if isinstance(move, Set):
        yield from _events(view, move, "")
        return
    job = view.jobs.open.get(move.job)
    attempt = job.live if job is not None else None
    if job is not None and attempt is not None and attempt.number == move.attempt and attempt.stop is None:
        grace_ns = 0 if move.hard else int(job.spec.grace_s * 1e9)
        yield ev.StopAsked(move.job, move.attempt, "node_sick", grace_ns, move.because)


def _events(view: View, said: Set, by: str) -> Iterator[ev.Event]:
    """The new state, and the health that the ledger uses for it."""
    yield ev.RemedySet(said.target, said.state, said.because, said.step, said.try_, said.deadline_ns, by)
    if said.state in ("suspect", "draining") and view.health.get(said.target) == "fault":
        return  # its machine does not answer, which is still so
    health = "repair" if said.state == "remedy" else HEALTH[said.state]
    if said.state == "probation" and view.fleet.guard.probation_work != "none":
        health = "healthy"  # who works there does so on a node in use; its free time is still quarantine
    if said.state == "remedy" and said.step == "reboot":
        health = "boot"
    if view.health.get(said.target, "healthy") != health:
        yield ev.HealthSet(said.target, health, said.because)


def _uses(attempt: AttemptView, target: str) -> bool:
    if "/" not in target:
        return any(place.node == target for place in attempt.places)
    return any(s.partition("#")[0] == target for place in attempt.places for s in place.slices)


def _held(view: View, target: str) -> tuple[TargetUse, ...]:
    found = []
    for name in sorted(view.live):
        job = view.jobs.open[name]
        attempt = job.live
        if attempt is not None and _uses(attempt, target):
            begun = any(rank.spawn_ns is not None for rank in attempt.ranks)
            saves = begun and (job.spec.checkpoint_path is not None or attempt.saved_ns is not None)
            found.append(TargetUse(name, attempt.number, attempt.stop is not None, saves, attempt.saved_ns))
    return tuple(found)


def _refused(text: str) -> ev.RequestRefused:
    return ev.RequestRefused("guard", Reason("refused", text))


def _returned(
    view: View, request: GuardRequest, now_ns: int
) -> Generator[ev.Event, None, Set | Reason | None]:
    """A node returns to service by request: cordon and maintenance end, and what :mod:`unidle.guard.maintenance` decides."""
    target, here = request.target, view.care.targets.get(request.target)
    said: Set | Reason | None = None
    if target in view.care.cordons:
        yield ev.CordonSet(target, False, request.by, Reason("returned", f"returned by {request.by}"))
    if target in view.care.windows and (here is None or here.state in ("draining", "maintenance")):
        yield ev.MaintenanceSet(target, 0, 0, 0, request.by)
        said = Reason("returned", "the maintenance is cancelled")
    if here is not None or said is None:
        said = maintenance.give_back(
            target, here, view.fleet.guard, now_ns, request.by, unproved=request.unproved
        )
    return said
