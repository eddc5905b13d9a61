"""The span file as a type; its JSON Schema is made from it."""

from __future__ import annotations

from typing import Annotated, Any, Literal

from msgspec import Meta, Struct

from unidle.files.span_train_file import Hosts, TrainPart
from unidle.files.values import MEMORY_SAYS, MemoryText, Name

STAGES_MOST = 10_000


def positive(most: float, text: str, **more: Any) -> Meta:
    """A number over 0."""
    return Meta(gt=0, le=most, description=text, **more)


Time = Annotated[int, Meta(ge=1, le=10**15)]
Part = Annotated[int, Meta(ge=0, le=10**15)]
PerStage = Annotated[tuple[Time, ...], Meta(min_length=1, max_length=STAGES_MOST)]
Bytes = Annotated[int, Meta(ge=0, le=2**60)] | MemoryText


class ModelPart(Struct, frozen=True, forbid_unknown_fields=True, kw_only=True):
    """A transformer, from which times and bytes are computed."""

    layers: Annotated[
        Annotated[int, Meta(ge=1, le=1_000_000)]
        | Annotated[
            tuple[Annotated[int, Meta(ge=1, le=1_000_000)], ...], Meta(min_length=1, max_length=STAGES_MOST)
        ],
        Meta(
            description="Layers of the whole model, spread evenly with the first stages taking what is over; or a list"
            " with those of each stage.",
            examples=[24],
            extra={"says": "a whole number from 1, or a list with one for each stage"},
        ),
    ]
    hidden: Annotated[int, Meta(ge=1, le=10**6, description="Width.", examples=[4096])]
    sequence: Annotated[int, Meta(ge=1, le=10**8, description="Tokens of a sequence.", examples=[4096])]
    microbatch: Annotated[int, Meta(ge=1, le=10**6, description="Sequences of a microbatch.")] = 1
    bytes_per_value: Annotated[int, Meta(ge=1, le=16, description="2 for bfloat16.")] = 2


class StagePart(Struct, frozen=True, forbid_unknown_fields=True, kw_only=True):
    """Measured times of a stage for one microbatch, in nanoseconds: one number, or a list with one for each stage."""

    forward: Annotated[
        Time | PerStage, Meta(examples=[200], extra={"says": "nanoseconds from 1, or a list of them"})
    ]
    backward: Annotated[
        Time | PerStage,
        Meta(
            description="Gradient of the input.",
            examples=[200],
            extra={"says": "nanoseconds from 1, or a list of them"},
        ),
    ]
    weight: Annotated[
        Time | PerStage,
        Meta(
            description="Gradient of the weights.",
            examples=[200],
            extra={"says": "nanoseconds from 1, or a list of them"},
        ),
    ]
    recompute: Annotated[
        Part | Annotated[tuple[Part, ...], Meta(min_length=1, max_length=STAGES_MOST)],
        Meta(
            description="Making activations again that are not kept.",
            extra={"says": "nanoseconds from 0, or a list of them"},
        ),
    ] = 0


class OfferPart(Struct, frozen=True, forbid_unknown_fields=True, kw_only=True):
    """A site that may be used: ``unidle span plan`` chooses its stages."""

    name: Annotated[Name, Meta(description="A name of its own.", examples=["oregon"])]
    stages: Annotated[
        Annotated[int, Meta(ge=0, le=STAGES_MOST)] | None,
        Meta(description="Stages of each pipeline here; a plan chooses them."),
    ] = None
    gpus: Annotated[
        Annotated[int, Meta(ge=1, le=10**7)] | None,
        Meta(
            description="How many it has; where it is not said as many as its stages of all pipelines need."
        ),
    ] = None
    price_per_gpu_hour: Annotated[float, Meta(ge=0, le=10**6, description="Money.")] = 0.0
    device_tflops: Annotated[
        Annotated[float, positive(10**6, "")] | None,
        Meta(description="Of its devices, where they differ from those of the file."),
    ] = None
    memory_cap_bytes: Annotated[
        Annotated[int, Meta(ge=1, le=2**60)] | MemoryText | None,
        Meta(
            description="Of its devices; the smallest of the sites in use holds for all.",
            extra={"says": MEMORY_SAYS},
        ),
    ] = None
    hosts: Hosts = ()


class SitePart(OfferPart, frozen=True, forbid_unknown_fields=True, kw_only=True):
    """A site; its stages follow those of the site before it."""

    stages: Annotated[
        int,
        Meta(ge=0, le=STAGES_MOST, description="Stages of each pipeline here; 0: not in use.", examples=[2]),
    ]


