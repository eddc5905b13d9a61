"""Settings of every kind, small."""

from __future__ import annotations

from itertools import pairwise

from hypothesis import strategies as st

from unidle.span.model.link import WanLink
from unidle.span.model.setting import Setting, Site, Stage

MS = 1_000_000


def uniform(stages: int, microbatches: int, forward: int, backward: int, weight: int) -> Setting:
    """Stages that are alike in one site, where communication is free."""
    shape = Stage(forward, backward, weight)
    return Setting((shape,) * stages, microbatches, (Site("here", stages),))


@st.composite
def settings(draw: st.DrawFn, *, capped: bool = True) -> Setting:
    """One to three sites with links, uneven stages and cuts, cells, a cap that is tight or wide or none."""
    sites = tuple(Site(f"s{k}", draw(st.integers(1, 2))) for k in range(draw(st.integers(1, 3))))
    times = st.integers(1, 400)
    size, kept, uneven = draw(st.integers(0, 3000)), draw(st.integers(0, 5000)), draw(st.booleans())
    stages = tuple(
        Stage(
            draw(times),
            draw(times),
            draw(times),
            draw(st.sampled_from([0, 1, 150])),
            draw(st.integers(0, kept)) if uneven else kept,
            draw(st.integers(0, 900)),
            draw(st.one_of(st.none(), st.integers(0, size))) if uneven else None,
            draw(st.integers(0, 60)) if uneven else 0,
        )
        for site in sites
        for _ in range(site.stages)
    )
    links = tuple(
        WanLink(
            a.name, b.name, draw(st.integers(0, 900)), draw(st.sampled_from([5.0, 40.0, 333.0])), None, 0.1
        )
        for a, b in pairwise(sites)
    )
    if len(links) == 2 and draw(st.booleans()):
        links += (WanLink(sites[0].name, sites[2].name, draw(st.integers(0, 900)), 20.0),)
    microbatches = draw(st.integers(1, 6))
    cell = draw(st.integers(1, 3))
    cap = None
    if capped and draw(st.booleans()):
        cap = (
            77
            + 60 * uneven
            + size
            + kept
            + draw(st.integers(0, 6)) * (size + kept) // draw(st.integers(1, 3))
        )
    return Setting(
        stages, microbatches, sites, links, cell * draw(st.integers(1, 2)), cell, size, 77, cap,
        draw(st.sampled_from([None, 100.0, 900.0])), draw(st.booleans()), draw(st.integers(1, 3)),
    )  # fmt: skip
