"""What a layout takes at least, from a few numbers of each site: to rank thousands of them."""

from __future__ import annotations

from dataclasses import dataclass
from itertools import pairwise
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
    shape, m = wanted.shape(layout.microbatch), layout.microbatches(wanted.batch)
    local = int(shape.activation_bytes * 8 / wanted.local_gbps) if wanted.links and wanted.local_gbps else 0
    hops = [wanted.link(a, b) for a, b in pairwise(layout.order)]
    rest = _rest_ns(wanted, layout)
    there = back = best = first = 0
    for k, (site, count) in enumerate(zip(layout.order, layout.stages, strict=True)):
        block = _block(shape, layout.layers[first : first + count], wanted.offers[site].tflops)
        first += count
        alone = m * block.slowest_weight
        best = max(best, there + m * block.slowest_both + max(alone, back + rest))
        inside = (count - 1) * local
        there, back = there + block.forward + inside, back + block.backward + inside
        if k < len(hops) and (link := hops[k]) is not None:
            width = min(layout.stages[k], layout.stages[k + 1])
            # A transfer in turns is cut into pieces, each rounded.
            busy = m * (int(shape.activation_bytes * 8 / (link.rate_gbps(None) * width)) - 64 * layout.cell)
            best = max(best, there + busy + 2 * link.latency_ns + back + rest)
            there, back = there + link.latency_ns, back + link.latency_ns
    return max(best, there + back + rest)


def _block(shape: Shape, layers: tuple[int, ...], tflops: float) -> Block:
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
    shape = wanted.shape(layout.microbatch)
    stage = stage_of(shape, layout.layers[0], wanted.offers[layout.order[0]].tflops)
    local = wanted.local_gbps if wanted.links else None
    return stage.weight_ns + ring_ns(stage.gradient_bytes, layout.pipelines, local)


def cost_at(wanted: Wanted, layout: Layout, iteration_ns: int) -> float:
    """Money of an iteration that takes so long, egress included."""
    hourly = sum(
        count * layout.pipelines * wanted.offers[k].price_per_gpu_hour
        for k, count in zip(layout.order, layout.stages, strict=True)
    )
    size = wanted.shape(layout.microbatch).activation_bytes
    each = size * layout.microbatches(wanted.batch) * layout.pipelines
    egress = 0.0
    for a, b in pairwise(layout.order):
        link = wanted.link(a, b)
        egress += 2 * link.egress_per_gb * each / 1e9 if link else 0.0
    return hourly * iteration_ns / HOUR_NS + egress
