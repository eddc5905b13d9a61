"""What one look found of each rank of a gang: its time, the rank that it waited for, the steps it completed. Pure."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from functools import cache

from unidle.scope.budget import Budgets, budgets_of, percentages
from unidle.scope.model import Profile
from unidle.scope.rank_views import compare
from unidle.scope.rules import Rules, all_rules
from unidle.scope.steps import steps_of

SAMPLES_LEAST = 20
"""Of the training thread: with fewer its time is not split."""


@dataclass(frozen=True, slots=True)
class Finding:
    """One rank. ``budget``: percent of its training thread's time by category; empty where too little was seen.

    ``late_share``: part of its time that it waited in collectives for a rank that was late. ``steps_ns``: when steps
    ended, on the profile's clock.
    """

    budget: Mapping[str, float]
    late_share: float = 0.0
    steps_ns: tuple[int, ...] = ()


def findings_of(profile: Profile) -> dict[int, Finding]:
    """By rank. The profile's processes must say which ranks they are."""
    budgets = budgets_of(profile, _rules())
    report = steps_of(profile, budgets.shape)
    ranks = {s.pid: (s.tid, s.rank) for s in budgets.shape.subjects if s.rank is not None}
    shares = {pid: _shares(budgets, pid, tid) for pid, (tid, _) in ranks.items()}
    late = _late(profile, shares, {pid: tid for pid, (tid, _) in ranks.items()})
    found: dict[int, Finding] = {}
    for pid, (tid, rank) in ranks.items():
        steps = report.ranks.get((pid, tid))
        found[rank] = Finding(shares[pid], late.get(rank, 0.0), () if steps is None else steps.ends_ns)
    return found


def _shares(budgets: Budgets, pid: int, tid: int) -> dict[str, float]:
    one = budgets.threads.get((pid, tid))
    return {} if one is None or one.samples < SAMPLES_LEAST else percentages(one.ns, places=4)


def _late(
    profile: Profile, shares: Mapping[int, Mapping[str, float]], threads: Mapping[int, int]
) -> dict[int, float]:
    """By rank what it waits more than the rank that is late does: that one waits as long as the network takes."""
    known = {pid: share for pid, share in shares.items() if share}
    if len(known) < 2:
        return {}
    compared = compare(profile, budgets=known, threads=threads)
    waits = {blame.rank: blame.wait_pct / 100 for blame in compared.ranks}
    least = min((waits[rank] for rank in compared.late), default=None)
    if least is None:
        return {}
    return {rank: max(wait - least, 0.0) for rank, wait in waits.items() if rank not in compared.late}


@cache
def _rules() -> Rules:
    return all_rules()
