"""The layouts that a plan considers: all of them where they are few, else a thinned set; and those that ATLAS would take."""

from __future__ import annotations

import heapq
import math
from collections.abc import Iterator, Sequence
from functools import lru_cache
from itertools import accumulate, combinations, pairwise, permutations, product
from typing import Final

from unidle.span.model.layers import ModelCosts
from unidle.span.plan.offer import PlanRequest, SiteLayout, cap_of, layers_most
from unidle.span.plan.partition import balanced, balanced_cut, even_cut

EXHAUSTIVE_MOST: Final = 4000  # layouts, before microbatches and cells
_SITES_ALL: Final = 6  # up to so many sites every subset is considered
_WORK_MOST: Final = 60_000  # stages x microbatches x cell that are simulated
_MICROBATCHES: Final = (1, 2, 4, 8)
_CELLS: Final = (1, 2, 4)
_SLACKS: Final = (1.0, 1.25, 2.0)  # how much longer the slowest stage may take for fewer bytes between sites
_FEW: Final = ((1, 2), (1, 4))  # the same where layouts are thinned


def is_small(wanted: PlanRequest) -> bool:
    """Whether every order and every number of stages is considered."""
    if len(wanted.offers) > _SITES_ALL:
        return False
    orders = sum(math.perm(len(wanted.offers), k) for k in range(1, len(wanted.offers) + 1))
    total = 0
    for count in divisors(wanted.batch):
        caps = [min(offer.gpus // count, wanted.layers) for offer in wanted.offers]
        total += orders * math.prod(cap for cap in caps if cap)
        if total > EXHAUSTIVE_MOST:
            return False
    return True


def layouts(wanted: PlanRequest) -> Iterator[SiteLayout]:
    """Everything that is considered."""
    small = is_small(wanted)
    orders = list(_all_orders(wanted) if small else _few_orders(wanted))
    for pipelines in divisors(wanted.batch):
        caps = [offer.gpus // pipelines for offer in wanted.offers]
        for order in orders:
            if all(caps[k] for k in order):
                for stages in _stage_counts(wanted, [caps[k] for k in order], small=small):
                    yield from variants(wanted, order, stages, pipelines, few=not small)


def variants(
    wanted: PlanRequest,
    order: tuple[int, ...],
    stages: tuple[int, ...],
    pipelines: int,
    *,
    even: bool = False,
    few: bool = False,
) -> Iterator[SiteLayout]:
    """Sizes of microbatch and cell for given stages; ``even``: layers without regard to speed."""
    speeds = [
        1.0 if even else wanted.offers[k].tflops
        for k, count in zip(order, stages, strict=True)
        for _ in range(count)
    ]
    allowed = _FEW if few else (_MICROBATCHES, _CELLS)
    cap, each = cap_of(wanted, order), wanted.batch // pipelines
    cells = [cell for cell in allowed[1] if pipelines % cell == 0] if len(order) > 1 and wanted.links else [1]
    sizes = allowed[0] if wanted.measured is None else (wanted.measured.microbatch,)
    before: dict[int, list[tuple[int, ...]]] = {}
    for microbatch in (size for size in divisors(each) if size in sizes):
        most = min(layers_most(wanted, cap, microbatch), wanted.layers)
        if most not in before:
            before[most] = list(_cuts(wanted, stages, speeds, cap, most, even=even))
        for layers, cell in product(before[most], cells):
            if cell > 1 and len(speeds) * (each // microbatch) * cell > _WORK_MOST:
                continue
            yield SiteLayout(order, stages, layers, pipelines, cell, microbatch)


def _cuts(
    wanted: PlanRequest,
    stages: tuple[int, ...],
    speeds: list[float],
    cap: int | None,
    most: int,
    *,
    even: bool,
) -> Iterator[tuple[int, ...]]:
    """Layers of each stage: balanced; measured ones also with fewer bytes between sites and a slower slowest stage."""
    measured = wanted.measured
    if measured is None:
        found = balanced(wanted.layers, speeds, most)
        cuts = [] if found is None else [found]
    else:
        room = None if cap is None else cap - wanted.static_bytes
        borders = tuple(accumulate(stages))[:-1] if wanted.links else ()
        if even:
            tried = [even_cut(measured, len(speeds), room)]
        else:
            tried = [
                _cut(measured, tuple(speeds), room, borders, slack)
                for slack in _SLACKS[: 1 + 2 * bool(borders)]
            ]
        cuts = [cut for cut in tried if cut is not None]
    yield from dict.fromkeys(cuts)


@lru_cache(maxsize=1 << 14)
def _cut(
    measured: ModelCosts, speeds: tuple[float, ...], room: int | None, borders: tuple[int, ...], slack: float
) -> tuple[int, ...] | None:
    return balanced_cut(measured, speeds, room, borders, slack)


def divisors(number: int) -> list[int]:
    """In rising order."""
    low = [k for k in range(1, math.isqrt(number) + 1) if number % k == 0]
    return sorted({*low, *(number // k for k in low)})


def _chain(wanted: PlanRequest, order: Sequence[int]) -> bool:
    return all(wanted.joined(a, b) for a, b in pairwise(order))


def _all_orders(wanted: PlanRequest) -> Iterator[tuple[int, ...]]:
    sites = range(len(wanted.offers))
    for count in range(1, len(wanted.offers) + 1):
        yield from (order for order in permutations(sites, count) if _chain(wanted, order))


def _few_orders(wanted: PlanRequest) -> Iterator[tuple[int, ...]]:
    """One or two orders (it, and the other way round) of every subset; of many sites the largest ones together."""
    count = len(wanted.offers)
    if count <= _SITES_ALL:
        chosen = [subset for k in range(1, count + 1) for subset in combinations(range(count), k)]
    else:
        ranked = sorted(range(count), key=lambda k: -wanted.offers[k].gpus * wanted.offers[k].tflops)
        chosen = [(k,) for k in ranked] + list(combinations(ranked, 2))
        chosen += [tuple(ranked[:k]) for k in range(3, count + 1)]
    for subset in chosen:
        order = _least_way(wanted, subset)
        if order is not None:
            yield order
            if len(order) > 1:
                yield order[::-1]


def _least_way(wanted: PlanRequest, subset: Sequence[int]) -> tuple[int, ...] | None:
    """The order of least time on the wire and least latency: Held and Karp's for up to ten sites."""
    size = len(subset)
    if size > 10:
        return _nearest(wanted, subset)
    best: dict[tuple[int, int], tuple[float, tuple[int, ...]]] = {
        (1 << k, k): (0.0, (site,)) for k, site in enumerate(subset)
    }
    for _ in range(size - 1):
        longer: dict[tuple[int, int], tuple[float, tuple[int, ...]]] = {}
        for (mask, last), (length, way) in best.items():
            for k in range(size):
                if mask >> k & 1 or not wanted.joined(subset[last], subset[k]):
                    continue
                found = (length + _far(wanted, subset[last], subset[k]), (*way, subset[k]))
                key = (mask | 1 << k, k)
                if key not in longer or found < longer[key]:
                    longer[key] = found
        best = longer
    return min(best.values())[1] if best else None


def _nearest(wanted: PlanRequest, subset: Sequence[int]) -> tuple[int, ...] | None:
    way, left = [subset[0]], set(subset[1:])
    while left:
        near = [k for k in left if wanted.joined(way[-1], k)]
        if not near:
            return None
        way.append(min(near, key=lambda k: (_far(wanted, way[-1], k), k)))
        left.remove(way[-1])
    return tuple(way)


def _far(wanted: PlanRequest, a: int, b: int) -> float:
    link = wanted.link(a, b)
    if link is None:
        return 0.0
    return link.latency_ns + wanted.usual_bytes * 8 / link.capacity_gbps


def _stage_counts(wanted: PlanRequest, caps: list[int], *, small: bool) -> Iterator[tuple[int, ...]]:
    if small:
        for stages in product(*(range(1, min(cap, wanted.layers) + 1) for cap in caps)):
            if sum(stages) <= wanted.layers:
                yield stages
        return
    whole = min(sum(caps), wanted.layers)
    totals = {whole}
    # Stages that all have as many layers waste no time on the one that has more.
    totals |= {n for n in divisors(wanted.layers) if len(caps) <= n <= whole}
    for total in sorted(totals, reverse=True)[:4]:
        if total >= len(caps):
            yield spread(caps, total)


def spread(caps: Sequence[int], total: int) -> tuple[int, ...]:
    """``total`` stages over sites with room for ``caps``, as their rooms are to each other, at least one each."""
    given = [1] * len(caps)
    heap = [(2 / cap, k) for k, cap in enumerate(caps) if cap > 1]
    heapq.heapify(heap)
    for _ in range(total - len(caps)):
        _, k = heap[0]
        given[k] += 1
        if given[k] < caps[k]:
            heapq.heapreplace(heap, ((given[k] + 1) / caps[k], k))
        else:
            heapq.heappop(heap)
    return tuple(given)


def greedy_layouts(wanted: PlanRequest) -> list[SiteLayout]:
    """For each number of pipelines: sites by their number of GPUs, each filled before the next, layers spread evenly.

    As many stages as there are devices and layers, or the next smaller number that divides the layers. Prices, links
    and speeds play no part; one that is not linked to the site before it is passed over.
    """
    ranked = sorted(range(len(wanted.offers)), key=lambda k: (-wanted.offers[k].gpus, k))
    found = list[SiteLayout]()
    for pipelines in divisors(wanted.batch):
        whole = min(sum(offer.gpus // pipelines for offer in wanted.offers), wanted.layers)
        for total in sorted({whole, *(n for n in divisors(wanted.layers) if n <= whole)} - {0}):
            filled = _fill(wanted, ranked, pipelines, total)
            if filled is not None:
                made = variants(wanted, *filled, pipelines, even=True)
                found += [each for each in made if each.microbatch == 1][-1:]  # as large a cell as there is
    return found


def _fill(
    wanted: PlanRequest, ranked: list[int], pipelines: int, total: int
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
