"""A profile and all that follows from it: what the first screen and ``--json`` are made of. Pure."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass

from unidle.scope.bottlenecks import Bottleneck, Machine, bottlenecks_of, compared, late_rank
from unidle.scope.budget import FEW_SAMPLES, Budgets, ThreadBudget, budgets_of
from unidle.scope.line_times import LineTime, lines_of
from unidle.scope.model import Profile, Sample
from unidle.scope.ranks import Comparison
from unidle.scope.rules import CATEGORIES, RuleSet
from unidle.scope.serving_view import ServingView, view_of
from unidle.scope.steps import StepReport, steps_of


@dataclass(frozen=True, slots=True)
class ProfileReport:
    """A profile and all that follows from it."""

    profile: Profile
    budgets: Budgets
    steps: StepReport
    comparison: Comparison | None  # of the ranks, where there are several
    machine: Machine
    serving: ServingView

    @property
    def steps_s(self) -> float | None:
        """Steps a second, where steps were seen."""
        count, seconds = self.steps.count, self.profile.seconds
        return count / seconds if count and seconds else None

    def findings(self, thread: ThreadBudget) -> list[Bottleneck]:
        """Causes of a training thread's time, biggest first."""
        return bottlenecks_of(self.profile, self.budgets, thread, self.machine, self.comparison)


def report_of(profile: Profile, rules: RuleSet, machine: Machine | None = None) -> ProfileReport:
    """Pure. ``machine``: what else was there while the look lasted, where that is known."""
    budgets = budgets_of(profile, rules)
    steps = steps_of(profile, budgets.roles)
    return ProfileReport(
        profile, budgets, steps, compared(profile, budgets), machine or Machine(), view_of(profile)
    )


def category_of(report: ProfileReport) -> Callable[[Profile, Sample], str]:
    """Names the category that a sample's time was put into."""
    known = {
        (one.pid, one.tid, cell.stack, cell.state): cell.rule.category
        for one in report.budgets.threads.values()
        for cell in one.cells
    }
    return lambda _, sample: known.get((sample.pid, sample.tid, sample.stack, sample.state), "other")


def first_to_tell(report: ProfileReport) -> list[ThreadBudget]:
    """Of a gang with a late rank one that waits for it, and the late one. Else the first one."""
    threads = report.budgets.training
    late = late_rank(report.budgets, report.comparison)
    if late is None:
        return list(threads[:1])
    waiting = max((one for one in threads if one is not late[0]), key=lambda one: one.share("collective"))
    return [waiting, late[0]]


def training_lines(profile: Profile, budgets: Budgets) -> list[LineTime]:
    """The lines of code of all training threads, most time first."""
    return lines_of(profile, (cell for one in budgets.training for cell in one.cells))


def doubts(budgets: Budgets) -> list[str]:
    """Why the budget should not be trusted far, one line each."""
    few = [one for one in budgets.training if one.few]
    if not few:
        return []
    least = min(one.samples for one in few)
    return [
        f"too few samples ({least}, {FEW_SAMPLES} are needed) to split the time well: use a larger --seconds"
    ]


def interval_pct(threads: Sequence[ThreadBudget]) -> dict[str, float]:
    """Half the width of the 95 % interval of each category's share, of several threads together.

    They are sampled apart, so variances add.
    """
    wall = sum(one.wall_ns for one in threads)
    if not wall:
        return dict.fromkeys(CATEGORIES, 0.0)
    return {
        category: round(
            sum((one.interval_pct[category] * one.wall_ns / wall) ** 2 for one in threads) ** 0.5, 2
        )
        for category in CATEGORIES
    }
