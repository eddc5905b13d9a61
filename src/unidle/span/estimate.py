"""What a layout takes at least, from a few numbers of each site: to rank thousands of them."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from itertools import accumulate, pairwise
from typing import Final

from unidle.span.cost import ring_ns
from unidle.span.offer import Layout, Wanted, stage_of

HOUR_NS: Final = 3_600_000_000_000


@dataclass(frozen=True, slots=True)
class Block:
    """The stages of one site: the slowest one's nanoseconds, sums over all, transfers inside, bytes that leave the last."""

    slowest_both: int
    slowest_weight: int
    forward: int
    backward: int
    inside: int
    leaving_bytes: int


def quick_ns(wanted: Wanted, layout: Layout) -> int:
    """No schedule takes less: the slowest stage's work, the way to it and back; the bytes of each link."""
    m = layout.microbatches(wanted.batch)
    blocks = (_measured_blocks if wanted.measured else _even_blocks)(wanted, layout)
    hops = [wanted.link(a, b) for a, b in pairwise(layout.order)]
    rest = _rest_ns(wanted, layout)
    there = back = best = 0
    for k, block in enumerate(blocks):
        alone = m * block.slowest_weight
        best = max(best, there + m * block.slowest_both + max(alone, back + rest))
        there, back = there + block.forward + block.inside, back + block.backward + block.inside
        if k < len(hops) and (link := hops[k]) is not None:
            width = min(layout.stages[k], layout.stages[k + 1])
            # A transfer in turns is cut into pieces, each rounded.
            busy = m * (int(block.leaving_bytes * 8 / (link.rate_gbps(None) * width)) - 64 * layout.cell)
            best = max(best, there + busy + 2 * link.latency_ns + back + rest)
            there, back = there + link.latency_ns, back + link.latency_ns
    return max(best, there + back + rest)


def _local_ns(wanted: Wanted, size: int) -> int:
    return int(size * 8 / wanted.local_gbps) if wanted.links and wanted.local_gbps else 0


def _even_blocks(wanted: Wanted, layout: Layout) -> Iterator[Block]:
    """Layers that are alike."""
    shape, first = wanted.shape(layout.microbatch), 0
    size = shape.activation_bytes
    local = _local_ns(wanted, size)
    for site, count in zip(layout.order, layout.stages, strict=True):
        layers, tflops = layout.layers[first : first + count], wanted.offers[site].tflops
        first += count
        most, total = max(layers), sum(layers)
        slow, one = stage_of(shape, most, tflops), stage_of(shape, 1, tflops)
        # Rounding may take half a nanosecond from each stage, and each layer's share may have gained as much.
        off = total + count
        yield Block(
            slow.forward_ns + slow.backward_ns, slow.weight_ns, max(one.forward_ns * total - off, 0),
            max(one.backward_ns * total - off, 0), (count - 1) * local, size,
        )  # fmt: skip


def _measured_blocks(wanted: Wanted, layout: Layout) -> Iterator[Block]:
    begins, first = [0, *accumulate(layout.layers)], 0
    for site, count in zip(layout.order, layout.stages, strict=True):
        ends, tflops = begins[first : first + count + 1], wanted.offers[site].tflops
        first += count
        stages = [wanted.stage(layout.microbatch, a, b - a, tflops) for a, b in pairwise(ends)]
        slow = max(stages, key=lambda stage: stage.useful_ns)
        yield Block(
            slow.forward_ns + slow.backward_ns, slow.weight_ns,
            sum(stage.forward_ns for stage in stages), sum(stage.backward_ns for stage in stages),
            sum(_local_ns(wanted, stage.input_bytes or 0) for stage in stages[1:]),
            wanted.entering_bytes(layout.microbatch, ends[-1]) if ends[-1] < wanted.layers else 0,
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
