"""The span file as a type; its JSON Schema is made from it."""

from __future__ import annotations

from typing import Annotated, Any, Literal

from msgspec import Meta, Struct

from unidle.files.values import MEMORY_SAYS, PRINTABLE_PATTERN, PRINTABLE_SAYS, MemoryText, Name
from unidle.span.files.train_file import Hosts, TrainPart

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
    """A transformer, from which times and sizes are computed."""

    layers: Annotated[
        Annotated[int, Meta(ge=1, le=1_000_000)]
        | Annotated[
            tuple[Annotated[int, Meta(ge=1, le=1_000_000)], ...], Meta(min_length=1, max_length=STAGES_MOST)
        ],
        Meta(
            description="Number of layers of the whole model, split evenly, where the first stages take the remainder; or "
            "a list with the number of each stage.",
            examples=[24],
            extra={"says": "a whole number from 1, or a list with one for each stage"},
        ),
    ]
    hidden: Annotated[int, Meta(ge=1, le=10**6, description="Hidden size.", examples=[4096])]
    sequence: Annotated[int, Meta(ge=1, le=10**8, description="Sequence length, in tokens.", examples=[4096])]
    microbatch: Annotated[int, Meta(ge=1, le=10**6, description="Sequences per microbatch.")] = 1
    bytes_per_value: Annotated[int, Meta(ge=1, le=16, description="Bytes of a value; 2 for bfloat16.")] = 2


class StagePart(Struct, frozen=True, forbid_unknown_fields=True, kw_only=True):
    """Measured times of a stage for one microbatch, in nanoseconds: one number, or a list with one for each stage."""

    forward: Annotated[
        Time | PerStage,
        Meta(
            description="Time of the forward pass.",
            examples=[200],
            extra={"says": "nanoseconds from 1, or a list of them"},
        ),
    ]
    backward: Annotated[
        Time | PerStage,
        Meta(
            description="Time of the gradient of the input.",
            examples=[200],
            extra={"says": "nanoseconds from 1, or a list of them"},
        ),
    ]
    weight: Annotated[
        Time | PerStage,
        Meta(
            description="Time of the gradient of the weights.",
            examples=[200],
            extra={"says": "nanoseconds from 1, or a list of them"},
        ),
    ]
    recompute: Annotated[
        Part | Annotated[tuple[Part, ...], Meta(min_length=1, max_length=STAGES_MOST)],
        Meta(
            description="Time to recompute activations that are not kept.",
            extra={"says": "nanoseconds from 0, or a list of them"},
        ),
    ] = 0


Span = Annotated[
    tuple[Part, ...],
    Meta(
        min_length=2,
        max_length=2,
        description="Low and high bound, in nanoseconds.",
        extra={"says": "two whole numbers of nanoseconds"},
    ),
]


class IntervalPart(Struct, frozen=True, forbid_unknown_fields=True, kw_only=True):
    """95 % confidence intervals of the median times of a layer."""

    forward: Span | None = None
    backward: Span | None = None
    weight: Span | None = None