class LinkPart(Struct, frozen=True, forbid_unknown_fields=True, kw_only=True, rename={"from_": "from"}):
    """The WAN between two sites, alike in both directions."""

    from_: Annotated[Name, Meta(description="A site.", examples=["oregon"])]
    to: Annotated[Name, Meta(description="Another site.", examples=["ohio"])]
    latency_ms: Annotated[float, Meta(ge=0, le=10**5, description="One way.", examples=[40])]
    capacity_gbps: Annotated[float, positive(10**6, "Of each pair of nodes.", examples=[5])]
    flow_mbps: Annotated[
        Annotated[float, positive(10**9, "")] | None,
        Meta(description="Of one TCP flow. Without it: 12 Mbit over the latency."),
    ] = None
    egress_per_gb: Annotated[float, Meta(ge=0, le=10**6, description="Money for 10^9 bytes that leave.")] = (
        0.0
    )


class PlanFile(Struct, frozen=True, forbid_unknown_fields=True, kw_only=True):
    """A model, the sites that may train it, and the links between them: what a plan is made from."""

    model: Annotated[
        ModelPart | None, Meta(description="The model; or stage_ns, or both: then times are those.")
    ] = None
    stage_ns: Annotated[StagePart | None, Meta(description="Measured times instead of computed ones.")] = None
    activation_bytes: Annotated[
        Bytes | None,
        Meta(
            description="What crosses a cut for one microbatch, where there is no model.",
            extra={"says": MEMORY_SAYS},
        ),
    ] = None
    pipelines: Annotated[int, Meta(ge=1, le=100_000, description="Data-parallel copies.")] = 1
    stages: Annotated[int, Meta(ge=1, le=STAGES_MOST)] | None = None
    microbatches: Annotated[int, Meta(ge=1, le=100_000)] | None = None
    batch: Annotated[
        Annotated[int, Meta(ge=1, le=10**7)] | None,
        Meta(
            description="For a plan: sequences of an iteration over all pipelines, so that plans do equal work. Without it:"
            " pipelines x microbatches x the model's microbatch.",
            examples=[64],
        ),
    ] = None
    state_bytes_per_layer: Annotated[
        Bytes | None,
        Meta(
            description="For a plan: weights and optimizer state of a layer, beside static_bytes. Without it: 16 bytes"
            " for each of the 12 H^2 parameters, or none where static_bytes is given.",
            extra={"says": MEMORY_SAYS},
        ),
    ] = None
    cell: Annotated[int, Meta(ge=1, le=100_000, description="Pipelines that share links in turns.")] = 1
    chunks: Annotated[int, Meta(ge=1, le=64, description="Parts of a stage, for interleaved.")] = 2
    memory_cap_bytes: Annotated[
        Annotated[int, Meta(ge=1, le=2**60)] | MemoryText | None,
        Meta(
            description="What a device may hold; without it memory has no limit.", extra={"says": MEMORY_SAYS}
        ),
    ] = None
    static_bytes: Annotated[
        Bytes, Meta(description="Weights and optimizer state of a device.", extra={"says": MEMORY_SAYS})
    ] = 0
    device_tflops: Annotated[
        Annotated[float, positive(10**6, "")] | None,
        Meta(
            description="10^12 operations a second that a device really does; needed with a model.",
            examples=[156],
        ),
    ] = None
    sites: Annotated[
        tuple[OfferPart, ...],
        Meta(max_length=1000, description="In the order of the stages; one site where none is given."),
    ] = ()
    links: Annotated[
        tuple[LinkPart, ...], Meta(max_length=10_000, description="Without them communication is free.")
    ] = ()
    local_gbps: Annotated[
        Annotated[float, positive(10**7, "")] | None,
        Meta(description="Of a node inside its site; without it, it takes no time."),
    ] = None
    baseline_flows: Annotated[
        Literal[1, "max"],
        Meta(
            description="TCP flows of the schedules other than atlas and unidle.", extra={"says": "1 or max"}
        ),
    ] = "max"
    train: Annotated[
        TrainPart | None,
        Meta(description="What `unidle span run` trains; the other commands leave it aside."),
    ] = None


class SpanFile(PlanFile, frozen=True, forbid_unknown_fields=True, kw_only=True):
    """A model, the sites that train it, and the links between them."""

    stages: Annotated[
        int, Meta(ge=1, le=STAGES_MOST, description="Of each pipeline, one device each.", examples=[4])
    ]
    microbatches: Annotated[
        int, Meta(ge=1, le=100_000, description="Of each pipeline in an iteration.", examples=[8])
    ]
    sites: Annotated[
        tuple[SitePart, ...],
        Meta(max_length=1000, description="In the order of the stages; one site where none is given."),
    ] = ()
