"""ATLAS's choice of sites, reconstructed: the paper published no code."""

from __future__ import annotations

from unidle.span.plan.layouts import divisors, variants
from unidle.span.plan.offer import Layout, Wanted


def greedy_layouts(wanted: Wanted) -> list[Layout]:
    """For each number of pipelines: sites by their number of GPUs, each filled before the next, layers spread evenly.

    As many stages as there are devices and layers, or the next smaller number that divides the layers. Prices, links
    and speeds play no part; one that is not linked to the site before it is passed over.
    """
    ranked = sorted(range(len(wanted.offers)), key=lambda k: (-wanted.offers[k].gpus, k))
    found = list[Layout]()
    for pipelines in divisors(wanted.batch):
        whole = min(sum(offer.gpus // pipelines for offer in wanted.offers), wanted.layers)
        for total in sorted({whole, *(n for n in divisors(wanted.layers) if n <= whole)} - {0}):
            filled = _fill(wanted, ranked, pipelines, total)
            if filled is not None:
                made = variants(wanted, *filled, pipelines, even=True)
                found += [each for each in made if each.microbatch == 1][-1:]  # as large a cell as there is
    return found


def _fill(
    wanted: Wanted, ranked: list[int], pipelines: int, total: int
) -> tuple[tuple[int, ...], tuple[int, ...]] | None:
    order, stages = list[int](), list[int]()
    for k in ranked:
        room = wanted.offers[k].gpus // pipelines
        left = total - sum(stages)
        if not left:
            break
        if not room or (order and not wanted.joined(order[-1], k)):
            continue
        order.append(k)
        stages.append(min(room, left))
    return (tuple(order), tuple(stages)) if sum(stages) == total else None
