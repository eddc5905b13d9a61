"""Whether another plan would be faster than the running one, or which plan remains when sites are lost. Pure."""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from itertools import combinations, pairwise, permutations
from typing import Final

from unidle.errors import BadInput, CannotRun
from unidle.span.model.link import shortest
from unidle.span.model.setting import Setting
from unidle.span.plan.partition import balanced
from unidle.span.plan.robust import MORE_NS, robust
from unidle.span.replan.drift import STEADY, Drift, Unsteady, expected_ns
from unidle.span.replan.observed import Remaining
from unidle.span.replan.survivors import arranged, moved, useful_speeds
from unidle.span.simulate.bound import lower_bound_ns
from unidle.span.simulate.iteration import Simulation, Trials
from unidle.span.simulate.schedules import SCHEDULES, Schedule
from unidle.span.simulate.uneven import Modelled, PipelineShares, Together, at_speed, members, simulated
from unidle.words import counted

ALL_MOST: Final = 5  # sites whose orders are all looked at
_STEPS_MOST: Final = 20_000  # of the search for any order at all

Order = tuple[str, ...]
Joined = Callable[[str, str], bool]


def orders(first: Sequence[str], joined: Joined) -> Iterator[Order]:
    """Those in which each site has a way to the next; ``first`` before all others where it is one of them."""
    found = False
    for order in permutations(first) if len(first) <= ALL_MOST else _near(tuple(first)):
        if _holds(order, joined):
            found = True
            yield order
    if not found and len(first) > ALL_MOST and (other := _any(tuple(first), joined)) is not None:
        yield other


def _holds(order: Order, joined: Joined) -> bool:
    return all(joined(a, b) for a, b in pairwise(order))


def _near(first: Order) -> Iterator[Order]:
    """Each stretch the other way around, each site at another place."""
    seen = {first}
    yield first
    for i, j in combinations(range(len(first) + 1), 2):
        turned = (*first[:i], *reversed(first[i:j]), *first[j:])
        if turned not in seen:
            seen.add(turned)
            yield turned
    for i, name in enumerate(first):
        rest = first[:i] + first[i + 1 :]
        for j in range(len(first)):
            moved = (*rest[:j], name, *rest[j:])
            if moved not in seen:
                seen.add(moved)
                yield moved


def _any(first: Order, joined: Joined) -> Order | None:
    """A way through all sites, those with the fewest ways out next; None where a bounded search finds none."""
    ways = {a: [b for b in first if b != a and joined(a, b)] for a in first}
    steps = 0

    def longer(way: Order, left: frozenset[str]) -> Order | None:
        nonlocal steps
        steps += 1
        if not left:
            return way
        if steps > _STEPS_MOST:
            return None
        onward = [b for b in (ways[way[-1]] if way else first) if b in left]
        for following in sorted(onward, key=lambda b: sum(c in left for c in ways[b])):
            if (found := longer((*way, following), left - {following})) is not None:
                return found
        return None

    return longer((), frozenset(first))


SIZE_MOST: Final = (
    25_000  # microbatches x stages of a cell, up to which all schedules are simulated within a second
)
ORDERS_MOST: Final = 8  # orders of the sites that are simulated, those with the least bounds
_ROOMY: Final = 1.2  # how much longer a step may be, without anything late, that is chosen for late transfers
_ALIKE: Final = 1.01  # stages whose layers take as long, but for rounding

Pairs = Collection[frozenset[str]]


@dataclass(frozen=True, slots=True)
class Replan:
    """The plan to continue with. ``planned``: its setting without what was measured; ``names``: of its devices' ranks.

    ``same_ns``: a step of the running plan, None if that cannot continue; it and ``best_ns`` are simulated with what was
    measured. ``order``: of the sites, where it is another than before.
    """

    setting: Setting
    planned: Setting
    schedule: Schedule
    cut: tuple[int, ...] | None
    names: Mapping[str, str]
    same_ns: int | None = None
    best_ns: int = 0
    label: str = ""

    def is_better(self, left: Remaining) -> bool:
        """Whether it is faster than the running plan; always if that cannot continue."""
        return self.same_ns is None or left.is_better(self.same_ns, self.best_ns)

    def is_worth(self, left: Remaining) -> bool:
        """Whether it is worth a restart."""
        return self.same_ns is None or left.is_worth(self.same_ns, self.best_ns)


@dataclass(frozen=True, slots=True)
class _Layout:
    """The stages on their devices, before a schedule is chosen. ``names``: of its devices in the layout before."""

    setting: Setting
    planned: Setting
    cut: tuple[int, ...] | None
    names: Mapping[str, str] | None = None
    said: str = ""


def first_choice(setting: Setting, schedule: Schedule, cut: tuple[int, ...] | None) -> Replan:
    """What a run begins with."""
    names = {
        setting.device(p, s): setting.device(p, s)
        for p in range(setting.pipelines)
        for s in range(len(setting.stages))
    }
    return Replan(setting, setting, schedule, cut, names, label=schedule.name)


