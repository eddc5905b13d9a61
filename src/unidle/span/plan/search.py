"""Which sites train a model, in which order, with how many stages, pipelines and layers: the least time or money.

Every layout has a bound that no schedule beats. They are taken in the order of their bounds, and simulated until the
best one simulated is no worse than the next bound: then no other can be better, and the plan is *proved*. Where many
layouts are close the search ends earlier, and what is printed is how far the bound is.
"""

from __future__ import annotations

import heapq
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field
from typing import Final, Literal

import numpy as np

from unidle.errors import BadInput
from unidle.span.plan.estimate import Known, cost_at, quick_ns, time_at
from unidle.span.plan.layouts import greedy_layouts, is_small, layouts
from unidle.span.plan.offer import PlanRequest, SiteLayout, setting_of
from unidle.span.simulate.bound import lower_bound_ns
from unidle.span.simulate.iteration import ScheduleResult, simulate
from unidle.span.simulate.schedules import SCHEDULES, Schedule
from unidle.words import counted

Objective = Literal["time", "cost"]
WORK_MOST: Final = 4_000_000  # operations of one kind that are simulated at most
WORK_MANY: Final = 800_000  # the same where layouts are thinned: greedy's and the best by its bound
_SEARCHED: Final = 400_000  # what a schedule that searches simulates of one setting


@dataclass(frozen=True, slots=True)
class LayoutPlan:
    """A layout with its simulated iteration.

    ``lower_bound_ns``: no considered layout with any schedule takes less; ``bound``: the same in the objective's unit,
    ``value`` that of the plan. ``proved``: no considered layout is better under the schedule. ``considered``: layouts,
    of which ``simulated`` were; ``exhaustive``: they were all orders and numbers of stages. ``done``: what those took
    that were simulated.
    """

    wanted: PlanRequest
    layout: SiteLayout
    result: ScheduleResult
    objective: Objective
    value: float
    bound: float
    lower_bound_ns: int
    proved: bool
    considered: int
    simulated: int
    exhaustive: bool
    done: Mapping[SiteLayout, float]
    schedule: str
    greedy: float | None = None

    @property
    def gap_pct(self) -> float:
        """How much worse than the bound, in percent."""
        return 100 * (self.value / self.bound - 1) if self.bound > 0 else 0.0


@dataclass(slots=True)
class Search:
    """What was simulated so far: in the objective's unit, infinite where it does not fit into memory."""

    wanted: PlanRequest
    objective: Objective
    schedule: Schedule
    done: dict[SiteLayout, float] = field(default_factory=dict)
    best: tuple[float, SiteLayout, ScheduleResult] | None = None
    work: int = 0

    def measure(self, layout: SiteLayout, iteration_ns: int) -> float:
        """Time or money of a layout that takes so long, as they are to be expected."""
        if self.objective == "time":
            return time_at(self.wanted, layout, iteration_ns)
        return cost_at(self.wanted, layout, iteration_ns)

    def take(self, layout: SiteLayout) -> float | None:
        """Simulate it; None where the schedule does not fit into memory."""
        if layout in self.done:
            return self.done[layout]
        setting = setting_of(self.wanted, layout)
        self.work += max(_SEARCHED, 3 * len(setting.stages) * setting.microbatches * setting.cell)
        try:
            result = simulate(setting, self.schedule, checked=False).result
        except BadInput:
            self.done[layout] = float("inf")
            return None
        value = self.measure(layout, result.iteration_ns)
        self.done[layout] = value
        if value == float("inf"):  # revoked so often that it never ends
            return None
        if self.best is None or value < self.best[0]:
            self.best = (value, layout, result)
        return value


