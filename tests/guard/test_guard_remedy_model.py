"""The whole small model of a sick node: every order of events that it allows, and what must hold in each.

One node of ten, one job, a ladder of two rungs, time in ticks. Two faults, or a fault and a request of an operator, with a
kill of the controller (also between log and deed), or two requests, may come at any time; remedies and checks succeed, fail, cannot tell or
never end; the job saves, leaves or stays for ever.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Iterator
from dataclasses import dataclass, replace
from typing import Any

import pytest

from unidle.events import types as ev
from unidle.fleet.policies import Breaker, GuardPolicy, Hook, Lemon, Out
from unidle.guard import maintenance, remedy
from unidle.guard.remedy_model import SLACK_NS, Answer, RemedyInputs, RemedyResult, Set, TargetUse
from unidle.jobs import Reason
from unidle.view import node_health as of
from unidle.view.node_health import Care, CareView

T = SLACK_NS
NODE = "n1"
ANSWERS: tuple[Answer, ...] = ("ok", "failed", "silent", "away")
POLICY = GuardPolicy(
    remedies={"reboot": Hook(("reboot",), T, 2, T), "replace": Hook(("replace",), T, 1, T)},
    prove=Hook((), T, 2, T), quick=Hook((), T, 2, T), drain_ns=2 * T, drain_hard_ns=T, suspect_ns=2 * T,
    quarantine_ns=4 * T, probation_ns=3 * T, probation_every_ns=T, out=Out(1, 100_000, 1_000_000, 1000),
    breaker=Breaker(3, 50_000, 4 * T), lemon=Lemon(2, 6 * T),
)  # fmt: skip
LONGEST = 80  # ticks from any state to one that may last


@dataclass(frozen=True)
class World:
    """``order``: what runs for the record's event (``none``: not begun). ``left``: faults, requests and kills to come."""

    record: CareView | None = None
    pending: tuple[str, ...] = ()
    offences: tuple[int, ...] = ()
    cordoned: bool = False
    job: str = "runs"  # runs, saves, saved, stops, gone
    order: str = "none"  # none, runs, or one of ANSWERS
    full: bool = False
    alive: bool = True
    left: tuple[int, int, int] = (2, 2, 2)


def care_of(world: World) -> Care:
    """All times are relative: now is 0."""
    care = Care()
    if world.record is not None:
        care.targets[NODE] = world.record
    if world.pending:
        care.pending[NODE] = [of.Sign(0, "x", action, Reason("x", "it broke")) for action in world.pending]
    care.offences[NODE] = list(world.offences)
    if world.cordoned:
        care.cordons[NODE] = of.Cordon("ann", 0, Reason("cordon", ""))
    return care


def facts_of(world: World, care: Care) -> RemedyInputs:
    here = care.targets.get(NODE)
    jobs = ()
    if world.job != "gone":
        saved = here.opened_ns if here is not None and world.job == "saved" else None
        jobs = (TargetUse("j", 1, world.job == "stops", world.job in ("saves", "saved"), saved),)
    result = RemedyResult(world.order, "said so") if world.order in ANSWERS else None  # type: ignore[arg-type]
    return RemedyInputs(
        nodes=10, tier_nodes=10, out=int(world.full), falls=1, offences=tuple(care.offences.get(NODE, ())),
        pending=tuple(care.pending.get(NODE, ())), jobs=jobs,
        result=result if here is not None and here.busy else None,
    )  # fmt: skip


def turned(world: World, *, act: bool = True) -> World:
    """A turn of the controller: decisions into the log, then deeds."""
    care = care_of(world)
    for _ in range(20):
        here = care.targets.get(NODE)
        moves = remedy.decide(NODE, here, facts_of(world, care), POLICY, 0)
        for move in moves:
            if isinstance(move, Set):
                check_move(world, care, move)
                world = applied(world, care, move, "")
            else:
                world = replace(world, job="stops")
        if not any(isinstance(move, Set) for move in moves):
            break
    else:
        raise AssertionError(f"it never comes to rest: {world}")
    return acted(taken(world, care)) if act else taken(world, care)


