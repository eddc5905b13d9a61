"""The ``train`` section of a span file: what ``unidle span run`` trains, and how."""

from __future__ import annotations

from typing import Annotated, Any, Literal

from msgspec import Meta, Struct

Function = Annotated[
    str,
    Meta(
        pattern=r"^[^:\0]+\.py:[A-Za-z_][A-Za-z0-9_]*$",
        max_length=4096,
        examples=["model.py:build"],
        extra={"says": "FILE.py:FUNCTION, the file relative to the span file"},
    ),
]
Arguments = Annotated[dict[str, Any], Meta(description="Keyword arguments of the function.")]
Positive = Annotated[float, Meta(gt=0, le=10**6)]


class BuildPart(Struct, frozen=True, forbid_unknown_fields=True, kw_only=True):
    """The model to train."""

    build: Annotated[
        Function,
        Meta(
            description="Function that returns the layers: an nn.Sequential, or a list of modules. It is called after the "
            "seed is set."
        ),
    ]
    arguments: Arguments = {}
    dtype: Annotated[
        Literal["float64", "float32", "bfloat16"],
        Meta(description="Data type of parameters and activations."),
    ] = "float32"


class OptimizerPart(Struct, frozen=True, forbid_unknown_fields=True, kw_only=True):
    """The optimizer."""

    name: Annotated[
        str,
        Meta(
            pattern=r"^(sgd|adamw|[^:\0]+\.py:[A-Za-z_][A-Za-z0-9_]*)$",
            description="sgd, adamw, or a function that takes the parameters and returns an optimizer.",
            extra={"says": "sgd, adamw, or FILE.py:FUNCTION"},
        ),
    ] = "sgd"
    arguments: Annotated[
        dict[str, Any], Meta(description="Keyword arguments of the optimizer.", examples=[{"lr": 0.01}])
    ] = {}


class SavePart(Struct, frozen=True, forbid_unknown_fields=True, kw_only=True):
    """Checkpoints, from which the run resumes after the loss of a rank or site."""

    directory: Annotated[
        str,
        Meta(
            min_length=1, max_length=4096, examples=["checkpoints"],
            description="Directory of the checkpoints, relative to the span file. A fleet of several hosts requires "
            "shared storage.",
        ),
    ]  # fmt: skip
    every: Annotated[int, Meta(ge=1, le=10**9, description="Steps between two checkpoints.")] = 10
    keep: Annotated[
        int, Meta(ge=1, le=1000, description="Number of checkpoints to keep, the newest ones.")
    ] = 2


class TlsPart(Struct, frozen=True, forbid_unknown_fields=True, kw_only=True):
    """TLS between sites: PEM files, relative to the span file."""

    certificate: Annotated[str, Meta(min_length=1, max_length=4096, description="Certificate of this site.")]
    key: Annotated[str, Meta(min_length=1, max_length=4096, description="Private key of the certificate.")]
    authority: Annotated[
        str,
        Meta(
            min_length=1,
            max_length=4096,
            description="Certificate of the authority that signed the certificates of all sites.",
        ),
    ]


class OuterPart(Struct, frozen=True, forbid_unknown_fields=True, kw_only=True):
    """Pipelines train independently, and are combined in an outer step (DiLoCo, arXiv 2311.08105)."""

    every: Annotated[int, Meta(ge=1, le=10**6, description="Steps between two outer steps.")] = 10
    lr: Annotated[Positive, Meta(description="Learning rate of the outer step.")] = 0.7
    momentum: Annotated[float, Meta(ge=0, lt=1, description="Momentum of the outer step.")] = 0.9


class SemanticsPart(Struct, frozen=True, forbid_unknown_fields=True, kw_only=True):
    """Options whose result differs from training in a single process. All are off by default."""

    activations: Annotated[
        Literal["bfloat16", "int8"] | None,
        Meta(description="Data type that activations between sites are rounded to. Default: no rounding."),
    ] = None
    outer: OuterPart | None = None


class TrainPart(Struct, frozen=True, forbid_unknown_fields=True, kw_only=True):
    """A training run: the model, its data and the number of steps."""

    model: BuildPart
    data: Annotated[
        Function | None,
        Meta(
            description="Function (step, index, size, seed) -> (input, target) of one microbatch. index counts over the "
            "batch; each microbatch has its own seed."
        ),
    ] = None
    loss: Annotated[
        Function | None, Meta(description="Function (output, target) -> mean loss of the microbatch.")
    ] = None
    steps: Annotated[
        Annotated[int, Meta(ge=1, le=10**9, examples=[20])] | None,
        Meta(description="Number of steps of the run. Required for a run, with data and loss."),
    ] = None
    optimizer: OptimizerPart = OptimizerPart()
    clip_norm: Annotated[
        Positive | None,
        Meta(description="Maximum norm of the gradient of the whole model. Default: no clipping."),
    ] = None
    seed: Annotated[int, Meta(ge=0, le=2**63 - 1, description="Seed of the run.")] = 0
    microbatch: Annotated[
        Annotated[int, Meta(ge=1, le=10**6)] | None,
        Meta(description="Sequences per microbatch. Default: that of the file's model, else 1."),
    ] = None
    cut: Annotated[
        Annotated[tuple[Annotated[int, Meta(ge=1, le=10**6)], ...], Meta(min_length=1, max_length=10_000)] | None,
        Meta(
            description="Number of layers of each stage; if stages are split into chunks, of each chunk. Default: an even "
            "split.",
            examples=[[3, 3, 2]],
        ),
    ] = None  # fmt: skip
    schedule: Annotated[
        str,
        Meta(
            min_length=1,
            max_length=4096,
            description="Name of a schedule of `unidle span simulate`, or FILE.py:FUNCTION.",
        ),
    ] = "unidle"
    checkpoint: SavePart | None = None
    pace: Annotated[
        bool,
        Meta(
            description="Whether devices take the times of the file: each rank computes, then waits until that time has "
            "passed. For machines with fewer cores than ranks. A computation that takes longer than its time "
            "is not shortened."
        ),
    ] = False
    device: Annotated[Literal["cpu", "cuda"], Meta(description="Device that the ranks compute on.")] = "cpu"
    tls: TlsPart | None = None
    changes_semantics: SemanticsPart | None = None


Host = Annotated[
    str,
    Meta(pattern=r"^[A-Za-z0-9_.:\[\]-]+$", max_length=253, extra={"says": "an address, or ADDRESS:PORT"}),
]
Hosts = Annotated[
    tuple[Host, ...],
    Meta(
        max_length=100_000,
        description="Addresses of the site's machines, as reached from other sites: one for all devices, or one for "
        "each device, in order.",
    ),
]
