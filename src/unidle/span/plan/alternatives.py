"""What else there was: a plan's layout under the other schedules, and what it would take with a site that it leaves out."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, replace
from typing import Final, NamedTuple

from unidle.errors import BadInput
from unidle.span.plan.layouts import layouts
from unidle.span.plan.offer import SiteLayout, layers_most, setting_of
from unidle.span.plan.search import WORK_MOST, LayoutPlan, LayoutQueue, Search
from unidle.span.simulate.iteration import ScheduleResult, simulate
from unidle.span.simulate.schedules import SCHEDULES
from unidle.words import counted

SIZE_MOST: Final = 25_000  # microbatches x stages of a cell, up to which all of them take less than a second
_OTHERS: Final = tuple(name for name in SCHEDULES if name != "unidle")  # they do not search


class NotCompared(NamedTuple):
    schedule: str
    because: str


@dataclass(frozen=True, slots=True)
class ScheduleComparison:
    """The plan's own result first, then the others' in the order of their time."""

    results: tuple[ScheduleResult, ...]
    missing: tuple[NotCompared, ...]


def compare(plan: LayoutPlan) -> ScheduleComparison:
    """The plan's layout under the schedules that do not search; those that cannot be simulated say why."""
    setting = setting_of(plan.wanted, plan.layout)
    size = len(setting.stages) * setting.microbatches * setting.cell
    found, missing = list[ScheduleResult](), list[NotCompared]()
    for name in _OTHERS:
        if name == plan.result.schedule:
            continue
        if size > SIZE_MOST:
            because = f"{size:,} microbatches x stages of a cell are more than the {SIZE_MOST:,} that take less than a second"
            missing.append(NotCompared(name, because))
            continue
        if name == "interleaved" and min(plan.layout.layers) < setting.chunks:
            because = (
                f"a stage has {min(plan.layout.layers)} of the {setting.chunks} layers that its chunks need"
            )
            missing.append(NotCompared(name, because))
            continue
        try:
            found.append(simulate(setting, SCHEDULES[name], checked=False).result)
        except BadInput as error:
            missing.append(NotCompared(name, error.problem))
    ranked = sorted(found, key=lambda result: result.iteration_ns)
    return ScheduleComparison((plan.result, *ranked), tuple(missing))


_ROUNDS: Final = 10  # times that a plan may get better by what is simulated here


class LeftOut(NamedTuple):
    site: str
    because: str


@dataclass(frozen=True, slots=True)
class With:
    """What layouts take that use a site: the best one simulated (None: none was), and what none can beat (None: no layout)."""

    found: float | None
    bound: float | None


def reconsidered(plan: LayoutPlan, *, better: bool = True) -> tuple[LayoutPlan, tuple[LeftOut, ...]]:
    """Each site that is not in use, with the reason, found by simulation of the best layout with it (by its bound).

    If such a layout is better than the plan it becomes the plan (``better``), and the other sites are tried again.
    """
    for _ in range(_ROUNDS):
        search, tried = _tried(plan)
        found = search.best
        plan = replace(plan, done=search.done, simulated=len(search.done))
        if not better or found is None or found[0] >= plan.value:
            break
        plan = replace(plan, value=found[0], layout=found[1], result=found[2], proved=False)
    return plan, tuple(_reasons(plan, tried))


def _tried(plan: LayoutPlan) -> tuple[Search, dict[int, With]]:
    wanted = plan.wanted
    search = Search(wanted, plan.objective, SCHEDULES[plan.schedule], dict(plan.done))
    search.best = (plan.value, plan.layout, plan.result)
    outs = [k for k in range(len(wanted.offers)) if k not in plan.layout.order]
    using: dict[int, list[SiteLayout]] = {k: [] for k in outs}
    for layout in layouts(wanted) if outs else ():
        for k in using.keys() & set(layout.order):
            using[k].append(layout)
    firsts = {k: first for k, those in using.items() if (first := LayoutQueue(search, those).first())}
    # What may be better comes first: the work is limited.
    for _, layout in sorted(firsts.values(), key=lambda first: first[0]):
        if search.work < WORK_MOST:
            search.take(layout)
    return search, {k: With(_best(search, k), firsts[k][0] if k in firsts else None) for k in outs}


def _best(search: Search, site: int) -> float | None:
    return min((value for layout, value in search.done.items() if site in layout.order), default=None)


def _reasons(plan: LayoutPlan, tried: dict[int, With]) -> Iterator[LeftOut]:
    for k, found in tried.items():
        if k in plan.layout.order:
            continue
        yield LeftOut(plan.wanted.offers[k].name, "; ".join([*_facts(plan, k), _compared(plan, k, found)]))


def _facts(plan: LayoutPlan, site: int) -> Iterator[str]:
    """What it has, and by how much that falls short of what the plan needs."""
    wanted, offer, layout = plan.wanted, plan.wanted.offers[site], plan.layout
    short = layout.pipelines - offer.gpus
    yield counted(offer.gpus, "GPU") + (
        f", {short} fewer than the {layout.pipelines} pipelines that each need one there" if short > 0 else ""
    )
    missing = plan.result.peak_memory_bytes - (offer.cap_bytes or plan.result.peak_memory_bytes)
    if missing > 0:
        yield f"a device holds {offer.cap_bytes:,} bytes, {missing:,} fewer than those of this plan need"
    near = [link for k in layout.order if (link := wanted.link(site, k)) is not None]
    if near:
        way = min(near, key=lambda link: link.latency_ns)
        yield f"{way.latency_ns / 1e6:g} ms and {way.capacity_gbps:g} Gbit/s to the nearest site in use"
    elif not any(wanted.joined(site, k) for k in layout.order):
        yield "no link joins it to the sites in use"


def _compared(plan: LayoutPlan, site: int, tried: With) -> str:
    here = _figure(plan, plan.value)
    if tried.bound is None:
        return _holds(plan, site)
    bound = _figure(plan, tried.bound)
    if tried.found is None:
        return f"with it at least {bound} (not simulated), without it {here}"
    if tried.found == float("inf"):
        return f"the best layout with it by its bound ({bound}) does not fit into memory; without it {here}"
    return f"with it at best found {_figure(plan, tried.found)} (bound {bound}), without it {here}"


def _holds(plan: LayoutPlan, site: int) -> str:
    """That no layout can use it, and how many bytes are missing."""
    wanted, offer = plan.wanted, plan.wanted.offers[site]
    if not layers_most(wanted, offer.cap_bytes, 1):
        one = wanted.one_layer_bytes()
        return (
            f"a device of its {offer.cap_bytes or 0:,} bytes does not hold one layer: {one - (offer.cap_bytes or 0):,} bytes"
            " are missing"
        )
    held = layers_most(wanted, offer.cap_bytes, 1) * offer.gpus
    if held < wanted.layers:
        return (
            f"alone it holds {'at most ' if wanted.measured else ''}{held} of {wanted.layers} layers:"
            f" {'at least ' if wanted.measured else ''}{(wanted.layers - held) * wanted.least_layer_bytes():,} bytes are"
            " missing, and no chain of links with others holds the model with this batch"
        )
    return "no layout that was considered can use it"


def _figure(plan: LayoutPlan, value: float) -> str:
    told = f"{value / 1e6:,.3f} ms" if plan.objective == "time" else f"{value:.6g} in money"
    return told + (" expected" if plan.wanted.saving else "")