def check_move(world: World, care: Care, move: Set) -> None:
    here = care.targets.get(NODE)
    in_use = here is None or here.state == "suspect"
    if in_use and move.state not in ("healthy", "suspect"):
        held_back = here is not None and here.step == "budget"
        assert move.state == "draining" and move.because.code == "fault"
        assert care.pending.get(NODE) or held_back, "a healthy node is removed without evidence"
        assert not world.full, "more are out than may be"
    if move.state == "healthy" and not in_use:
        assert here is not None and here.state == "probation", f"back in use without a proof: {here}"
    if move.state == "remedy":
        assert here is not None and here.state == "quarantine" and world.job != "runs"


def applied(world: World, care: Care, move: Set, by: str) -> World:
    """The event in the log, folded; what ran for the event before it is nobody's any more."""
    event = ev.RemedySet(move.target, move.state, move.because, move.step, move.try_, move.deadline_ns, by)
    of.remedy_set(care, event, NODE, NODE, 0, 0)
    return replace(world, order="none")


def taken(world: World, care: Care) -> World:
    return replace(
        world,
        record=care.targets.get(NODE),
        pending=tuple(dict.fromkeys(sign.action for sign in care.pending.get(NODE, ()))),
        offences=tuple(at for at in care.offences.get(NODE, ()) if at > -6 * T),
    )


def acted(world: World) -> World:
    """What the log says is to be begun is begun, once for each event."""
    if world.record is not None and world.record.busy and world.order == "none":
        return replace(world, order="runs")
    return world


def ticked(world: World) -> World:
    """A tick later. Times so long ago that nothing asks for them are all alike."""
    here = world.record
    if here is not None:
        deadline_ns = max(here.deadline_ns - T, -2 * T) if here.deadline_ns else 0
        if here.deadline_ns and not deadline_ns:
            deadline_ns = -1  # it is over, not absent
        here = CareView(
            here.target, here.node, here.state, Reason(here.because.code, "", dict(here.because.figures)), here.step,
            here.try_, deadline_ns, here.by, max(here.since_ns - T, -2 * T), max(here.at_ns - T, -3 * T), 0, 0,
            Reason("fault", ""), here.rung,
        )  # fmt: skip
    return replace(world, record=here, offences=tuple(at - T for at in world.offences if at - T > -6 * T))


def asked(world: World, verb: str) -> World | None:
    care = care_of(world)
    here = care.targets.get(NODE)
    if verb in ("cordon", "uncordon"):
        return replace(world, cordoned=verb == "cordon")
    if verb == "drain":
        said = maintenance.drain(NODE, here, 2 * T, "ann")
    else:
        said = maintenance.give_back(NODE, here, POLICY, 0, "ann", unproved=verb == "unproved")
    return taken(applied(world, care, said, "ann"), care) if isinstance(said, Set) else None


def steps(world: World) -> Iterator[tuple[str, World]]:
    faults, requests, kills = world.left
    live = (lambda w: turned(w)) if world.alive else (lambda w: w)
    yield "tick", live(ticked(world))
    if faults:
        for action in ("drain", "reboot_node"):
            care = care_of(world)
            of.fault_seen(care, ev.FaultSeen(NODE, "x", action, 0, 0, Reason("x", "it broke")), "", 0)
            yield action, live(replace(taken(world, care), left=(faults - 1, requests, kills)))
    if requests and world.alive:
        for verb in ("drain", "return", "unproved", "cordon", "uncordon"):
            found = asked(world, verb)
            if found is not None:
                yield verb, live(replace(found, left=(faults, requests - 1, kills)))
    if world.order == "runs":
        for answer in ANSWERS:
            yield answer, live(replace(world, order=answer))
    if world.job == "saves":
        yield "saved", live(replace(world, job="saved"))
    if world.job == "stops":
        yield "gone", live(replace(world, job="gone"))
    yield "others", live(replace(world, full=not world.full))
    if kills and world.alive:
        yield "kill", replace(world, alive=False, left=(faults, requests, kills - 1))
        yield (
            "kill before it acts",
            replace(turned(ticked(world), act=False), alive=False, left=(faults, requests, kills - 1)),
        )
    if not world.alive:
        yield "back", turned(acted(replace(world, alive=True)))


