"""What is left of a setting when sites are lost: layers move over the stages that remain. Pure."""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass, replace
from itertools import pairwise

from unidle.errors import CannotRun
from unidle.span.model.link import WanLink, shortest
from unidle.span.model.setting import Setting, Stage
from unidle.span.plan.partition import balanced
from unidle.span.simulate.routes import parts
from unidle.words import counted


@dataclass(frozen=True, slots=True)
class Survivors:
    """A setting without the sites that were lost, and the layers of each stage; None where their number is not known.

    ``names``: what each device is called in the whole setting, where its stage may have another number.
    """

    setting: Setting
    cut: tuple[int, ...] | None
    names: Mapping[str, str]


def without(setting: Setting, cut: tuple[int, ...] | None, lost: Collection[str]) -> Survivors:
    """The same model on the sites that remain, in their order. Errors: as of :func:`arranged`."""
    return arranged(setting, cut, [site.name for site in setting.sites if site.name not in lost])


def arranged(
    setting: Setting, cut: tuple[int, ...] | None, order: Sequence[str], counts: tuple[int, ...] | None = None
) -> Survivors:
    """The same model on these sites in this order, each with its stages.

    ``counts``: layers of each stage; where they are not given they are spread by speed: so that the slowest stage is as fast as it
    can be. Errors: :class:`CannotRun` where no site is left, two neighbours have no way to each other, or the model does not fit
    (by how many bytes).
    """
    by_name = {site.name: k for k, site in enumerate(setting.sites)}
    lost = sorted(set(by_name) - set(order))
    stages = [s for name in order for s, k in enumerate(setting.site_of) if k == by_name[name]]
    sites = tuple(setting.sites[by_name[name]] for name in order)
    if not stages:
        raise CannotRun(
            f"no site is left without {', '.join(lost)}",
            field="sites",
            remedy="start again when one answers",
        )
    links = tuple(link for link in setting.links if link.a not in lost and link.b not in lost)
    how = f"without {', '.join(lost)} " if lost else ""
    for a, b in pairwise(order):
        if setting.links and shortest(links, a, b) is None:
            back = f", or start again when {', '.join(lost)} answers" if lost else ""
            raise CannotRun(
                f"{how}there is no link between {a} and {b}", field="links",
                remedy=f"add {{from: {a}, to: {b}, ...}}{back}",
            )  # fmt: skip
    old = cut or (100,) * len(
        setting.stages
    )  # the number of layers is not known: shares of the work, in fine parts
    kept = [setting.stages[k] for k in stages]
    counts = counts or _spread(kept, [old[k] for k in stages], sum(old), even=cut is None)
    made = tuple(
        _scaled(stage, count, old[k], setting, old)
        for stage, count, k in zip(kept, counts, stages, strict=True)
    )
    largest = max(1, *(count / old[k] for count, k in zip(counts, stages, strict=True)))
    left = replace(
        setting, stages=made, sites=sites, links=links, static_bytes=round(setting.static_bytes * largest)
    )
    _holds(left, how)
    names_of = {
        left.device(p, k): setting.device(p, stage)
        for p in range(setting.pipelines)
        for k, stage in enumerate(stages)
    }
    return Survivors(left, counts if cut is not None else None, names_of)


def _spread(stages: Sequence[Stage], old: Sequence[int], whole: int, *, even: bool) -> tuple[int, ...]:
    """Layers by speed; ``even``: as ranks cut a model that they have no cut of."""
    counts = balanced(whole, useful_speeds(stages, old), whole)
    if counts is None:
        raise CannotRun(
            f"{counted(whole, 'layer')} are fewer than {counted(len(stages), 'stage')}", field="train.cut",
            remedy="use a model with more layers, or fewer stages",
        )  # fmt: skip
    return parts(whole, len(stages)) if even else counts


def moved(setting: Setting, old: Sequence[int], counts: Sequence[int]) -> Setting:
    """The same stages with other numbers of layers. Errors: :class:`CannotRun` where they do not fit into memory."""
    stages = tuple(
        _scaled(stage, count, before, setting, old)
        for stage, count, before in zip(setting.stages, counts, old, strict=True)
    )
    largest = max(count / before for count, before in zip(counts, old, strict=True))
    made = replace(setting, stages=stages, static_bytes=round(setting.static_bytes * max(largest, 1)))
    _holds(made, f"layers {' '.join(map(str, counts))}: ")
    return made


def useful_speeds(stages: Sequence[Stage], layers: Sequence[int]) -> list[float]:
    """Layers a second of each stage's device."""
    return [count / max(stage.useful_ns, 1) for stage, count in zip(stages, layers, strict=True)]


def _scaled(stage: Stage, count: int, before: int, setting: Setting, old: Sequence[int]) -> Stage:
    """The times of a device for another number of layers; bytes are those of the layers wherever they are."""
    kept = sum(one.kept_bytes for one in setting.stages) * count // sum(old)
    gradient = sum(one.gradient_bytes for one in setting.stages) * count // sum(old)

    def time(value: int) -> int:
        return max(value * count // before, 1) if value else 0

    static = sum(one.static_bytes for one in setting.stages) * count // sum(old)
    measured = any(
        one.input_bytes is not None for one in setting.stages
    )  # which cut it will be is not known here
    return Stage(
        time(stage.forward_ns), time(stage.backward_ns), time(stage.weight_ns), time(stage.recompute_ns), kept, gradient,
        setting.largest_cut_bytes if measured else None, static,
    )  # fmt: skip


def _holds(left: Setting, when: str) -> None:
    if left.memory_cap_bytes is None:
        return
    most = max(stage.kept_bytes for stage in left.stages)
    needed = max(left.held_bytes(s) + left.entering_bytes(s) for s in range(len(left.stages))) + most
    if needed > left.memory_cap_bytes:
        raise CannotRun(
            f"{when}a device would hold {needed:,} bytes, {needed - left.memory_cap_bytes:,} more than it may",
            field="memory_cap_bytes", value=left.memory_cap_bytes,
            remedy="add a site, or start again when the lost one answers",
        )  # fmt: skip


def cut_off(
    links: Sequence[WanLink], sites: Sequence[str], a: str, b: str, weights: Sequence[int]
) -> set[str]:
    """The sites to leave out when the link of ``a`` and ``b`` is gone: those of the lighter part, or the later end.

    Where another way joins the two, the lighter of ``a`` and ``b`` is left out: no plan sends over it.
    """
    rest = [link for link in links if {link.a, link.b} != {a, b}]
    reached, todo = {a}, [a]
    while todo:
        here = todo.pop()
        for link in rest:
            if here in (link.a, link.b):
                there = link.b if here == link.a else link.a
                if there not in reached:
                    reached.add(there)
                    todo.append(there)
    known = dict(zip(sites, weights, strict=True))
    if b in reached:
        return {min((b, a), key=lambda name: known[name])}
    one = {name for name in sites if name in reached}
    other = {name for name in sites if name not in reached}
    return min((other, one), key=lambda part: sum(known[name] for name in part))


def corrected(setting: Setting, measured_ns: dict[tuple[str, str], int]) -> Setting:
    """The setting with links as slow as they were measured: ``measured_ns`` is the wire's time of one transfer, by sites."""
    links = []
    for link in setting.links:
        took = measured_ns.get((link.a, link.b)) or measured_ns.get((link.b, link.a))
        if took and (size := setting.largest_cut_bytes):
            gbps = size * 8 / took
            link = replace(link, capacity_gbps=gbps, flow_gbps=gbps)
        links.append(link)
    return replace(setting, links=tuple(links))
