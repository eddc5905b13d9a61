"""What a plan is made from: sites that may be used, the model, the work of an iteration; and what a layout makes of it."""

from __future__ import annotations

from bisect import bisect_right
from dataclasses import dataclass
from functools import cache, cached_property
from itertools import accumulate

from unidle.span.model.cost import ModelShape, SaveTimes, compute_ns
from unidle.span.model.layers import ModelCosts
from unidle.span.model.link import WanLink
from unidle.span.model.setting import Setting, Site, Stage


@dataclass(frozen=True, slots=True)
class SiteOffer:
    """A site that may be used. ``tflops``: of each of its devices; ``cap_bytes``: what one may hold.

    ``revocations_per_hour``: of each device.
    """

    name: str
    gpus: int
    price_per_gpu_hour: float
    tflops: float
    cap_bytes: int | None = None
    revocations_per_hour: float = 0.0


@dataclass(frozen=True)
class PlanRequest:
    """A model to train and where. ``batch``: sequences of an iteration, the same for every layout.

    ``state_bytes``: weights and optimizer state of a layer; ``static_bytes``: what every device holds in addition.
    ``measured``: layers of their own instead of ones that follow from the shape; they bring their state.
    """

    layers: int
    hidden: int
    sequence: int
    bytes_per_value: int
    batch: int
    offers: tuple[SiteOffer, ...]
    links: tuple[WanLink, ...] = ()
    local_gbps: float | None = None
    static_bytes: int = 0
    state_bytes: int = 0
    one_flow: bool = False
    chunks: int = 2
    saving: SaveTimes | None = None
    measured: ModelCosts | None = None

    def shape(self, microbatch: int) -> ModelShape:
        return ModelShape(self.hidden, self.sequence, microbatch, self.bytes_per_value)

    def stage(self, microbatch: int, first: int, count: int, tflops: float) -> Stage:
        """A stage of so many layers from one on, on a device."""
        if self.measured is not None:
            return self.measured.stage(first, count, tflops)
        return stage_of(self.shape(microbatch), count, tflops)

    def entering_bytes(self, microbatch: int, layer: int) -> int:
        """One microbatch at the entry of a layer."""
        if self.measured is not None:
            return self.measured.layers[layer].input_bytes
        return self.shape(microbatch).activation_bytes

    @cached_property
    def usual_bytes(self) -> int:
        """The middle one of all cuts, one microbatch: how far sites are apart."""
        if self.measured is not None:
            sizes = sorted(layer.input_bytes for layer in self.measured.layers)
            return sizes[len(sizes) // 2]
        return self.shape(1).activation_bytes

    def one_layer_bytes(self) -> int:
        """What a device needs for one layer, the largest of those that were measured, and one microbatch."""
        if self.measured is not None:
            return self.static_bytes + max(
                int(self.measured.needed_bytes[k, k + 1]) for k in range(self.layers)
            )
        shape = self.shape(1)
        return self.static_bytes + self.state_bytes + shape.activation_bytes + shape.kept_bytes

    def least_layer_bytes(self) -> int:
        """What one more layer on a device needs, the smallest of those that were measured."""
        if self.measured is not None:
            return min(int(self.measured.needed_bytes[k, k + 1]) for k in range(self.layers))
        return self.state_bytes + self.shape(1).kept_bytes

    def link(self, a: int, b: int) -> WanLink | None:
        """What joins two sites directly."""
        return self._between.get((a, b))

    def joined(self, a: int, b: int) -> bool:
        """Whether neighbouring stages may be there; without any links communication is free."""
        return not self.links or self.link(a, b) is not None

    @cached_property
    def _between(self) -> dict[tuple[int, int], WanLink]:
        at = {offer.name: k for k, offer in enumerate(self.offers)}
        found = [(at[link.a], at[link.b], link) for link in self.links if {link.a, link.b} <= at.keys()]
        return {pair: link for a, b, link in found for pair in ((a, b), (b, a))}


@dataclass(frozen=True, slots=True)
class SiteLayout:
    """What a plan chooses. ``order``: sites along the pipeline, as indices; ``stages``: of each of them.

    ``layers``: of each stage; ``microbatch``: in sequences.
    """

    order: tuple[int, ...]
    stages: tuple[int, ...]
    layers: tuple[int, ...]
    pipelines: int
    cell: int
    microbatch: int

    def microbatches(self, batch: int) -> int:
        """Of each pipeline in an iteration."""
        return batch // (self.pipelines * self.microbatch)


@cache
def stage_of(shape: ModelShape, layers: int, tflops: float) -> Stage:
    """A stage of so many layers, computed from its shape."""
    forward, backward, weight = (
        max(compute_ns(layers * flops, tflops), 1)
        for flops in (shape.forward_flops, shape.backward_flops, shape.weight_flops)
    )
    return Stage(
        forward, backward, weight, forward, shape.kept_bytes * layers, shape.parameter_bytes * layers
    )


def cap_of(wanted: PlanRequest, order: tuple[int, ...]) -> int | None:
    """The smallest memory of the sites in use holds for all."""
    caps = [cap for k in order if (cap := wanted.offers[k].cap_bytes) is not None]
    return min(caps, default=None)


def layers_most(wanted: PlanRequest, cap: int | None, microbatch: int) -> int:
    """How many layers a device holds with one microbatch."""
    if cap is None:
        return wanted.layers
    if wanted.measured is not None:
        sizes = sorted(int(wanted.measured.needed_bytes[k, k + 1]) for k in range(wanted.layers))
        return bisect_right(list(accumulate(sizes)), cap - wanted.static_bytes)
    shape = wanted.shape(microbatch)
    room = cap - wanted.static_bytes - shape.activation_bytes
    return max(room // max(wanted.state_bytes + shape.kept_bytes, 1), 0)


def static_of(wanted: PlanRequest, layout: SiteLayout) -> int:
    """Of the fullest device; the simulator holds all to it. Measured layers add their own to it."""
    if wanted.measured is not None:
        return wanted.static_bytes
    return wanted.static_bytes + wanted.state_bytes * max(layout.layers)


def setting_of(wanted: PlanRequest, layout: SiteLayout) -> Setting:
    """What is simulated for a layout. All links stay: without any, communication inside a site would be free, too."""
    begins = [0, *accumulate(layout.layers)]
    sized = 0 if wanted.measured else wanted.shape(layout.microbatch).activation_bytes
    offers = [wanted.offers[k] for k in layout.order]
    speeds = [offer.tflops for offer, count in zip(offers, layout.stages, strict=True) for _ in range(count)]
    return Setting(
        tuple(
            wanted.stage(layout.microbatch, first, n, speed)
            for first, n, speed in zip(begins, layout.layers, speeds, strict=False)
        ),
        layout.microbatches(wanted.batch),
        tuple(
            Site(offer.name, count, offer.gpus, offer.price_per_gpu_hour, offer.revocations_per_hour)
            for offer, count in zip(offers, layout.stages, strict=True)
        ),
        wanted.links,
        layout.pipelines, layout.cell, sized, static_of(wanted, layout), cap_of(wanted, layout.order),
        wanted.local_gbps, wanted.one_flow, wanted.chunks, wanted.saving,
    )  # fmt: skip
