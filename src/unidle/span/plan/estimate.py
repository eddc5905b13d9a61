"""What a layout takes at least, from a few numbers of each site: to rank thousands of them."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from itertools import accumulate, pairwise
from typing import Final

from unidle.span.model.cost import repeats, ring_ns, stretch
from unidle.span.model.setting import Stage
from unidle.span.plan.offer import PlanRequest, SiteLayout, stage_of

HOUR_NS: Final = 3_600_000_000_000


@dataclass(frozen=True, slots=True)
class Block:
    """The stages of one site: the slowest one's nanoseconds, sums over all, transfers inside, bytes that leave the last,
    and the first stage."""

    slowest_both: int
    slowest_weight: int
    forward: int
    backward: int
    inside: int
    leaving_bytes: int
    first: Stage


Known = dict[tuple[int, tuple[int, ...], tuple[int, ...], tuple[int, ...]], tuple[Block, ...]]


def quick_ns(wanted: PlanRequest, layout: SiteLayout, known: Known | None = None) -> int:
    """No schedule takes less: the slowest stage's work, the way to it and back; the bytes of each link.

    ``known``: what layouts of the same ``wanted`` share, from call to call.
    """
    m = layout.microbatches(wanted.batch)
    blocks = _blocks(wanted, layout, {} if known is None else known)
    rest = _rest_ns(wanted, layout, blocks[0])
    there = back = best = 0
    for k, block in enumerate(blocks):
        alone = m * block.slowest_weight
        best = max(best, there + m * block.slowest_both + max(alone, back + rest))
        there, back = there + block.forward + block.inside, back + block.backward + block.inside
        if k + 1 < len(blocks) and (link := wanted.link(layout.order[k], layout.order[k + 1])) is not None:
            width = min(layout.stages[k], layout.stages[k + 1])
            # A transfer in turns is cut into pieces, each rounded.
            busy = m * (int(block.leaving_bytes * 8 / (link.rate_gbps(None) * width)) - 64 * layout.cell)
            best = max(best, there + busy + 2 * link.latency_ns + back + rest)
            there, back = there + link.latency_ns, back + link.latency_ns
    return max(best, there + back + rest)


def _blocks(wanted: PlanRequest, layout: SiteLayout, known: Known) -> tuple[Block, ...]:
    """Of each site in use; many layouts differ in their pipelines and cells alone."""
    key = (layout.microbatch, layout.order, layout.stages, layout.layers)
    found = known.get(key)
    if found is None:
        found = known[key] = tuple((_measured if wanted.measured else _even)(wanted, layout))
    return found


def _local_ns(wanted: PlanRequest, size: int) -> int:
    return int(size * 8 / wanted.local_gbps) if wanted.links and wanted.local_gbps else 0


def _even(wanted: PlanRequest, layout: SiteLayout) -> Iterator[Block]:
    """The blocks of sites if all layers are equal."""
    shape, begin = wanted.shape(layout.microbatch), 0
    size = shape.activation_bytes
    local = _local_ns(wanted, size)
    for site, count in zip(layout.order, layout.stages, strict=True):
        layers, tflops = layout.layers[begin : begin + count], wanted.offers[site].tflops
        begin += count
        most, total = max(layers), sum(layers)
        slow, one = stage_of(shape, most, tflops), stage_of(shape, 1, tflops)
        first = slow if layers[0] == most else stage_of(shape, layers[0], tflops)
        # Rounding may take half a nanosecond from each stage, and each layer's share may have gained as much.
        off = total + count
        yield Block(
            slow.forward_ns + slow.backward_ns, slow.weight_ns, max(one.forward_ns * total - off, 0),
            max(one.backward_ns * total - off, 0), (count - 1) * local, size, first,
        )  # fmt: skip


def _measured(wanted: PlanRequest, layout: SiteLayout) -> Iterator[Block]:
    begins, begin = [0, *accumulate(layout.layers)], 0
    for site, count in zip(layout.order, layout.stages, strict=True):
        ends, tflops = begins[begin : begin + count + 1], wanted.offers[site].tflops
        begin += count
        stages = [wanted.stage(layout.microbatch, a, b - a, tflops) for a, b in pairwise(ends)]
        slow = max(stages, key=lambda stage: stage.useful_ns)
        yield Block(
            slow.forward_ns + slow.backward_ns, slow.weight_ns,
            sum(stage.forward_ns for stage in stages), sum(stage.backward_ns for stage in stages),
            sum(_local_ns(wanted, stage.input_bytes or 0) for stage in stages[1:]),
            wanted.entering_bytes(layout.microbatch, ends[-1]) if ends[-1] < wanted.layers else 0, stages[0],
        )  # fmt: skip


def _rest_ns(wanted: PlanRequest, layout: SiteLayout, block: Block) -> int:
    """After the last backward: the gradient of the first stage's weights, and its all-reduce."""
    local = wanted.local_gbps if wanted.links else None
    return block.first.weight_ns + ring_ns(block.first.gradient_bytes, layout.pipelines, local)


def time_at(wanted: PlanRequest, layout: SiteLayout, iteration_ns: int) -> float:
    """Expected nanoseconds of an iteration that takes so long undisturbed; it never falls as that rises."""
    if wanted.saving is None:
        return float(iteration_ns)
    return iteration_ns * stretch(wanted.saving, _revocations(wanted, layout), iteration_ns / 1e9)


def cost_at(wanted: PlanRequest, layout: SiteLayout, iteration_ns: int) -> float:
    """Expected money of an iteration that takes so long undisturbed, egress included; it never falls as that rises."""
    hourly = sum(
        count * layout.pipelines * wanted.offers[k].price_per_gpu_hour
        for k, count in zip(layout.order, layout.stages, strict=True)
    )
    begins = [0, *accumulate(layout.layers)]
    borders = list(accumulate(layout.stages))
    transfers = layout.microbatches(wanted.batch) * layout.pipelines
    egress = 0.0
    for (a, b), border in zip(pairwise(layout.order), borders, strict=False):
        link, each = wanted.link(a, b), wanted.entering_bytes(layout.microbatch, begins[border]) * transfers
        egress += 2 * link.egress_per_gb * each / 1e9 if link else 0.0
    if wanted.saving is not None:
        egress *= repeats(wanted.saving, _revocations(wanted, layout), iteration_ns / 1e9)
        return hourly * time_at(wanted, layout, iteration_ns) / HOUR_NS + egress
    return hourly * iteration_ns / HOUR_NS + egress


def _revocations(wanted: PlanRequest, layout: SiteLayout) -> float:
    """An hour, of all devices in use."""
    used = zip(layout.order, layout.stages, strict=True)
    return sum(count * layout.pipelines * wanted.offers[k].revocations_per_hour for k, count in used)