def plan(
    wanted: PlanRequest,
    objective: Objective = "time",
    schedule: str = "unidle",
    *,
    work_most: int | None = -1,
) -> LayoutPlan:
    """The best layout; ``work_most``: operations that may be simulated, None: until it is proved, -1: as usual.

    Never worse than :func:`greedy`, whose layout is the first that is simulated. Errors:
    :class:`unidle.errors.BadInput` where nothing holds the model.
    """
    if work_most == -1:
        work_most = WORK_MOST if is_small(wanted) else WORK_MANY
    search = Search(wanted, objective, SCHEDULES[schedule])
    first = _greedy_pick(search)
    theirs = search.take(first) if first else None
    queue = LayoutQueue(search, layouts(wanted))
    if not queue.count and first is None:
        raise cannot(wanted)
    proved = queue.run(work_most)
    return _finish(search, queue, proved, theirs)


def greedy(wanted: PlanRequest, objective: Objective = "time", schedule: str = "unidle") -> LayoutPlan:
    """ATLAS's, reconstructed: sites by their number of GPUs, each filled before the next."""
    search = Search(wanted, objective, SCHEDULES[schedule])
    first = _greedy_pick(search)
    if first is None:
        raise cannot(wanted)
    theirs = search.take(first)
    return _finish(search, LayoutQueue(search, layouts(wanted)), False, theirs)


def brute(wanted: PlanRequest, objective: Objective = "time", schedule: str = "unidle") -> LayoutPlan:
    """Every considered layout is simulated, and ATLAS's."""
    search = Search(wanted, objective, SCHEDULES[schedule])
    first = _greedy_pick(search)
    theirs = search.take(first) if first else None
    queue = LayoutQueue(search, layouts(wanted))
    for layout in queue.all():
        search.take(layout)
    return _finish(search, queue, True, theirs)


PLANNERS: Final[dict[str, Callable[[PlanRequest, Objective, str], LayoutPlan]]] = {
    "ours": plan, "greedy": greedy, "brute": brute,
}  # fmt: skip


class LayoutQueue:
    """Layouts in the order of their bounds; a bound is made exact only when its turn comes."""

    def __init__(self, search: Search, found: Iterable[SiteLayout]) -> None:
        self._search = search
        self._heap: list[tuple[float, int, bool, int, SiteLayout]] = []
        self.taken = list[float]()
        known: Known = {}
        for layout in found:
            quick = quick_ns(search.wanted, layout, known)
            value = search.measure(layout, quick)
            self._heap.append((value, len(self._heap), False, quick, layout))
        self.count = len(self._heap)
        self.quick_ns = min((entry[3] for entry in self._heap), default=0)
        heapq.heapify(self._heap)

    def all(self) -> list[SiteLayout]:
        return [entry[4] for entry in sorted(self._heap)]

    def bound(self) -> float | None:
        """No layout that is left is better."""
        found = self.first()
        return found[0] if found else None

    def first(self) -> tuple[float, SiteLayout] | None:
        """The layout that is left with the least bound."""
        while self._heap:
            value, turn, exact, quick, layout = self._heap[0]
            if exact:
                return value, layout
            tight = max(lower_bound_ns(setting_of(self._search.wanted, layout)), quick)
            heapq.heapreplace(self._heap, (self._search.measure(layout, tight), turn, True, tight, layout))
        return None

    def run(self, work_most: int | None) -> bool:
        """Simulate in order; whether the best is proved."""
        search = self._search
        while self._heap:
            if search.best is not None and self._heap[0][0] >= search.best[0]:
                return True
            value = self.bound()
            if value is None or (search.best is not None and value >= search.best[0]):
                return True
            if work_most is not None and search.best is not None and search.work >= work_most:
                return False
            least, _, _, _, layout = heapq.heappop(self._heap)
            self.taken.append(least)
            search.take(layout)
        return True


def _greedy_pick(search: Search) -> SiteLayout | None:
    """Of its layouts (one for each number of pipelines and stages) the one with the least bound."""
    found = greedy_layouts(search.wanted)
    ranked = [(search.measure(each, quick_ns(search.wanted, each)), k) for k, each in enumerate(found)]
    return found[min(ranked)[1]] if ranked else None