class LayerPart(Struct, frozen=True, forbid_unknown_fields=True, kw_only=True):
    """A measured layer, for one microbatch: times in nanoseconds and sizes in bytes."""

    name: Annotated[
        Annotated[str, Meta(pattern=PRINTABLE_PATTERN, max_length=200, extra={"says": PRINTABLE_SAYS})],
        Meta(description="Name of the layer in the model.", examples=["blocks.0"]),
    ] = ""
    forward_ns: Annotated[Part, Meta(description="Time of the forward pass.")]
    backward_ns: Annotated[Part, Meta(description="Time of the gradient of the input.")]
    weight_ns: Annotated[
        Part, Meta(description="Time of the gradient of the weights; 0 without weights.")
    ] = 0
    recompute_ns: Annotated[
        Part | None, Meta(description="Time to recompute activations. Default: forward_ns.")
    ] = None
    input_bytes: Annotated[
        Bytes,
        Meta(
            description="Size of its input: the activations at the cut before it.",
            extra={"says": MEMORY_SAYS},
        ),
    ]
    kept_bytes: Annotated[
        Bytes,
        Meta(
            description="Memory that its backward pass needs in addition to its own input and its parameters.",
            extra={"says": MEMORY_SAYS},
        ),
    ]
    keeps_input: Annotated[
        bool,
        Meta(
            description="Whether its input is kept for the backward pass and not already kept by the layer before."
        ),
    ] = True
    parameters_bytes: Annotated[
        Bytes, Meta(description="Size of its parameters.", extra={"says": MEMORY_SAYS})
    ] = 0
    gradient_bytes: Annotated[
        Bytes | None,
        Meta(description="Size of its gradients. Default: parameters_bytes.", extra={"says": MEMORY_SAYS}),
    ] = None
    optimizer_bytes: Annotated[
        Bytes, Meta(description="Size of its optimizer state.", extra={"says": MEMORY_SAYS})
    ] = 0
    interval_ns: IntervalPart | None = None


class MeasuredPart(Struct, frozen=True, forbid_unknown_fields=True, kw_only=True):
    """Conditions of the measurement of layers."""

    microbatch: Annotated[int, Meta(ge=1, le=10**6, description="Sequences per microbatch.")] = 1
    device: Annotated[
        str, Meta(max_length=200, description="Device of the measurement.", examples=["cpu"])
    ] = ""
    dtype: Annotated[str, Meta(max_length=20, description="Data type of parameters and activations.")] = ""
    optimizer: Annotated[str, Meta(max_length=200, description="Optimizer.")] = ""
    threads: Annotated[
        int, Meta(ge=0, le=100_000, description="Threads of each process; 0: the default of PyTorch.")
    ] = 0
    repeats: Annotated[int, Meta(ge=0, le=10**6, description="Number of repetitions.")] = 0
    beside: Annotated[
        int, Meta(ge=1, le=100_000, description="Number of processes that measured at the same time.")
    ] = 1


class OfferPart(Struct, frozen=True, forbid_unknown_fields=True, kw_only=True):
    """A site that may be used. ``unidle span plan`` chooses its stages."""

    name: Annotated[Name, Meta(description="Unique name of the site.", examples=["oregon"])]
    stages: Annotated[
        Annotated[int, Meta(ge=0, le=STAGES_MOST)] | None,
        Meta(description="Stages of each pipeline at this site. Default: chosen by the plan."),
    ] = None
    gpus: Annotated[
        Annotated[int, Meta(ge=1, le=10**7)] | None,
        Meta(description="Number of GPUs of the site. Default: as many as its stages of all pipelines need."),
    ] = None
    price_per_gpu_hour: Annotated[
        float, Meta(ge=0, le=10**6, description="Price of one GPU for an hour.")
    ] = 0.0
    revocations_per_hour: Annotated[
        float,
        Meta(
            ge=0,
            le=10**6,
            description="Mean number of revocations of a (spot) device per hour. Every revocation stops the work.",
        ),
    ] = 0.0
    device_tflops: Annotated[
        Annotated[float, positive(10**6, "")] | None,
        Meta(
            description="Achieved rate of its devices, in 10^12 operations per second. Default: that of the file."
        ),
    ] = None
    memory_cap_bytes: Annotated[
        Annotated[int, Meta(ge=1, le=2**60)] | MemoryText | None,
        Meta(
            description="Memory of its devices, in bytes. The smallest value of the sites in use applies to all. Default: "
            "that of the file.",
            extra={"says": MEMORY_SAYS},
        ),
    ] = None
    hosts: Hosts = ()


class SitePart(OfferPart, frozen=True, forbid_unknown_fields=True, kw_only=True):
    """A site. Its stages follow those of the site before it."""

    stages: Annotated[
        int,
        Meta(
            ge=0,
            le=STAGES_MOST,
            description="Stages of each pipeline at this site; 0: not in use.",
            examples=[2],
        ),
    ]


