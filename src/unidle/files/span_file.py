"""The span file as a type; its JSON Schema is made from it."""

from __future__ import annotations

from typing import Annotated, Any, Literal

from msgspec import Meta, Struct

from unidle.files.span_train_file import Hosts, TrainPart
from unidle.files.values import MEMORY_SAYS, PRINTABLE_PATTERN, PRINTABLE_SAYS, MemoryText, Name

STAGES_MOST = 10_000
LAYERS_MOST = 1_000  # of measured ones: plans look at every pair


def positive(most: float, text: str, **more: Any) -> Meta:
    """A number over 0."""
    return Meta(gt=0, le=most, description=text, **more)


Time = Annotated[int, Meta(ge=1, le=10**15)]
Part = Annotated[int, Meta(ge=0, le=10**15)]
PerStage = Annotated[tuple[Time, ...], Meta(min_length=1, max_length=STAGES_MOST)]
Microbatches = Annotated[int, Meta(ge=1, le=100_000)]
PerPipeline = Annotated[tuple[Microbatches, ...], Meta(min_length=1, max_length=100_000)]
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


Span = Annotated[
    tuple[Part, ...],
    Meta(
        min_length=2,
        max_length=2,
        description="From, to.",
        extra={"says": "two whole numbers of nanoseconds"},
    ),
]


class IntervalPart(Struct, frozen=True, forbid_unknown_fields=True, kw_only=True):
    """How sure a layer's times are: 95 % intervals of the medians."""

    forward: Span | None = None
    backward: Span | None = None
    weight: Span | None = None


class LayerPart(Struct, frozen=True, forbid_unknown_fields=True, kw_only=True):
    """A layer as it was measured, for one microbatch: nanoseconds and bytes."""

    name: Annotated[
        Annotated[str, Meta(pattern=PRINTABLE_PATTERN, max_length=200, extra={"says": PRINTABLE_SAYS})],
        Meta(description="What the model calls it.", examples=["blocks.0"]),
    ] = ""
    forward_ns: Part
    backward_ns: Annotated[Part, Meta(description="Gradient of the input.")]
    weight_ns: Annotated[Part, Meta(description="Gradient of the weights; 0 without weights.")] = 0
    recompute_ns: Annotated[
        Part | None, Meta(description="Making activations again; without it as long as the forward.")
    ] = None
    input_bytes: Annotated[
        Bytes,
        Meta(
            description="What enters it: the activations at the cut before it.", extra={"says": MEMORY_SAYS}
        ),
    ]
    kept_bytes: Annotated[
        Bytes,
        Meta(
            description="What its backward needs in addition to its own input and its parameters.",
            extra={"says": MEMORY_SAYS},
        ),
    ]
    keeps_input: Annotated[
        bool,
        Meta(
            description="Whether its input is kept for the backward, and the layer before does not keep it already."
        ),
    ] = True
    parameters_bytes: Annotated[Bytes, Meta(extra={"says": MEMORY_SAYS})] = 0
    gradient_bytes: Annotated[
        Bytes | None,
        Meta(description="Without it as many as parameters_bytes.", extra={"says": MEMORY_SAYS}),
    ] = None
    optimizer_bytes: Annotated[
        Bytes, Meta(description="What the optimizer keeps of it.", extra={"says": MEMORY_SAYS})
    ] = 0
    interval_ns: IntervalPart | None = None


