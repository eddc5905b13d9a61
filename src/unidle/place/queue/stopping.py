"""Room made in a round by stopping others for jobs that have the right to."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import replace
from typing import Final

from unidle.jobs import Reason
from unidle.place.queue.cluster import Cluster
from unidle.place.queue.model import Demand, Fits
from unidle.place.queue.parts import Parts, stop_in_parts
from unidle.place.queue.preempt import Preemption, preempt, preempt_all
from unidle.place.queue.relief import Room
from unidle.place.queue.solve import Domains
from unidle.place.queue.victims import Candidates, Mask, rights
from unidle.place.queue.waiting import Line

TOGETHER_MOST: Final = 64  # jobs for which others are stopped before another queue has its turn


class Stopping:
    """Stops jobs for others. Which jobs may be stopped is found at the first call, and kept from then on.

    ``domains_of`` and ``allowed_of`` are those of ``preempt.preempt_all``. ``whole_now(demand)`` is where a job
    for whole devices could start now.
    """

    def __init__(
        self, cluster: Cluster, fits_of: Callable[[Demand], Fits], now_ns: int, hold_ns: int,
        domains_of: Callable[[Demand], Domains | None] | None, allowed_of: Callable[[Demand], Mask | None] | None,
        parts: Parts | None, whole_now: Callable[[Demand], Mapping[int, int] | None],
    ) -> None:  # fmt: skip
        self._cluster, self._fits_of, self._now_ns, self._hold_ns = cluster, fits_of, now_ns, hold_ns
        self._domains_of, self._allowed_of = domains_of, allowed_of
        self._parts, self._whole_now = parts, whole_now
        self._candidates: Candidates | None = None

    def stop_for(self, demand: Demand, line: Line) -> list[tuple[Demand, Preemption | Reason]]:
        """Stop others for the job and equal jobs after it: the answers, its own first; empty if none may be stopped."""
        leaves = rights(self._cluster.shares, demand).leaves()
        if not any(self._cluster.soft.get(leaf) for leaf in leaves):
            return []
        if self._candidates is None:
            self._candidates = Candidates(self._cluster, self._now_ns)
        if demand.ranks and demand.most:  # which slices they leave is not known yet
            demand = replace(demand, charged=demand.most)
        # where nobody who may be stopped has a part, what is solved for whole devices is all there is
        if self._parts is not None and (not demand.ranks or self._candidates.in_parts(leaves)):
            made = stop_in_parts(
                self._cluster, self._candidates, self._parts, demand, self._preempt_one, self._whole_then,
                self._now_ns + self._hold_ns,
            )  # fmt: skip
            return [(demand, made)]
        jobs = [demand]
        if demand.ranks == 1 and not demand.most and self._allowed_of is not None:
            jobs += line.alike(demand, TOGETHER_MOST - 1)
        answers = preempt_all(
            self._cluster, jobs, self._fits_of, self._now_ns, domains_of=self._domains_of,
            allowed_of=self._allowed_of, hold_ns=self._hold_ns, candidates=self._candidates,
        )  # fmt: skip
        line.back(job for job in jobs[1:] if job.job not in self._cluster.holds)
        return [(job, answers[job.job]) for job in jobs]

    def _preempt_one(self, demand: Demand) -> Preemption | Reason:
        return preempt(
            self._cluster, demand, self._fits_of(demand), self._now_ns, hold_ns=self._hold_ns,
            domains=self._domains_of(demand) if self._domains_of else None, candidates=self._candidates,
        )  # fmt: skip

    def _whole_then(self, demand: Demand, _gone: frozenset[str]) -> Room | None:
        """What a job that requests whole devices would start on."""
        found = self._whole_now(demand)
        return None if found is None else Room(found, (), demand.charged)