def key(world: World) -> Any:
    here = world.record
    told = None if here is None else (
        here.state, here.step, here.try_, here.deadline_ns, here.since_ns, here.at_ns, here.opened_ns, here.rung,
        here.because.code, str(here.because.figures.get("rung", "")),
    )  # fmt: skip
    return (told, *(getattr(world, name) for name in World.__dataclass_fields__ if name != "record"))


def rests(world: World) -> bool:
    return world.record is None or world.record.state == "out"


def check_no_limbo(world: World, known: set[Any]) -> None:
    """Nothing ever answers, the job never leaves: it still comes to an end by itself."""
    way = []
    world = replace(world, alive=True, left=(0, 0, 0))
    for _ in range(LONGEST):
        if rests(world) or key(world) in known:
            known.update(way)
            return
        way.append(key(world))
        world = turned(ticked(world))
    raise AssertionError(f"limbo: {world}")


def explore(start: World) -> dict[Any, World]:
    seen, line, sound = {key(start): start}, deque([start]), set[Any]()
    while line:
        world = line.popleft()
        check_no_limbo(world, sound)
        for _, after in steps(world):
            name = key(after)
            if name not in seen:
                seen[name] = after
                line.append(after)
    return seen


@pytest.mark.slow
def test_every_order_of_events_leaves_no_node_in_limbo_and_none_out_without_evidence() -> None:
    for left in ((2, 0, 1), (1, 1, 1), (0, 2, 0)):
        found = explore(World(left=left))
        states = {world.record.state for world in found.values() if world.record is not None}
        assert states >= {"draining", "quarantine", "proving", "probation", "out"}
        assert len(found) > 300
        assert not left[0] or states >= {"suspect", "remedy"}


def test_a_turn_never_touches_a_cordon_and_a_healthy_node_is_left_alone() -> None:
    for cordoned in (False, True):
        found = explore(World(left=(0, 0, 1), cordoned=cordoned, job="saves"))
        assert all(world.cordoned == cordoned and world.record is None for world in found.values())


def test_a_worse_fault_of_a_node_in_quarantine_is_answered_by_the_higher_rung() -> None:
    here = CareView(
        NODE, "", "quarantine", Reason("quarantine", "first"), "reboot", 2, 4 * T, "guard", 0, 0, 0, 0, Reason("x", "first")
    )  # fmt: skip
    sign = of.Sign(0, "x", "replace", Reason("x", "it is broken"))
    (move,) = remedy.decide(NODE, here, RemedyInputs(pending=(sign,)), POLICY, T)
    assert isinstance(move, Set)
    assert (move.state, move.step, move.try_, move.deadline_ns) == ("quarantine", "replace", 1, 4 * T)
    assert (move.because.code, move.because.text) == ("worse", "it is broken")


def test_a_tier_may_lose_only_its_part_even_if_the_fleet_may_lose_more() -> None:
    policy = replace(POLICY, out=Out(10, 1_000_000, 500_000, 1000))
    sign = of.Sign(0, "x", "reboot_node", Reason("x", "it broke"))
    few = RemedyInputs(nodes=100, tier_nodes=4, out=1, tier_out=1, pending=(sign,))
    (under,) = remedy.decide(NODE, None, few, policy, 0)
    (over,) = remedy.decide(NODE, None, replace(few, tier_out=2), policy, 0)
    assert isinstance(under, Set) and isinstance(over, Set)
    assert (under.state, over.state) == ("draining", "suspect")
