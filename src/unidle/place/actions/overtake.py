"""A job is stopped for one of its own queue that comes before it, where both are of level low: the order of the queue.

No right of a queue is needed, for what the queue uses stays the same. Only a job of a later class is stopped
(``queue.order``), so that two jobs never stop each other in turn; of those that may be, the last ones, and none before its
minimum runtime.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

import numpy as np

from unidle.place.actions.preempt import preempt, record_stop
from unidle.place.model import NS_PER_US, Demand, Running
from unidle.place.queue.fair_share import FairShare
from unidle.place.queue.order import next_class_us
from unidle.place.queue.victims import Candidates, Rights, dominant
from unidle.place.session import Attempt, Preemption, Session


class Overtake:
    """Jobs of a later class of the queue leave for it."""

    def attempt(self, s: Session, a: Attempt) -> bool:
        demand = a.demand
        if a.in_the_way or not s.overtakes(demand) or not s.state.soft.get(a.leaf):
            return False
        class_ = s.pending.class_of(demand, s.now_ns)
        if (a.like, class_) in s.learned.no_overtaking:
            return False
        made = _stop_later(s, a, class_)
        if made is None:
            s.learned.no_overtaking.add((a.like, class_))
            return False
        record_stop(s, demand, made)
        return True


def _stop_later(s: Session, a: Attempt, class_: int) -> Preemption | None:
    """Who leaves: the last of the queue's order, as many as it takes, so that the first of them get to their end."""
    last_first = _last_first(s, a.leaf, class_)
    asked = replace(a.demand, charged=a.demand.most) if a.demand.most else a.demand
    count = _fewest(s, a.demand, last_first)
    while count is not None:
        chosen = {run.job for run in last_first[:count]}
        made = preempt(
            s.state, asked, s.fits(a.demand), s.now_ns, hold_ns=s.rules.hold_ns, domains=s.domains(a.demand),
            candidates=_these(s, chosen), rights_of=_own_queue,
        )  # fmt: skip
        if isinstance(made, Preemption) and made.victims:
            return made
        count = min(2 * count, len(last_first)) if count < len(last_first) else None
    return None


def _last_first(s: Session, leaf: int, class_: int) -> list[Running]:
    """The queue's running jobs of later classes that may be stopped, against its order."""
    tree, found = s.state.shares.tree, list[tuple[int, int, str, Running]]()
    for run in s.state.running.values():
        if run.level == "low" and tree.leaf(run.queue) == leaf:
            later = s.pending.class_of(run, s.now_ns)
            if later > class_:
                found.append((later, run.came_ns, run.job, run))
    return [entry[3] for entry in sorted(found, key=lambda entry: entry[:3], reverse=True)]


def _these(s: Session, chosen: set[str]) -> Candidates:
    return Candidates(s.state, s.now_ns, lambda run: run.job in chosen)


def _fewest(s: Session, demand: Demand, leave: Sequence[Running]) -> int | None:
    """How many of these, from the first on, have to leave at the least, by the room of each node; None: all are too few."""
    free = np.maximum(s.state.free_for(demand)[0], 0)
    ranks = int((free // demand.each).sum())
    for count, run in enumerate(leave, 1):
        for node, devices in run.devices.items():
            ranks -= int(free[node]) // demand.each
            free[node] += devices
            ranks += int(free[node]) // demand.each
        if ranks >= demand.ranks:
            return count
    return None


def _own_queue(shares: FairShare, demand: Demand) -> Rights:
    return Rights(dominant(shares, demand.charged), shares.tree.leaf(demand.queue), {}, {})


def next_overtaking_ns(s: Session) -> int | None:
    """When the next running job comes into a later class, and so may be stopped for one that waits."""
    pending, tree, times = s.pending, s.state.shares.tree, []
    waiting = {tree.leaf(d.queue) for job in s.draft.waits if (d := pending.jobs.get(job)) and s.overtakes(d)}
    for run in s.state.running.values() if waiting else ():
        if run.level != "low" or (leaf := tree.leaf(run.queue)) not in waiting or not run.milli:
            continue
        served_us = run.service_us(s.now_ns)
        edge_us = next_class_us(pending.order(leaf), served_us, run.expected_us())
        if edge_us is not None:
            times.append(s.now_ns + (edge_us - served_us) * NS_PER_US * 1_000 // run.milli + 1_000)
    return min(times, default=None)
