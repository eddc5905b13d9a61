"""What one look found of each rank of a gang: its time, the rank that it waited for, the steps it completed; and
from its time to leaves of the ledger, whole nanoseconds of a window. Pure.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from functools import cache
from typing import Final

from unidle.ledger.apportion import by_weight
from unidle.ledger.profiled_causes import CARVED
from unidle.scope.budget import Budgets, budgets_of, percentages
from unidle.scope.model import Profile
from unidle.scope.rank_views import compare
from unidle.scope.rules import RuleSet
from unidle.scope.rules_file import all_rules
from unidle.scope.steps import steps_of

SAMPLES_LEAST: Final = 20  # of the training thread: with fewer its time is not split
_SURE: Final[Mapping[str, str]] = {"data": "data_stall", "checkpoint_io": "checkpoint"}
# What a thread does while the device may have nothing to do: a host gap only where it is known that it has not.
_HOST: Final = ("python", "lock", "cpu_contention", "other")


@dataclass(frozen=True, slots=True)
class RankFinding:
    """One rank. ``budget``: percent of its training thread's time by category; empty where too little was seen.

    ``late_share``: part of its time that it waited in collectives for a rank that was late. ``steps_ns``: when steps
    ended, on the profile's clock.
    """

    budget: Mapping[str, float]
    late_share: float = 0.0
    steps_ns: tuple[int, ...] = ()


def findings_of(profile: Profile) -> dict[int, RankFinding]:
    """By rank. The profile's processes must say which ranks they are."""
    budgets = budgets_of(profile, _rules())
    report = steps_of(profile, budgets.roles)
    ranks = {s.pid: (s.tid, s.rank) for s in budgets.roles.subjects if s.rank is not None}
    shares = {pid: _shares(budgets, pid, tid) for pid, (tid, _) in ranks.items()}
    late = _late(profile, shares, {pid: tid for pid, (tid, _) in ranks.items()})
    found: dict[int, RankFinding] = {}
    for pid, (tid, rank) in ranks.items():
        steps = report.ranks.get((pid, tid))
        found[rank] = RankFinding(shares[pid], late.get(rank, 0.0), () if steps is None else steps.ends_ns)
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
def _rules() -> RuleSet:
    return all_rules()


def leaves_of(
    budget: Mapping[str, float],
    window_ns: int,
    *,
    late_share: float = 0.0,
    device_idle_share: float | None = None,
) -> dict[str, int]:
    """How much of a window went to each leaf of ``unidle.ledger.profiled_causes.CARVED``; the rest is not known to be lost.

    ``budget``: percent of the training thread's time by category. ``late_share``: part of the window that the rank
    waited in collectives for one that was late. ``device_idle_share``: part of it in which its device had nothing to
    do, from a source of device times; without it no time is assigned to the host, since the device may have had work
    queued.
    """
    shares = {category: max(float(pct), 0.0) / 100 for category, pct in budget.items()}
    collective = shares.get("collective", 0.0)
    late = min(max(late_share, 0.0), collective)
    found = dict.fromkeys(CARVED, 0.0)
    for category, leaf in _SURE.items():
        found[leaf] = shares.get(category, 0.0)
    found["straggler_wait"], found["exposed_local"] = late, collective - late
    if device_idle_share is not None:
        idle = max(device_idle_share - sum(found.values()), 0.0)
        found["host_gap"] = min(idle, sum(shares.get(category, 0.0) for category in _HOST))
    return _whole(found, window_ns)


def _whole(shares: Mapping[str, float], window_ns: int) -> dict[str, int]:
    """Shares of a window in whole nanoseconds: none is off by more than one, and together they fit into it."""
    parts_per_billion = [round(shares[leaf] * 10**9) for leaf in shares]
    rest = max(10**9 - sum(parts_per_billion), 0)
    parts = by_weight(window_ns, [*parts_per_billion, rest])
    return {leaf: ns for leaf, ns in zip(shares, parts, strict=False) if ns}
