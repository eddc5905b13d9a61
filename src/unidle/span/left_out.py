"""Why a plan does without a site, in words and figures."""

from __future__ import annotations

from collections.abc import Iterator
from typing import NamedTuple

from unidle.span.offer import layers_most
from unidle.span.plan import Plan
from unidle.words import counted


class LeftOut(NamedTuple):
    site: str
    because: str


def left_out(plan: Plan) -> Iterator[LeftOut]:
    """Each site that is not in use, with the reason."""
    for k, offer in enumerate(plan.wanted.offers):
        if k not in plan.layout.order:
            yield LeftOut(offer.name, _because(plan, k))


def _because(plan: Plan, site: int) -> str:
    wanted, offer = plan.wanted, plan.wanted.offers[site]
    if not layers_most(wanted, offer.cap_bytes, 1):
        one = wanted.one_layer_bytes()
        return (
            f"a device of its {offer.cap_bytes or 0:,} bytes does not hold one layer: {one - (offer.cap_bytes or 0):,} bytes"
            " are missing"
        )
    near = [k for k in plan.layout.order if wanted.joined(site, k)]
    if not near:
        return "no link joins it to the sites in use" + _compared(plan, site)
    ways = [link for k in near if (link := wanted.link(site, k)) is not None]
    parts = [counted(offer.gpus, "GPU")]
    if offer.gpus < plan.layout.pipelines:
        parts[0] += f", fewer than the {plan.layout.pipelines} pipelines that each need one there"
    if ways:
        way = min(ways, key=lambda link: link.latency_ns)
        parts.append(
            f"{way.latency_ns / 1e6:g} ms and {way.capacity_gbps:g} Gbit/s to the nearest site in use"
        )
    return "; ".join(parts) + _compared(plan, site)


def _compared(plan: Plan, site: int) -> str:
    found = plan.with_site[site]
    if found is None:
        return "; no layout that was considered can use it"
    value, simulated = found
    here, there = _figure(plan, plan.value), _figure(plan, value)
    if value < plan.value:
        return f"; the plan takes {here}, and what was not simulated with it takes at least {there}"
    how = "the best simulated with it takes" if simulated else "with it an iteration takes at least"
    return f"; {how} {there}, without it {here}"


def _figure(plan: Plan, value: float) -> str:
    return f"{value / 1e6:,.3f} ms" if plan.objective == "time" else f"{value:.6g} in money"