def reconsider(
    seen: Drift, now: Replan, running: Modelled, cut: Sequence[int] | None, shares: PipelineShares | None = None,
    broken: Pairs = (),
) -> Replan:  # fmt: skip
    """The best of: the schedule planned again, all others, all of them with layers moved to where they are faster, and sites in other orders.

    ``now``: what runs, as ``running``; ``cut``: layers of each stage, None where their number is not known: then none are moved;
    ``broken``: sites that do not reach each other. What does not fit into memory is passed over.
    """
    known = None if cut is None else tuple(cut)
    same = _again(seen, running)
    search = _Search(now, known, same, shares, seen.weather)
    for layout in _moved(seen, now.planned, known):
        search.all_schedules(layout)
    search.orders(_reordered(now, seen.setting, broken, again=False))
    if search.best is None:  # by what was measured nothing fits, and what runs goes on
        return replace(now, setting=seen.setting, cut=known, same_ns=same, best_ns=same or 0)
    return search.best


def rearranged(
    whole: Replan, lost: Collection[str], broken: Pairs = (), shares: PipelineShares | None = None, *, same: bool = False
) -> Replan:  # fmt: skip
    """The plan without the lost sites, with no two neighbours that cannot reach each other.

    ``same``: keep the order and the schedule if possible. Errors: :class:`CannotRun` where no site is left,
    they cannot follow each other, or the model does not fit (by how many bytes).
    """
    known, search = whole.cut, _Search(whole, whole.cut, None, shares)
    kept = [site.name for site in whole.setting.sites if site.name not in lost]
    if known is not None and len(known) != len(whole.setting.stages):  # of chunks, not of stages
        left = arranged(whole.planned, known, kept)
        return replace(whole, setting=left.setting, planned=left.setting, cut=left.cut, names=left.names)
    search.orders(_reordered(whole, whole.setting, broken, lost, again=True), first_alone=same)
    if search.best is not None:
        return search.best
    arranged(whole.planned, known, kept)  # says why, if it is the links that there are, or memory
    raise CannotRun(
        f"{', '.join(kept)} cannot follow each other in any order that fits into memory", field="links",
        remedy="add a link or a site, or start again when links are up",
    )  # fmt: skip


class _Search:
    """The best so far of the layouts that it was given."""

    def __init__(
        self, now: Replan, cut: tuple[int, ...] | None, same_ns: int | None, shares: PipelineShares | None,
        weather: Unsteady = STEADY,
    ) -> None:  # fmt: skip
        self._now, self._cut, self._same_ns, self._shares, self._weather = now, cut, same_ns, shares, weather
        self.best: Replan | None = None

    def all_schedules(self, layout: _Layout) -> None:
        for schedule in _schedules(layout.setting, self._now.schedule, self._weather):
            self._take(layout, schedule)

    def orders(self, found: Iterable[_Layout], *, first_alone: bool = False) -> None:
        """The first and those with the least bounds, with the run's schedule; the best of them with all others, too.

        ``first_alone``: no other order and no other schedule, where the first is the one that they had, and fits into memory.
        """
        known, winner = list(found), None
        if first_alone and known and not known[0].said and self._take(known[0], self._now.schedule):
            return
        others = sorted(known[1:], key=lambda layout: lower_bound_ns(layout.setting))
        for layout in (*known[:1], *others[: ORDERS_MOST - 1]):
            if self._take(layout, self._now.schedule):
                winner = layout
        if winner is not None:
            self.all_schedules(winner)

    def _take(self, layout: _Layout, schedule: Schedule) -> bool:
        """Whether it is the best so far."""
        try:
            found = simulated(layout.setting, schedule, self._shares, checked=False)
        except BadInput:
            return False
        told, takes_ns = found.result, _lasting(found, layout.setting, self._weather)
        if self.best is not None and takes_ns >= self.best.best_ns:
            return False
        layers = f", layers {' '.join(map(str, layout.cut))}" if layout.cut not in (None, self._cut) else ""
        names = self._now.names
        if layout.names is not None:
            names = {new: self._now.names[old] for new, old in layout.names.items()}
        self.best = Replan(
            layout.setting, layout.planned, schedule, layout.cut, names, self._same_ns, takes_ns,
            f"{told.schedule} ({told.chosen}){layers}{layout.said}",
        )  # fmt: skip
        return True


def _lasting(found: Modelled, setting: Setting, weather: Unsteady) -> int:
    """A step in that weather, on average."""
    if weather and isinstance(found, Simulation) and (expected := expected_ns(found, setting, weather)):
        return expected
    return found.result.iteration_ns