class MeasuredPart(Struct, frozen=True, forbid_unknown_fields=True, kw_only=True):
    """How the layers were measured."""

    microbatch: Annotated[int, Meta(ge=1, le=10**6, description="Sequences of a microbatch.")] = 1
    device: Annotated[str, Meta(max_length=200, description="On what.", examples=["cpu"])] = ""
    dtype: Annotated[str, Meta(max_length=20)] = ""
    optimizer: Annotated[str, Meta(max_length=200)] = ""
    threads: Annotated[int, Meta(ge=0, le=100_000, description="Of a process; 0: PyTorch's own choice.")] = 0
    repeats: Annotated[int, Meta(ge=0, le=10**6)] = 0
    beside: Annotated[int, Meta(ge=1, le=100_000, description="Processes that measured at once.")] = 1


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
    revocations_per_hour: Annotated[
        float,
        Meta(
            ge=0,
            le=10**6,
            description="How often a device is taken away (spot), in the mean; any of them stops the work.",
        ),
    ] = 0.0
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
    input_bytes: Annotated[
        Annotated[tuple[Bytes, ...], Meta(min_length=1, max_length=STAGES_MOST)] | None,
        Meta(
            description="The same where cuts differ: what enters each stage.",
            extra={"says": "a list of bytes with one for each stage"},
        ),
    ] = None
    layers: Annotated[
        Annotated[tuple[LayerPart, ...], Meta(min_length=1, max_length=LAYERS_MOST)] | None,
        Meta(
            description="Layers as they were measured (unidle span profile writes them); they count, and not the model.",
            extra={"says": "a list of layers"},
        ),
    ] = None
    cut: Annotated[
        Annotated[
            tuple[Annotated[int, Meta(ge=1, le=LAYERS_MOST)], ...], Meta(min_length=1, max_length=STAGES_MOST)
        ]
        | None,
        Meta(
            description="How many of the layers each stage has; without it as many on each, the first ones one more.",
            examples=[[3, 2]],
            extra={"says": "a list with one whole number from 1 for each stage"},
        ),
    ] = None
    measured: Annotated[MeasuredPart | None, Meta(description="How the layers were measured.")] = None
    pipelines: Annotated[int, Meta(ge=1, le=100_000, description="Data-parallel copies.")] = 1
    stages: Annotated[int, Meta(ge=1, le=STAGES_MOST)] | None = None
    microbatches: Microbatches | PerPipeline | None = None
    pipeline_speeds: Annotated[
        tuple[Annotated[float, Meta(gt=0, le=10**6)], ...] | None,
        Meta(
            description="How fast each pipeline's devices are, relative to those of the file: times are divided by it. With one"
            " number of microbatches all pipelines' are shared out by speed; their cells hold pipelines that are alike.",
            examples=[[1, 0.5]],
        ),
    ] = None
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
            description="For a plan: weights and optimizer state of a layer, in addition to static_bytes. Without it: 16 bytes"
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
            description="10^12 operations a second that a device really does; needed with a model. With measured layers:"
            " of the device that they were measured on; sites with a number of their own take less or more time.",
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
    checkpoint_every_s: Annotated[
        Annotated[float, positive(10**9, "")] | None,
        Meta(
            description="Seconds of work between checkpoints; needed where devices are revoked.",
            examples=[600],
        ),
    ] = None
    checkpoint_s: Annotated[
        float, Meta(ge=0, le=10**7, description="Seconds for which a checkpoint holds the work up.")
    ] = 0.0
    restart_s: Annotated[
        float,
        Meta(
            ge=0, le=10**7, description="Seconds from a revocation until work goes on, new devices included."
        ),
    ] = 0.0
    baseline_flows: Annotated[
        Literal[1, "max"],
        Meta(
            description="TCP flows of the schedules other than atlas and unidle.", extra={"says": "1 or max"}
        ),
    ] = "max"
    train: Annotated[
        TrainPart | None,
        Meta(
            description="What `unidle span run` trains and `unidle span profile` measures; the other commands leave it aside."
        ),
    ] = None


class SpanFile(PlanFile, frozen=True, forbid_unknown_fields=True, kw_only=True):
    """A model, the sites that train it, and the links between them."""

    stages: Annotated[
        int, Meta(ge=1, le=STAGES_MOST, description="Of each pipeline, one device each.", examples=[4])
    ]
    microbatches: Annotated[
        Microbatches | PerPipeline,
        Meta(
            description="Of each pipeline in an iteration; or a list with those of each pipeline.",
            examples=[8],
            extra={"says": "a whole number from 1, or a list with one for each pipeline"},
        ),
    ]
    sites: Annotated[
        tuple[SitePart, ...],
        Meta(max_length=1000, description="In the order of the stages; one site where none is given."),
    ] = ()
