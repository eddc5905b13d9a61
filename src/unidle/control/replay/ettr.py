"""What faults cost a gang, in figures, compared with what Meta's formula expects of the same rates."""

from __future__ import annotations

from collections import defaultdict
from dataclasses import asdict, dataclass
from typing import Any, Final

from unidle.checkpoint.interval import Costs, ettr
from unidle.ledger.money import MICRO
from unidle.ledger.query import summary
from unidle.ledger.ratios import USEFUL
from unidle.ledger.taxonomy import GROUP_OF
from unidle.store.protocol import Store
from unidle.view.jobs import JobView
from unidle.view.source import ledger_source, prices
from unidle.view.state import View

_S: Final = 1e9
_HOUR_NS: Final = 3600e9
ENOUGH: Final = 20
"""Minimum number of interruptions for a meaningful mean."""


@dataclass(frozen=True, slots=True)
class FaultOutcome:
    """One replay. Ratios 0 to 1; GPU-hours; ``wait_h`` are hours in which the gang had no place.

    ``ettr`` is work that counts over the time since submission, waiting included; ``ettr_placed`` leaves the waiting
    out, and is what ``formula`` expects for the rate of interruptions that was seen (``mttf_h``: hours between them,
    None without any). ``holds``: that formula's assumptions do, which are many interruptions, each small compared with the
    time between them. Intervals are means over the attempts. ``paid`` is the whole fleet's money, spares included; ``wasted`` what bought no useful work.
    """

    ettr: float
    ettr_placed: float
    formula: float | None
    holds: bool
    save_every_s: float
    copy_every_s: float
    restarts: int
    mttf_h: float | None
    wall_h: float
    wait_h: float
    useful_gpu_h: float
    lost_gpu_h: float
    held_gpu_h: float
    down_gpu_h: float
    free_gpu_h: float
    paid: float
    wasted: float
    per_useful_gpu_h: float | None
    ended: bool

    def as_json(self) -> dict[str, Any]:
        return asdict(self)


@dataclass(frozen=True, slots=True)
class GangCosts:
    """What saves and restarts of one gang take. ``save_s`` and ``copy_s``: work between two saves, and between two copies
    (0: none), for which the gang waits ``write_s`` and ``copy_stall_s``. ``restart_s`` includes reading the state.
    """

    save_s: float
    copy_s: float
    write_s: float
    copy_stall_s: float
    restart_s: float
    detect_s: float

    def expected(self, mttf_s: float, restarts: int) -> tuple[float, bool]:
        """Meta's formula for such failures, and whether its assumptions hold."""
        interval_s = self.copy_s or self.save_s
        stall_s = self.write_s
        if self.copy_s:
            stall_s = self.copy_stall_s + self.write_s * self.copy_s / self.save_s
        lost_s = self.restart_s + self.detect_s + interval_s / 2
        holds = restarts >= ENOUGH and 4 * lost_s <= mttf_s
        return ettr(interval_s, Costs(stall_s, mttf_s, self.restart_s, self.detect_s)), holds


def outcome_of_gang(
    view: View, store: Store, job: JobView, gpus_per_node: int, costs: GangCosts
) -> FaultOutcome:
    """The figures of a replay with one job."""
    ledger = summary(ledger_source(store, view), prices=prices(view))
    groups: dict[str, int] = defaultdict(int)
    for total in ledger.leaves:
        groups["useful" if total.leaf in USEFUL else GROUP_OF[total.leaf]] += total.ns
    end_ns = job.ended_ns if job.ended_ns is not None else view.time_ns
    wall_ns, placed_ns = end_ns - job.submitted_ns, job.run_ns(view.time_ns)
    nodes, restarts = job.spec.ranks, max(len(job.attempts) - 1, 0)
    useful_ns = groups["useful"]
    paid = ledger.cost.total_micro / MICRO if ledger.cost is not None else 0.0
    per_ns = paid / ledger.capacity_ns if ledger.capacity_ns else 0.0
    useful_gpu_h = useful_ns / _HOUR_NS * gpus_per_node
    expected, holds = None, False
    if restarts and placed_ns:
        expected, holds = costs.expected(placed_ns / _S / restarts, restarts)
    return FaultOutcome(
        ettr=useful_ns / (wall_ns * nodes) if wall_ns else 0.0,
        ettr_placed=useful_ns / (placed_ns * nodes) if placed_ns else 0.0,
        formula=expected,
        holds=holds,
        save_every_s=costs.save_s,
        copy_every_s=costs.copy_s,
        restarts=restarts,
        mttf_h=placed_ns / _HOUR_NS / restarts if restarts else None,
        wall_h=wall_ns / _HOUR_NS,
        wait_h=(wall_ns - placed_ns) / _HOUR_NS,
        useful_gpu_h=useful_gpu_h,
        lost_gpu_h=groups["lost"] / _HOUR_NS * gpus_per_node,
        held_gpu_h=groups["held"] / _HOUR_NS * gpus_per_node,
        down_gpu_h=groups["down"] / _HOUR_NS * gpus_per_node,
        free_gpu_h=groups["free"] / _HOUR_NS * gpus_per_node,
        paid=paid,
        wasted=paid - per_ns * useful_ns,
        per_useful_gpu_h=paid / useful_gpu_h if useful_gpu_h else None,
        ended=job.terminal,
    )
