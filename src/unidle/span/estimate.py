"""What a layout takes at least, from a few numbers of each site: to rank thousands of them."""

from __future__ import annotations

from dataclasses import dataclass
from itertools import accumulate, pairwise
from typing import Final

from unidle.span.cost import Shape, ring_ns
from unidle.span.offer import Layout, Wanted, stage_of

HOUR_NS: Final = 3_600_000_000_000


@dataclass(frozen=True, slots=True)
class Block:
    """The stages of one site: the slowest one's nanoseconds, and sums over all."""

    slowest_both: int
    slowest_weight: int
    forward: int
    backward: int


def quick_ns(wanted: Wanted, layout: Layout) -> int:
    """No schedule takes less: the slowest stage's work, the way to it and back; the bytes of each link."""
    m, gbps = layout.microbatches(wanted.batch), wanted.local_gbps if wanted.links else None
    begins = [0, *accumulate(layout.layers)]
    enters = [wanted.entering_bytes(layout.microbatch, layer) for layer in begins[:-1]]
    hops = [wanted.link(a, b) for a, b in pairwise(layout.order)]
    rest = _rest_ns(wanted, layout)
    there = back = best = first = 0
    for k, (site, count) in enumerate(zip(layout.order, layout.stages, strict=True)):
        block = _block(wanted, layout, begins[first : first + count + 1], wanted.offers[site].tflops)
        inside = sum(int(size * 8 / gbps) for size in enters[first + 1 : first + count]) if gbps else 0
        first += count
        alone = m * block.slowest_weight
        best = max(best, there + m * block.slowest_both + max(alone, back + rest))
        there, back = there + block.forward + inside, back + block.backward + inside
        if k < len(hops) and (link := hops[k]) is not None:
            width = min(layout.stages[k], layout.stages[k + 1])
            # A transfer in turns is cut into pieces, each rounded.
            busy = m * (int(enters[first] * 8 / (link.rate_gbps(None) * width)) - 64 * layout.cell)
            best = max(best, there + busy + 2 * link.latency_ns + back + rest)
            there, back = there + link.latency_ns, back + link.latency_ns
    return max(best, there + back + rest)


def _block(wanted: Wanted, layout: Layout, begins: list[int], tflops: float) -> Block:
    if wanted.measured is not None:
        stages = [wanted.measured.stage(a, b - a, tflops) for a, b in pairwise(begins)]
        slow = max(stages, key=lambda stage: stage.useful_ns)
        return Block(
            slow.forward_ns + slow.backward_ns, slow.weight_ns,
            sum(stage.forward_ns for stage in stages), sum(stage.backward_ns for stage in stages),
        )  # fmt: skip
    return _even_block(wanted.shape(layout.microbatch), [b - a for a, b in pairwise(begins)], tflops)


def _even_block(shape: Shape, layers: list[int], tflops: float) -> Block:
    most, total = max(layers), sum(layers)
    slow, one = stage_of(shape, most, tflops), stage_of(shape, 1, tflops)
    # Rounding may take half a nanosecond from each stage, and each layer's share may have gained as much.
    off = total + len(layers)
    return Block(
        slow.forward_ns + slow.backward_ns, slow.weight_ns,
        max(one.forward_ns * total - off, 0), max(one.backward_ns * total - off, 0),
    )  # fmt: skip


def _rest_ns(wanted: Wanted, layout: Layout) -> int:
    """After the last backward: the gradient of the first stage's weights, and its all-reduce."""
    stage = wanted.stage(layout.microbatch, 0, layout.layers[0], wanted.offers[layout.order[0]].tflops)
    local = wanted.local_gbps if wanted.links else None
    return stage.weight_ns + ring_ns(stage.gradient_bytes, layout.pipelines, local)


def cost_at(wanted: Wanted, layout: Layout, iteration_ns: int) -> float:
    """Money of an iteration that takes so long, egress included."""
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
    return hourly * iteration_ns / HOUR_NS + egress