def _finish(search: Search, queue: LayoutQueue, proved: bool, theirs: float | None) -> LayoutPlan:
    if search.best is None:
        if search.wanted.saving is not None:
            raise BadInput(
                "with so many revocations, or so little memory, no layout ever ends an iteration",
                field="revocations_per_hour", remedy="save more often, or use devices that stay longer",
            )  # fmt: skip
        raise cannot(search.wanted)
    value, layout, result = search.best
    bounds = [*queue.taken, search.measure(layout, result.lower_bound_ns)]
    if (left := queue.bound()) is not None:
        bounds.append(left)
    bound = min(bounds)
    undisturbed = search.objective == "time" and search.wanted.saving is None
    least_ns = int(bound) if undisturbed else min(queue.quick_ns, result.iteration_ns)
    return LayoutPlan(
        search.wanted, layout, result, search.objective, value, bound, least_ns, proved, queue.count, len(search.done),
        is_small(search.wanted), search.done, search.schedule.name, theirs,
    )  # fmt: skip


def cannot(wanted: PlanRequest) -> BadInput:
    """Why no layout is left: memory, by how many bytes."""
    if wanted.measured is not None:
        return _cannot_measured(wanted)
    needed = wanted.layers * wanted.state_bytes
    shape = wanted.shape(1)
    held = 0
    short = list[int]()
    one = wanted.one_layer_bytes()
    for offer in wanted.offers:
        if offer.cap_bytes is None:
            continue
        short.append(one - offer.cap_bytes)
        room = (offer.cap_bytes - wanted.static_bytes - shape.activation_bytes) // max(
            wanted.state_bytes + shape.kept_bytes, 1
        )
        held += max(room, 0) * offer.gpus
    if short and len(short) == len(wanted.offers):
        if min(short) > 0:
            return BadInput(
                f"one layer with one microbatch needs {one:,} bytes, {min(short):,} more than the largest device holds",
                field="memory_cap_bytes", value=one - min(short), remedy="use devices with more memory",
            )  # fmt: skip
        if held < wanted.layers:
            missing = (wanted.layers - held) * (wanted.state_bytes + shape.kept_bytes)
            return BadInput(
                f"all devices together hold {held} of {wanted.layers} layers: {missing:,} bytes are missing (weights and"
                f" optimizer state of the model are {needed:,})",
                field="sites", remedy="add sites or devices, or use devices with more memory",
            )  # fmt: skip
    return _no_chain("a batch that more numbers of pipelines divide")


def _no_chain(batch: str) -> BadInput:
    return BadInput(
        "no chain of linked sites holds the model with this batch", field="sites",
        remedy=f"add links or devices, or {batch}",
    )  # fmt: skip


def _cannot_measured(wanted: PlanRequest) -> BadInput:
    """The same for layers that were measured, in microbatches of one size."""
    measured, one = wanted.measured, wanted.one_layer_bytes()
    assert measured is not None
    if wanted.batch % measured.microbatch:
        return BadInput(
            f"is no multiple of the {counted(measured.microbatch, 'sequence')} that layers were measured with",
            field="batch", value=wanted.batch, remedy="change it, or measure with another --microbatch",
        )  # fmt: skip
    caps = [offer.cap_bytes for offer in wanted.offers]
    known = [cap for cap in caps if cap is not None]
    if len(known) == len(caps):
        if one > max(known):
            largest = int(np.diagonal(measured.needed_bytes, 1).argmax())
            return BadInput(
                f"layer {largest} with one microbatch needs {one:,} bytes, {one - max(known):,} more than the largest device"
                " holds", field="memory_cap_bytes", value=max(known), remedy="use devices with more memory",
            )  # fmt: skip
        least = int(measured.sums["state_bytes"][-1] + measured.sums["kept_bytes"][-1])
        room = sum(
            offer.gpus * max(cap - wanted.static_bytes, 0)
            for offer, cap in zip(wanted.offers, known, strict=True)
        )
        if least > room:
            return BadInput(
                f"all devices together hold {room:,} bytes of layers, and {least - room:,} are missing for all of them",
                field="sites", remedy="add sites or devices, or use devices with more memory",
            )  # fmt: skip
    return _no_chain("a batch that more numbers of pipelines divide, or a larger memory_cap_bytes")
