"""A job is stopped for one of its own queue that comes before it, where both are of level low: the order of the queue.

No right of a queue is needed, for what the queue uses stays the same. Only a job of a later class is stopped
(``queue.order``), so that two jobs never stop each other in turn; of those that may be, the ones that lose the least
device-time, and none before its minimum runtime.
"""

from __future__ import annotations

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
    demand, pending, tree = a.demand, s.pending, s.state.shares.tree

    def comes_later(run: Running) -> bool:
        own = run.level == "low" and tree.leaf(run.queue) == a.leaf
        return own and pending.class_of(run, s.now_ns) > class_

    known = Candidates(s.state, s.now_ns, comes_later)
    if not known.jobs or not _may_be_enough(s, demand, known):
        return None
    asked = replace(demand, charged=demand.most) if demand.most else demand
    made = preempt(
        s.state, asked, s.fits(demand), s.now_ns, hold_ns=s.rules.hold_ns, domains=s.domains(demand),
        candidates=known, rights_of=_own_queue,
    )  # fmt: skip
    return made if isinstance(made, Preemption) and made.victims else None


def _may_be_enough(s: Session, demand: Demand, known: Candidates) -> bool:
    """Whether the nodes have room for all ranks, were all of these jobs gone: else nothing has to be solved."""
    free = np.maximum(s.state.free_for(demand)[0], 0)
    free = free + np.bincount(known.items.node, known.items.devices, len(free)).astype(np.int64)
    return int((free // demand.each).sum()) >= demand.ranks


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
