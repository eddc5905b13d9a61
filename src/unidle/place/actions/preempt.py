"""Room for a job by stopping others: victims and topology in one solve that loses the least GPU-time.

Cost is work since the last checkpoint plus the restart, times devices. Per node the cheapest way to
free 1, 2, ... ranks is found exactly (``knapsack``); its convex hull offers room in order of cost per
rank, and within each network domain a binary search finds the shortest prefix of offers on which
the gang fits. Where gangs could be stopped too, prefixes of whole jobs are tried as well. Domains
are tried from the cheapest bound on, until no other can be cheaper.

What is freed is held for the job, and charged to its queue at once, so no other job takes it and
no victim comes back for it.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import replace
from itertools import chain
from typing import Final

import numpy as np

from unidle.jobs import Reason
from unidle.place.actions.knapsack import RankSteps, cheapest, choose, offers, rank_costs
from unidle.place.actions.make_room import stop_in_parts
from unidle.place.actions.solver import Solver, VictimChoice, cheapest_choice, prefix
from unidle.place.explain import refused
from unidle.place.model import HOLD_NS, Demand, Domains, Fits, Hold, Ints, Mask, alike
from unidle.place.queue.fair_share import FairShare
from unidle.place.queue.pending import PendingLine
from unidle.place.queue.reservations import affordable
from unidle.place.queue.state import Allocations
from unidle.place.queue.victims import Candidates, Rights, anyone, copies_deserved, rights
from unidle.place.session import Attempt, Preemption, Session
from unidle.place.slices.fit import StartRoom
from unidle.words import are, counted, device_time, does

TOGETHER_MOST: Final = 64  # jobs for which others are stopped before another queue has its turn


class ReclaimSpares:
    """Filler leaves spares for a job that comes back after a fault."""

    def attempt(self, s: Session, a: Attempt) -> bool:
        if not _helps(a) or a.like in s.learned.no_filler:
            return False
        made = _stop_filler(s, a.demand)
        if made is None:
            s.learned.no_filler.add(a.like)
            return False
        record_stop(s, a.demand, made)
        return True


class Preempt:
    """Others are stopped for a job that has the right to; what they leave is held for it."""

    def attempt(self, s: Session, a: Attempt) -> bool:
        # where only others' reservations are in its way, nobody is stopped
        a.in_the_way = a.refusal is None and _fits_without_reservations(s, a)
        s.draft.kept_back |= a.in_the_way
        if not _helps(a) or a.in_the_way or a.like in s.learned.no_victims:
            return False
        made = _stop_for(s, a.demand, a.line)
        for job, answer in made:
            if isinstance(answer, Preemption):
                record_stop(s, job, answer)
            elif job.job == a.demand.job:
                s.learned.no_victims[a.like] = answer
        if made and isinstance(made[0][1], Preemption):
            return True
        s.learned.no_victims.setdefault(a.like)
        return False


def _helps(a: Attempt) -> bool:
    """Whether it could start if others left.

    Stopping others neither raises a limit nor lets a firm job borrow, but for jobs of its own queue.
    """
    return a.refusal is None or a.refusal.rule in ("kept", "full") or a.demand.level == "high"


def _stop_filler(s: Session, demand: Demand) -> Preemption | None:
    """Stop filler on spares for a job that comes back after a fault, whatever its level and whose the filler is."""
    known = s.filler(demand)
    if known is None:
        return None
    asked = replace(demand, charged=demand.most) if demand.most else demand
    made = preempt(
        s.state, asked, s.fits(demand), s.now_ns, hold_ns=s.rules.hold_ns, domains=s.domains(demand),
        candidates=known, rights_of=anyone,
    )  # fmt: skip
    if isinstance(made, Reason):
        return None
    s.took_spares(made.hold.devices)
    if not made.victims:
        return made
    victims, devices = len(made.victims), sum(made.hold.devices.values())
    text = f"{counted(victims, 'low job')} on spares {does(victims, 'make')} room for a job of {counted(devices, 'device')}"
    because = replace(made.because, text=f"{text} that restarts after a fault")
    return replace(made, spares=True, because=because)


def _fits_without_reservations(s: Session, a: Attempt) -> bool:
    if s.planner is None or not s.planner.reserves:
        return False
    return s.find(affordable(s.state.shares, a.leaf, a.demand), None) is not None


def _stop_for(s: Session, demand: Demand, line: PendingLine) -> list[tuple[Demand, Preemption | Reason]]:
    """Stop others for the job and equal jobs after it: the answers, its own first; empty if none may be stopped."""
    state, hold_ns = s.state, s.rules.hold_ns
    leaves = rights(state.shares, demand).leaves()
    if not any(state.soft.get(leaf) for leaf in leaves):
        return []
    if s.candidates is None:
        s.candidates = Candidates(state, s.now_ns)
    known = s.candidates
    if demand.ranks and demand.most:  # which slices they leave is not known yet
        demand = replace(demand, charged=demand.most)

    def one(demand: Demand) -> Preemption | Reason:
        return preempt(
            state, demand, s.fits(demand), s.now_ns, hold_ns=hold_ns, domains=s.domains(demand), candidates=known
        )  # fmt: skip

    def whole_then(demand: Demand, _gone: frozenset[str]) -> StartRoom | None:
        """What a job that requests whole devices would start on."""
        found = state.find(demand, s.fits)
        return None if found is None else StartRoom(found, (), demand.charged)

    # where no job that may be stopped has a part, what is solved for whole devices is all there is
    if s.parts is not None and (not demand.ranks or known.in_parts(leaves)):
        return [(demand, stop_in_parts(state, known, s.parts, demand, one, whole_then, s.now_ns + hold_ns))]
    jobs = [demand]
    if demand.ranks == 1 and not demand.most and s.together:
        jobs += line.alike(demand, TOGETHER_MOST - 1)
    answers = preempt_all(
        state, jobs, s.fits, s.now_ns, domains_of=s.domains, allowed_of=s.allowed, hold_ns=hold_ns, candidates=known
    )  # fmt: skip
    line.back(job for job in jobs[1:] if job.job not in state.holds)
    return [(job, answers[job.job]) for job in jobs]


def record_stop(s: Session, demand: Demand, answer: Preemption) -> None:
    """Others are stopped for the job, which waits until they have left."""
    s.draft.stops.append(answer)
    s.learned.forget()
    if s.planner is not None:
        s.planner.tell(demand, answer.hold.devices)
    victims = len(answer.victims)
    text = f"{counted(victims, 'job')} {are(victims)} stopped for it"
    s.draft.waits[demand.job] = Reason("gathering", text, {"victims": len(answer.victims)})


def preempt(
    state: Allocations, demand: Demand, fits: Fits, now_ns: int, *,
    domains: Domains | None = None, hold_ns: int = HOLD_NS, candidates: Candidates | None = None,
    rights_of: Callable[[FairShare, Demand], Rights] = rights,
) -> Preemption | Reason:  # fmt: skip
    """Make room for a gang. The cluster is changed (victims stopped, devices held), or left as it was.

    ``fits`` places the gang on offered room (see :data:`model.Fits`); ``domains`` are the ranges of
    nodes that may hold it whole (all nodes by default). Returns why not where nothing can be done.
    """
    known = candidates or Candidates(state, now_ns)
    known.refresh()
    before = state.log.checkpoint()
    first: Reason | None = None
    for relief in chain([()], _reliefs(state, known, demand, rights_of)):
        for k in relief:
            state.stop(known.jobs[k].job)
        known.stopped(relief)
        solver = Solver(known, state, demand, fits, domains)
        may = rights_of(state.shares, demand)
        allowed = known.alive & (known.size > 0) & np.isin(known.leaf, may.leaves())
        choice = cheapest_choice(solver, known, allowed, demand.ranks, may)
        why = None
        if choice is not None:
            cost = choice.cost + int(known.cost[list(relief)].sum())
            whole = VictimChoice(choice.counts, (*relief, *choice.rows), cost)
            answer = _carry_out(state, known, demand, whole, now_ns + hold_ns)
            if isinstance(answer, Preemption):
                return answer
            why = answer
        first = first or why or _why_not(solver, known, demand, may, prefix(known, may, allowed))
        state.log.rollback(before)
        known.revived(relief)
    return first or Reason("no_victims", "")


def _reliefs(
    state: Allocations, known: Candidates, demand: Demand, rights_of: Callable[[FairShare, Demand], Rights]
) -> Iterator[tuple[int, ...]]:
    """Jobs to stop first, within one of the demand's own departments, so that it is below what it deserves.

    Only then may room be taken from other departments, too. The smallest department first.
    """
    shares, tree = state.shares, state.shares.tree
    may = rights_of(shares, demand)
    path = tree.path(tree.leaf(demand.queue))[:-1]
    for at in path:
        used, deserved = shares.used[at], shares.quota.deserved[at]
        over = [max(u + a - d, 0) if a else 0 for u, a, d in zip(used, demand.charged, deserved, strict=True)]
        inside = [leaf for leaf in may.leaves() if at in tree.path(leaf)]
        if not any(over) or not inside:
            continue
        rows = np.flatnonzero(prefix(known, may, known.alive & np.isin(known.leaf, inside))).tolist()
        rows.sort(key=lambda k: (float(known.density[k]), k))
        for count, k in enumerate(rows, 1):
            over = [o - c for o, c in zip(over, known.jobs[k].charged, strict=True)]
            if all(o <= 0 for o in over):
                yield tuple(rows[:count])
                break


def preempt_all(
    state: Allocations, demands: Sequence[Demand], fits_of: Callable[[Demand], Fits], now_ns: int, *,
    domains_of: Callable[[Demand], Domains | None] | None = None,
    allowed_of: Callable[[Demand], Mask | None] | None = None, hold_ns: int = HOLD_NS,
    candidates: Candidates | None = None,
) -> dict[str, Preemption | Reason]:  # fmt: skip
    """Make room for each demand in turn; equal demands of one rank are solved together.

    ``allowed_of`` gives, for a demand of one rank that any allowed node can hold, the mask of these
    nodes; None where its ``fits`` has to be asked.
    """
    known = candidates or Candidates(state, now_ns)
    answers: dict[str, Preemption | Reason] = {}
    at = 0
    while at < len(demands):
        demand = demands[at]
        allowed = allowed_of(demand) if allowed_of and demand.ranks == 1 else None
        same = _run_of(demands, at) if allowed is not None else 1
        done = 0
        if allowed is not None and same > 1:
            found = _together(state, known, demands[at : at + same], allowed, now_ns + hold_ns)
            answers.update((p.job, p) for p in found)
            done = len(found)
        if not done:
            domains = domains_of(demand) if domains_of else None
            answer = preempt(
                state, demand, fits_of(demand), now_ns,
                domains=domains, hold_ns=hold_ns, candidates=known,
            )  # fmt: skip
            done = same if isinstance(answer, Reason) else 1  # what one may not have, none of them may
            answers.update((d.job, answer) for d in demands[at : at + done])
        at += done
    return answers


def _run_of(demands: Sequence[Demand], at: int) -> int:
    """How many demands from here on are equivalent."""
    end = at + 1
    while end < len(demands) and alike(demands[at], demands[end]):
        end += 1
    return end - at


def _why_not(solver: Solver, known: Candidates, demand: Demand, may: Rights, eligible: Mask) -> Reason:
    devices, free = int(known.size[eligible].sum()), int(np.maximum(solver.free, 0).sum())
    figures: dict[str, int | float | str] = {
        "needs": demand.size, "free": free, "could_be_stopped": devices, "jobs": int(eligible.sum()),
    }  # fmt: skip
    if not may.leaves():
        text = f"{demand.queue} would use more than it deserves, or no queue uses more than it deserves"
        if demand.level != "high":
            text += "; the job is not of level high"
        return Reason("no_right_to_preempt", text, figures)
    if not devices and not bool((known.alive & np.isin(known.leaf, may.leaves())).any()):
        return Reason(
            "too_young", "no low job that it could stop has run for its minimum runtime yet", figures
        )
    text = (
        f"stopping low jobs could free {counted(devices, 'device')} in addition to the {free} free ones without taking a queue"
        f" below what it deserves, and it needs {demand.size}"
    )
    if free + devices >= demand.size:
        text += " in another shape"
    return Reason("no_victims", text, figures)


def _carry_out(
    state: Allocations, known: Candidates, demand: Demand, choice: VictimChoice, expires_ns: int
) -> Preemption | Reason:
    before = state.log.checkpoint()
    if demand.job in state.holds:
        state.release(demand.job)
    for k in choice.rows:
        if known.jobs[k].job in state.running:
            state.stop(known.jobs[k].job)
    leaf = state.shares.tree.leaf(demand.queue)
    refusal = state.shares.refusal(leaf, demand.charged, firm=demand.firm)
    if refusal is not None:
        state.log.rollback(before)
        known.stopped(())
        return refused(state.shares.tree, refusal)
    places = {int(node): int(choice.counts[node]) * demand.each for node in np.flatnonzero(choice.counts)}
    hold = Hold.of(demand, places, expires_ns)
    state.hold(hold)
    known.stopped(choice.rows)
    victims = tuple(known.jobs[k].job for k in choice.rows)
    return Preemption(demand.job, victims, choice.cost, hold, _because(demand, victims, choice))


def _because(demand: Demand, victims: tuple[str, ...], choice: VictimChoice) -> Reason:
    if not victims:
        return Reason("preempt", "there is room for the job; no job has to be stopped", {"victims": 0})
    what = f"stopping {counted(len(victims), 'low job')} frees the room for {counted(demand.size, 'device')}"
    text = f"{what} and loses {device_time(choice.cost)}, the least that was found"
    return Reason("preempt", text, {"victims": len(victims), "lost_us": choice.cost, "devices": demand.size})


def _together(
    state: Allocations, known: Candidates, demands: Sequence[Demand], allowed: Mask, expires_ns: int
) -> list[Preemption]:
    """Room for as many of these equal demands of one rank as possible; [] if none can be made."""
    known.refresh()
    first = demands[0]
    most = copies_deserved(state.shares, first, len(demands))
    may = rights(state.shares, first, copies=max(most, 1))
    if not most:
        most = len(demands) if first.level == "high" else 0
    if not most:
        return []
    eligible = prefix(known, may, known.alive & (known.size > 0) & np.isin(known.leaf, may.leaves()))
    eligible &= ~known.spread  # gangs are weighed one demand at a time
    return _hand_out(state, known, demands[:most], eligible, allowed, expires_ns)


def _hand_out(
    state: Allocations,
    known: Candidates,
    demands: Sequence[Demand],
    eligible: Mask,
    allowed: Mask,
    expires_ns: int,
) -> list[Preemption]:
    each, free = demands[0].each, state.free
    items = known.items.take(eligible[known.items.job] & allowed[known.items.node])
    freed = np.bincount(items.node, items.devices, len(free)).astype(np.int64)
    best = cheapest(items, len(free), int(freed.max(initial=0)))
    steps = offers(rank_costs(best, np.where(allowed, free, 0), each, len(demands)))
    found: list[Preemption] = []
    starts = np.searchsorted(items.node, np.arange(len(free) + 1))
    leaf = state.shares.tree.leaf(demands[0].queue)
    counts = _taken(steps, len(demands), len(free))
    for node in np.flatnonzero(counts).tolist():
        local = items.take(np.arange(int(starts[node]), int(starts[node + 1])))
        rows = iter(local.job[choose(local, int(counts[node]) * each - int(free[node]))].tolist())
        for _ in range(int(counts[node])):
            demand = demands[len(found)]
            before = state.log.checkpoint()
            stopped: list[int] = []
            while free[node] < each:
                stopped.append(next(rows))
                state.stop(known.jobs[stopped[-1]].job)
            if state.shares.refusal(leaf, demand.charged, firm=demand.firm) is not None:
                state.log.rollback(before)
                known.stopped(())
                return found
            hold = Hold.of(demand, {node: each}, expires_ns)
            state.hold(hold)
            known.stopped(stopped)
            choice = VictimChoice(counts, tuple(stopped), int(known.cost[stopped].sum()))
            victims = tuple(known.jobs[k].job for k in stopped)
            found.append(
                Preemption(demand.job, victims, choice.cost, hold, _because(demand, victims, choice))
            )
    return found


def _taken(steps: RankSteps, ranks: int, nodes: int) -> Ints:
    """The cheapest ``ranks`` ranks of the offers, or all of them."""
    total = np.cumsum(steps.ranks)
    count = min(int(np.searchsorted(total, ranks)) + 1, len(steps))
    counts = steps.room(count, nodes)
    if count and total[count - 1] > ranks:
        counts[steps.node[count - 1]] -= total[count - 1] - ranks
    return counts
