"""What came of a run, in figures that can stand side by side: policies of a replay, or a store as recorded."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Final

import numpy as np

from unidle.ledger.answers import LedgerSummary
from unidle.ledger.money import MICRO
from unidle.ledger.query import summary
from unidle.ledger.sources import LedgerSource
from unidle.ledger.taxonomy import GROUP_OF
from unidle.view.jobs import JobView
from unidle.view.source import prices
from unidle.view.state import View

_S: Final = 1e9
_HOUR_NS: Final = 3_600_000_000_000
_NOT_ALLOCATED: Final = frozenset({"free", "down", "unseen"})
QUANTILES: Final = (50, 95, 99)


@dataclass(frozen=True, slots=True)
class DurationStatistics:
    """Durations of some jobs, in seconds; 0 where there is no job."""

    jobs: int
    mean_s: float
    quantiles_s: tuple[float, ...]  # of ``QUANTILES``

    def as_json(self) -> dict[str, Any]:
        quantiles = {f"p{q}": s for q, s in zip(QUANTILES, self.quantiles_s, strict=True)}
        return {"jobs": self.jobs, "mean": self.mean_s, **quantiles}


@dataclass(frozen=True, slots=True)
class QueueShare:
    """One queue: GPU time that its jobs held, and the part of their stay in the system in which they ran."""

    queue: str
    jobs: int
    held_ns: int
    ran_part: float


@dataclass(frozen=True, slots=True)
class Money:
    """What the whole fleet cost while the run lasted, and of that what was free and what was thrown away.

    In millionths of ``currency``; ``unpriced_ns`` is GPU time whose price is unknown, and is in none of them.
    """

    currency: str
    paid_micro: int
    free_micro: int
    lost_micro: int
    unpriced_ns: int

    @classmethod
    def of(cls, ledger: LedgerSummary) -> Money | None:
        """None where no price is known."""
        cost = ledger.cost
        if cost is None:
            return None

        def group(name: str) -> int:
            return sum(micro for leaf, micro in cost.leaves_micro.items() if GROUP_OF[leaf] == name)

        return cls(cost.currency, cost.total_micro, group("free"), group("lost"), cost.unpriced_ns)

    def as_json(self) -> dict[str, Any]:
        amounts = {"paid": self.paid_micro, "free": self.free_micro, "lost": self.lost_micro}
        return {
            "currency": self.currency,
            **{name: micro / MICRO for name, micro in amounts.items()},
            "unpriced_gpu_h": self.unpriced_ns / _HOUR_NS,
        }


@dataclass(frozen=True, slots=True)
class ReplayOutcome:
    """A run in figures. GPU time is in ns of whole devices, and from the ledger.

    ``queueing`` is from submission to the first start, of jobs that started; ``completion`` from
    submission to the end, of jobs that succeeded. ``fragmented_ns`` is GPU time that was free while
    a job waited that no free shape fitted; ``lost_ns`` work that was thrown away. ``fairness`` is
    Jain's index over the queues' ``ran_part``: 1 where it is equal for all queues.
    """

    jobs: int
    never_started: int
    succeeded: int
    makespan_ns: int
    capacity_ns: int
    allocated_ns: int
    fragmented_ns: int
    lost_ns: int
    preemptions: int
    restarts: int
    queueing: DurationStatistics
    completion: DurationStatistics
    queues: tuple[QueueShare, ...]
    fairness: float
    ledger: LedgerSummary
    money: Money | None = None

    @property
    def allocation(self) -> float:
        """Part of the capacity that jobs held."""
        return self.allocated_ns / self.capacity_ns if self.capacity_ns else 0.0

    @property
    def fragmentation(self) -> float:
        """Part of the capacity that was free and fragmented."""
        return self.fragmented_ns / self.capacity_ns if self.capacity_ns else 0.0

    def as_json(self) -> dict[str, Any]:
        """As ``unidle replay --json`` prints it; ``percent`` of capacity, seconds, GPU-hours."""
        return {
            "jobs": self.jobs,
            "never_started": self.never_started,
            "succeeded": self.succeeded,
            "makespan_s": self.makespan_ns / _S,
            "allocation_percent": 100 * self.allocation,
            "fragmentation_percent": 100 * self.fragmentation,
            "queueing_s": self.queueing.as_json(),
            "completion_s": self.completion.as_json(),
            "preemptions": self.preemptions,
            "restarts": self.restarts,
            "lost_gpu_h": self.lost_ns / _HOUR_NS,
            "fairness_jain": self.fairness,
            "money": self.money.as_json() if self.money is not None else None,
            "queues": {
                q.queue: {"jobs": q.jobs, "gpu_h": q.held_ns / _HOUR_NS, "ran_part": q.ran_part}
                for q in self.queues
            },
            "ledger": self.ledger.as_json(),
        }


def outcome_of(view: View, source: LedgerSource, only: Iterable[str] | None = None) -> ReplayOutcome:
    """The figures of a view and its ledger; ``only`` some jobs count (all of the ledger does)."""
    wanted = None if only is None else set(only)
    jobs = [job for job in view.jobs.values() if wanted is None or job.id in wanted]
    ledger = summary(source, prices=prices(view))
    leaves: dict[str, int] = defaultdict(int)
    for total in ledger.leaves:
        leaves[total.leaf] += total.ns
    queues = tuple(_queue_shares(view, jobs))
    started = [job for job in jobs if job.attempts]
    done = [job for job in jobs if job.state == "succeeded"]
    outcomes = [attempt.outcome for job in jobs for attempt in job.attempts]
    return ReplayOutcome(
        jobs=len(jobs),
        never_started=len(jobs) - len(started),
        succeeded=len(done),
        makespan_ns=ledger.window.end_ns - ledger.window.start_ns,
        capacity_ns=ledger.capacity_ns,
        allocated_ns=sum(ns for leaf, ns in leaves.items() if GROUP_OF[leaf] not in _NOT_ALLOCATED),
        fragmented_ns=leaves["fragmented"],
        lost_ns=sum(ns for leaf, ns in leaves.items() if GROUP_OF[leaf] == "lost"),
        preemptions=outcomes.count("preempted"),
        restarts=len(outcomes) - len(started),
        queueing=_times([job.attempts[0].placed_ns - job.submitted_ns for job in started]),
        completion=_times([(job.ended_ns or 0) - job.submitted_ns for job in done]),
        queues=queues,
        fairness=jain([q.ran_part for q in queues]),
        ledger=ledger,
        money=Money.of(ledger),
    )


def jain(values: Sequence[float]) -> float:
    """Jain's fairness index: (sum x)^2 / (n * sum x^2), from 1/n (one has all) to 1 (all equal).

    Source: Jain, Chiu, Hawe, "A quantitative measure of fairness", DEC TR-301, 1984.
    """
    largest = max(values, default=0.0)
    if not largest:
        return 1.0
    parts = [x / largest for x in values]  # squares of the smallest numbers would be 0
    return sum(parts) ** 2 / (len(parts) * sum(x * x for x in parts))


def _times(durations_ns: list[int]) -> DurationStatistics:
    if not durations_ns:
        return DurationStatistics(0, 0.0, (0.0,) * len(QUANTILES))
    seconds = np.array(durations_ns, np.int64) / _S
    quantiles = tuple(float(q) for q in np.percentile(seconds, QUANTILES))
    return DurationStatistics(len(durations_ns), float(seconds.mean()), quantiles)


def _queue_shares(view: View, jobs: Iterable[JobView]) -> Iterable[QueueShare]:
    count: dict[str, int] = defaultdict(int)
    held: dict[str, int] = defaultdict(int)
    stay: dict[str, int] = defaultdict(int)
    for job in jobs:
        queue, devices, now = job.spec.queue, job.spec.devices, view.time_ns
        end_ns = job.ended_ns if job.ended_ns is not None else now
        count[queue] += 1
        held[queue] += job.run_ns(now) * devices
        stay[queue] += (end_ns - job.submitted_ns) * devices
    for queue in sorted(count):
        part = held[queue] / stay[queue] if stay[queue] else 1.0
        yield QueueShare(queue, count[queue], held[queue], part)


def _money_lines(found: Sequence[Money | None]) -> list[tuple[str, list[str]]]:
    currency = next((money.currency for money in found if money is not None), None)
    if currency is None:
        return []
    kinds = ("paid", "free", "lost")
    amounts = [dict.fromkeys(kinds) if money is None else money.as_json() for money in found]
    return [
        (f"{kind} {currency}", ["-" if a[kind] is None else f"{a[kind]:,.2f}" for a in amounts])
        for kind in kinds
    ]


def side_by_side(outcomes: Mapping[str, ReplayOutcome]) -> tuple[list[str], list[list[str]]]:
    """A table for people: a header, and one row per figure with a cell for each run."""
    lines: list[tuple[str, list[str]]] = [
        ("allocation %", [f"{100 * o.allocation:.2f}" for o in outcomes.values()]),
        ("fragmentation %", [f"{100 * o.fragmentation:.2f}" for o in outcomes.values()]),
        ("makespan h", [f"{o.makespan_ns / _HOUR_NS:.2f}" for o in outcomes.values()]),
        ("queueing mean s", [f"{o.queueing.mean_s:.1f}" for o in outcomes.values()]),
    ]
    for k, q in enumerate(QUANTILES):
        lines.append((f"queueing p{q} s", [f"{o.queueing.quantiles_s[k]:.1f}" for o in outcomes.values()]))
    lines.append(("completion mean s", [f"{o.completion.mean_s:.1f}" for o in outcomes.values()]))
    for k, q in enumerate(QUANTILES):
        lines.append(
            (f"completion p{q} s", [f"{o.completion.quantiles_s[k]:.1f}" for o in outcomes.values()])
        )
    lines += [
        ("never started", [str(o.never_started) for o in outcomes.values()]),
        ("preemptions", [str(o.preemptions) for o in outcomes.values()]),
        ("restarts", [str(o.restarts) for o in outcomes.values()]),
        ("lost GPU-h", [f"{o.lost_ns / _HOUR_NS:.2f}" for o in outcomes.values()]),
        ("fairness (Jain)", [f"{o.fairness:.4f}" for o in outcomes.values()]),
    ]
    lines += _money_lines([o.money for o in outcomes.values()])
    groups: dict[str, list[int]] = defaultdict(lambda: [0] * len(outcomes))
    for k, outcome in enumerate(outcomes.values()):
        for total in outcome.ledger.leaves:
            groups[f"{total.group}: {total.leaf}"][k] += total.ns
    for leaf in sorted(groups, key=lambda name: -max(groups[name])):
        cells = [
            f"{100 * ns / o.capacity_ns:.2f}" if o.capacity_ns else "-"
            for ns, o in zip(groups[leaf], outcomes.values(), strict=True)
        ]
        lines.append((f"{leaf} %", cells))
    return ["", *outcomes], [[name, *cells] for name, cells in lines]
