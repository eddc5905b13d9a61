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
    """The model."""

    build: Annotated[
        Function,
        Meta(
            description="Returns an nn.Sequential, or a list of modules: the layers. Called after the seed is set."
        ),
    ]
    arguments: Arguments = {}
    dtype: Annotated[
        Literal["float64", "float32", "bfloat16"], Meta(description="Of parameters and activations.")
    ] = "float32"


class OptimizerPart(Struct, frozen=True, forbid_unknown_fields=True, kw_only=True):
    """What updates the parameters."""

    name: Annotated[
        str,
        Meta(
            pattern=r"^(sgd|adamw|[^:\0]+\.py:[A-Za-z_][A-Za-z0-9_]*)$",
            description="sgd, adamw, or a function of your own: of parameters, returns an optimizer.",
            extra={"says": "sgd, adamw, or FILE.py:FUNCTION"},
        ),
    ] = "sgd"
    arguments: Annotated[dict[str, Any], Meta(examples=[{"lr": 0.01}])] = {}


class SavePart(Struct, frozen=True, forbid_unknown_fields=True, kw_only=True):
    """Checkpoints, from which a run goes on when a rank or a site was lost."""

    directory: Annotated[
        str,
        Meta(
            min_length=1, max_length=4096, examples=["checkpoints"],
            description="Relative to the file; of a fleet of several hosts on storage that all of them share.",
        ),
    ]  # fmt: skip
    every: Annotated[int, Meta(ge=1, le=10**9, description="Steps.")] = 10
    keep: Annotated[int, Meta(ge=1, le=1000, description="So many, the newest ones.")] = 2


class TlsPart(Struct, frozen=True, forbid_unknown_fields=True, kw_only=True):
    """TLS between sites: files in PEM, relative to the span file."""

    certificate: Annotated[str, Meta(min_length=1, max_length=4096, description="Of this site.")]
    key: Annotated[str, Meta(min_length=1, max_length=4096, description="Of the certificate.")]
    authority: Annotated[
        str, Meta(min_length=1, max_length=4096, description="Who signed those of all sites.")
    ]


class OuterPart(Struct, frozen=True, forbid_unknown_fields=True, kw_only=True):
    """Pipelines train apart, and meet in an outer step (DiLoCo, arXiv 2311.08105)."""

    every: Annotated[int, Meta(ge=1, le=10**6, description="Steps between two outer steps.")] = 10
    lr: Positive = 0.7
    momentum: Annotated[float, Meta(ge=0, lt=1)] = 0.9


class SemanticsPart(Struct, frozen=True, forbid_unknown_fields=True, kw_only=True):
    """What trains another model than a single process would: off unless it is asked for."""

    activations: Annotated[
        Literal["bfloat16", "int8"] | None, Meta(description="What crosses sites is rounded to it.")
    ] = None
    outer: OuterPart | None = None


class TrainPart(Struct, frozen=True, forbid_unknown_fields=True, kw_only=True):
    """A real run of the file: the model, its data, how long."""

    model: BuildPart
    data: Annotated[
        Function | None,
        Meta(
            description="(step, index, size, seed) -> (input, target) of one microbatch; index counts over the batch, seed is its own."
        ),
    ] = None
    loss: Annotated[
        Function | None, Meta(description="(output, target) -> the mean over the microbatch.")
    ] = None
    steps: Annotated[
        Annotated[int, Meta(ge=1, le=10**9, examples=[20])] | None,
        Meta(description="Of the whole run, which needs data and loss, too."),
    ] = None
    optimizer: OptimizerPart = OptimizerPart()
    clip_norm: Annotated[
        Positive | None,
        Meta(description="Longest gradient of the whole model; without it none is shortened."),
    ] = None
    seed: Annotated[int, Meta(ge=0, le=2**63 - 1)] = 0
    microbatch: Annotated[
        Annotated[int, Meta(ge=1, le=10**6)] | None,
        Meta(description="Sequences of a microbatch; by default that of the file's model, else 1."),
    ] = None
    cut: Annotated[
        Annotated[tuple[Annotated[int, Meta(ge=1, le=10**6)], ...], Meta(min_length=1, max_length=10_000)] | None,
        Meta(
            description="Layers of each stage (of each part of the model, where stages are in chunks); even where it is not given.",
            examples=[[3, 3, 2]],
        ),
    ] = None  # fmt: skip
    schedule: Annotated[
        str,
        Meta(min_length=1, max_length=4096, description="Of `unidle span simulate`, or FILE.py:FUNCTION."),
    ] = "unidle"
    checkpoint: SavePart | None = None
    pace: Annotated[
        bool,
        Meta(
            description="Devices take the times of the file: each computes what it has to, then waits until so much"
            " time has passed. For machines with fewer cores than ranks; times below the real ones cannot be kept."
        ),
    ] = False
    device: Annotated[Literal["cpu", "cuda"], Meta(description="What a rank computes on.")] = "cpu"
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
        description="Addresses of the site's machines as other sites reach them, device after device: one for all, or one for each.",
    ),
]
