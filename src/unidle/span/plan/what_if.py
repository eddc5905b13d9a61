"""What if a link is lost, or a site is slower than the file states?"""

from __future__ import annotations

from dataclasses import replace
from itertools import pairwise

from unidle.errors import BadInput
from unidle.span.model.link import WanLink, shortest
from unidle.span.model.setting import Setting, Stage
from unidle.span.plan.offer import PlanRequest


def _left(links: tuple[WanLink, ...], pair: str) -> tuple[WanLink, ...]:
    """The links but for ``A-B``. Errors: :class:`unidle.errors.BadInput`."""
    left = tuple(link for link in links if pair not in (f"{link.a}-{link.b}", f"{link.b}-{link.a}"))
    if len(left) == len(links):
        raise BadInput(
            "there is no such link", field="--without-link", value=pair,
            remedy=f"one of {', '.join(f'{link.a}-{link.b}' for link in links)}" if links else "the file has no links",
        )  # fmt: skip
    return left


def without_link(setting: Setting, pair: str) -> Setting:
    """Neighbouring stages take the way of least latency that is left. Errors: :class:`unidle.errors.BadInput`."""
    links = _left(setting.links, pair)
    for a, b in pairwise(site.name for site in setting.sites):
        if shortest(links, a, b) is None:
            raise BadInput(
                f"no link is left between {a} and {b}, which have neighbouring stages", field="--without-link", value=pair,
                remedy="plan again: `unidle span plan FILE --without-link ...`",
            )  # fmt: skip
    return replace(setting, links=links)


def plan_without_link(wanted: PlanRequest, pair: str) -> PlanRequest:
    """The same for a plan. Errors: :class:`unidle.errors.BadInput`."""
    links = _left(wanted.links, pair)
    if not links:
        raise BadInput(
            "is the only link, and without any communication would be free", field="--without-link", value=pair,
            remedy="plan with a file that has one site",
        )  # fmt: skip
    return replace(wanted, links=links)


def slow_site(setting: Setting, text: str) -> Setting:
    """``NAME:FACTOR``: its devices take so many times as long. Errors: :class:`unidle.errors.BadInput`."""
    name, factor = _factor(text, [site.name for site in setting.sites])
    stages = tuple(
        _slower(stage, factor) if setting.sites[k].name == name else stage
        for stage, k in zip(setting.stages, setting.site_of, strict=True)
    )
    return replace(setting, stages=stages)


def plan_slow_site(wanted: PlanRequest, text: str) -> PlanRequest:
    """The same for a plan. Errors: :class:`unidle.errors.BadInput`."""
    name, factor = _factor(text, [offer.name for offer in wanted.offers])
    offers = (
        replace(offer, tflops=offer.tflops / factor) if offer.name == name else offer
        for offer in wanted.offers
    )
    return replace(wanted, offers=tuple(offers))


def _slower(stage: Stage, factor: float) -> Stage:
    return replace(
        stage,
        **{
            name: max(round(getattr(stage, name) * factor), 1) if getattr(stage, name) else 0
            for name in ("forward_ns", "backward_ns", "weight_ns", "recompute_ns")
        },
    )


def _factor(text: str, names: list[str]) -> tuple[str, float]:
    name, _, number = text.rpartition(":")
    try:
        factor = float(number)
    except ValueError:
        factor = 0.0
    if not 0.001 <= factor <= 1000:
        raise BadInput("is not NAME:FACTOR", field="--slow-site", value=text, remedy="for instance ohio:1.5")
    if name not in names:
        raise BadInput(
            "there is no such site in use",
            field="--slow-site",
            value=name,
            remedy=f"one of {', '.join(names)}",
        )
    return name, factor