class LinkPart(Struct, frozen=True, forbid_unknown_fields=True, kw_only=True, rename={"from_": "from"}):
    """The WAN between two sites, equal in both directions."""

    from_: Annotated[Name, Meta(description="Name of one site.", examples=["oregon"])]
    to: Annotated[Name, Meta(description="Name of the other site.", examples=["ohio"])]
    latency_ms: Annotated[
        float, Meta(ge=0, le=10**5, description="One-way latency, in milliseconds.", examples=[40])
    ]
    capacity_gbps: Annotated[
        float, positive(10**6, "Bandwidth of each pair of nodes, in 10^9 bit/s.", examples=[5])
    ]
    flow_mbps: Annotated[
        Annotated[float, positive(10**9, "")] | None,
        Meta(description="Rate of one TCP flow, in Mbit/s. Default: 12 Mbit divided by the latency."),
    ] = None
    egress_per_gb: Annotated[
        float, Meta(ge=0, le=10**6, description="Price of 10^9 bytes that leave a site.")
    ] = 0.0


class PlanFile(Struct, frozen=True, forbid_unknown_fields=True, kw_only=True):
    """Input of a plan: a model, the sites that may train it, and the links between them."""

    model: Annotated[
        ModelPart | None,
        Meta(
            description="Model from which times and sizes are computed. If stage_ns is given too, times are those of "
            "stage_ns."
        ),
    ] = None
    stage_ns: Annotated[
        StagePart | None, Meta(description="Measured times of each stage, instead of computed times.")
    ] = None
    activation_bytes: Annotated[
        Bytes | None,
        Meta(
            description="Bytes that cross a cut for one microbatch, if there is no model.",
            extra={"says": MEMORY_SAYS},
        ),
    ] = None
    input_bytes: Annotated[
        Annotated[tuple[Bytes, ...], Meta(min_length=1, max_length=STAGES_MOST)] | None,
        Meta(
            description="Bytes that enter each stage for one microbatch, if cuts differ.",
            extra={"says": "a list of bytes with one for each stage"},
        ),
    ] = None
    layers: Annotated[
        Annotated[tuple[LayerPart, ...], Meta(min_length=1, max_length=LAYERS_MOST)] | None,
        Meta(
            description="Measured layers, written by `unidle span profile`. They take precedence over model.",
            extra={"says": "a list of layers"},
        ),
    ] = None
    cut: Annotated[
        Annotated[
            tuple[Annotated[int, Meta(ge=1, le=LAYERS_MOST)], ...], Meta(min_length=1, max_length=STAGES_MOST)
        ]
        | None,
        Meta(
            description="Number of layers of each stage. Default: an even split, where the first stages have one more.",
            examples=[[3, 2]],
            extra={"says": "a list with one whole number from 1 for each stage"},
        ),
    ] = None
    measured: Annotated[MeasuredPart | None, Meta(description="Conditions of the measurement of layers.")] = (
        None
    )
    pipelines: Annotated[
        int, Meta(ge=1, le=100_000, description="Number of pipelines: data-parallel copies of the model.")
    ] = 1
    stages: Annotated[int, Meta(ge=1, le=STAGES_MOST)] | None = None
    microbatches: Microbatches | PerPipeline | None = None
    pipeline_speeds: Annotated[
        tuple[Annotated[float, Meta(gt=0, le=10**6)], ...] | None,
        Meta(
            description="Speed of the devices of each pipeline, relative to those of the file; times are divided by it. "
            "If microbatches is one number, the microbatches of all pipelines are distributed by speed. A "
            "cell contains pipelines of equal speed. Default: equal speeds.",
            examples=[[1, 0.5]],
        ),
    ] = None
    batch: Annotated[
        Annotated[int, Meta(ge=1, le=10**7)] | None,
        Meta(
            description="For plans: sequences of an iteration over all pipelines, so that plans do equal work. Default: "
            "pipelines x microbatches x the microbatch of the model.",
            examples=[64],
        ),
    ] = None
    state_bytes_per_layer: Annotated[
        Bytes | None,
        Meta(
            description="For plans: bytes of weights and optimizer state of a layer, in addition to static_bytes. "
            "Default: 16 bytes for each of the 12 H^2 parameters, or 0 if static_bytes is given.",
            extra={"says": MEMORY_SAYS},
        ),
    ] = None
    cell: Annotated[
        int, Meta(ge=1, le=100_000, description="Number of pipelines that take turns on the links.")
    ] = 1
    chunks: Annotated[
        int, Meta(ge=1, le=64, description="Number of chunks of a stage, for the schedule interleaved.")
    ] = 2
    memory_cap_bytes: Annotated[
        Annotated[int, Meta(ge=1, le=2**60)] | MemoryText | None,
        Meta(description="Memory of a device, in bytes. Default: unlimited.", extra={"says": MEMORY_SAYS}),
    ] = None
    static_bytes: Annotated[
        Bytes,
        Meta(description="Bytes of weights and optimizer state on a device.", extra={"says": MEMORY_SAYS}),
    ] = 0
    device_tflops: Annotated[
        Annotated[float, positive(10**6, "")] | None,
        Meta(
            description="Achieved rate of a device, in 10^12 operations per second. Required with a model. With measured "
            "layers: the rate of the measured device; times of sites with another rate are scaled.",
            examples=[156],
        ),
    ] = None
    sites: Annotated[
        tuple[OfferPart, ...],
        Meta(max_length=1000, description="Sites, in the order of the stages. Default: one site."),
    ] = ()
    links: Annotated[
        tuple[LinkPart, ...],
        Meta(
            max_length=10_000, description="Links between sites. Without links, communication takes no time."
        ),
    ] = ()
    local_gbps: Annotated[
        Annotated[float, positive(10**7, "")] | None,
        Meta(
            description="Bandwidth of a node inside its site, in 10^9 bit/s. Default: communication inside a site takes "
            "no time."
        ),
    ] = None
    checkpoint_every_s: Annotated[
        Annotated[float, positive(10**9, "")] | None,
        Meta(
            description="Seconds of work between checkpoints. Required if devices are revoked.",
            examples=[600],
        ),
    ] = None
    checkpoint_s: Annotated[
        float, Meta(ge=0, le=10**7, description="Seconds for which a checkpoint stops the work.")
    ] = 0.0
    restart_s: Annotated[
        float,
        Meta(
            ge=0,
            le=10**7,
            description="Seconds from a revocation until work resumes, including the wait for new devices.",
        ),
    ] = 0.0
    baseline_flows: Annotated[
        Literal[1, "max"],
        Meta(
            description="Number of TCP flows of a transfer in schedules other than atlas and unidle.",
            extra={"says": "1 or max"},
        ),
    ] = "max"
    train: Annotated[
        TrainPart | None,
        Meta(
            description="What `unidle span run` trains and `unidle span profile` measures. Other commands ignore it."
        ),
    ] = None


class SpanFile(PlanFile, frozen=True, forbid_unknown_fields=True, kw_only=True):
    """A model, the sites that train it, and the links between them."""

    stages: Annotated[
        int,
        Meta(
            ge=1,
            le=STAGES_MOST,
            description="Number of stages of each pipeline. A stage has one device.",
            examples=[4],
        ),
    ]
    microbatches: Annotated[
        Microbatches | PerPipeline,
        Meta(
            description="Microbatches of each pipeline in an iteration, or a list with one number for each pipeline.",
            examples=[8],
            extra={"says": "a whole number from 1, or a list with one for each pipeline"},
        ),
    ]
    sites: Annotated[
        tuple[SitePart, ...],
        Meta(max_length=1000, description="Sites, in the order of the stages. Default: one site."),
    ] = ()