def _again(seen: Drift, running: Modelled) -> int | None:
    """A step of the running plan with other times; of the slowest group if the pipelines are not all equal."""
    setting, took = seen.setting, []
    if seen.weather and isinstance(running, Simulation):
        expected = expected_ns(running, setting, seen.weather)
        if expected is not None:
            return expected

    for each, speed in zip(members(running), _speeds(running), strict=True):
        stages = tuple(at_speed(stage, speed) for stage in setting.stages)
        own = replace(each.simulation.setting, links=setting.links, stages=stages)
        took.append(Trials(own)(each.simulation.program))
    known = [ns for ns in took if ns is not None]
    return max(known) if len(known) == len(took) else None


def _speeds(running: Modelled) -> list[float]:
    return [group.speed for group in running.groups] if isinstance(running, Together) else [1.0]


def _moved(seen: Drift, planned: Setting, cut: tuple[int, ...] | None) -> Iterator[_Layout]:
    """As it is first, then with layers by the speeds that were measured."""
    setting = seen.setting
    yield _Layout(setting, planned, cut)
    if cut is None or len(cut) != len(setting.stages) or not seen.stages:
        return
    whole = sum(cut)
    counts = balanced(whole, useful_speeds(setting.stages, cut), whole)
    if counts is None or counts == cut:
        return
    try:
        yield _Layout(moved(setting, cut, counts), moved(planned, cut, counts), counts)
    except CannotRun:  # it does not fit
        return


def _reordered(
    now: Replan, measured: Setting, broken: Pairs, lost: Collection[str] = (), *, again: bool
) -> Iterator[_Layout]:
    """The sites in every order that links allow. ``measured``: the setting of ``now`` with what was; ``again``: the order that they have, too.

    Where layers of stages differ in what they take, a site's times may be those of its layers: then only the order that they
    have. So do schedules that are not ours to know, and those that come around to the first stage.
    """
    cut = now.cut
    if cut is not None and len(cut) != len(measured.stages):
        return
    setting, planned = (_within(each, broken, lost) for each in (measured, now.planned))
    kept = tuple(site.name for site in setting.sites if site.name not in lost)
    free = now.schedule.name in SCHEDULES and now.schedule.name != "interleaved"
    free = free and bool(setting.links) and _are_alike(planned, cut)
    for order in orders(kept, _joins(setting, kept, broken, linked=bool(measured.links))):
        if order == kept and not again:
            continue
        if order != kept and not free:
            return
        try:
            left = arranged(setting, cut, order)
            plain = arranged(planned, cut, order, left.cut)
        except CannotRun:  # it does not fit
            continue
        said = "" if order == kept else f", in the order {' - '.join(order)}"
        yield _Layout(left.setting, plain.setting, left.cut, left.names, said)


def _within(setting: Setting, broken: Pairs, lost: Collection[str]) -> Setting:
    """Without links that are not there."""
    links = (link for link in setting.links if not {link.a, link.b} & set(lost))
    return replace(setting, links=tuple(link for link in links if frozenset((link.a, link.b)) not in broken))


def _joins(
    setting: Setting, kept: Sequence[str], broken: Pairs, *, linked: bool
) -> Callable[[str, str], bool]:
    """Whether two sites may follow each other: over a link of their own; as they are, also over links of others.

    ``linked``: whether there were any links before some were lost; without, communication is free.
    """
    direct = {frozenset((link.a, link.b)) for link in setting.links}
    known = {
        frozenset(pair) for pair in pairwise(kept) if not linked or shortest(setting.links, *pair) is not None
    }
    ways = (direct | known) - set(broken)
    return lambda a, b: frozenset((a, b)) in ways


def _are_alike(planned: Setting, cut: Sequence[int] | None) -> bool:
    """Whether a layer takes as long in each stage."""
    counts = cut or (1,) * len(planned.stages)
    each = [stage.useful_ns / count for stage, count in zip(planned.stages, counts, strict=True)]
    return max(each) <= _ALIKE * min(each)


def _schedules(setting: Setting, first: Schedule, weather: Unsteady) -> Iterator[Schedule]:
    """The run's own, then the built-in ones whose parts are stages; with more room where transfers come late."""
    yield first
    if setting.microbatches * len(setting.stages) * setting.cell > SIZE_MOST or first.name == "interleaved":
        return
    for name, schedule in SCHEDULES.items():
        if name not in (first.name, "interleaved"):
            yield robust(schedule) if name == "unidle" else schedule
    if weather:
        yield robust(SCHEDULES["unidle"], MORE_NS + 2 * weather.late_ns, _ROOMY)


def said(choice: Replan, seen: Drift, left: Remaining) -> str:
    """The decision in one sentence."""
    if not choice.is_better(left):
        return f"not as planned: {seen}; no other plan is better by 5 %"
    if not choice.is_worth(left):
        return f"not as planned: {seen}; {choice.label} would win less in {counted(left.steps, 'step')} than a restart takes"
    same = "cannot continue" if choice.same_ns is None else f"{choice.same_ns / 1e6:.1f} ms a step like this"
    return f"not as planned: {seen}; {same}, {choice.best_ns / 1e6:.1f} with {choice.label}: from the next checkpoint on"
