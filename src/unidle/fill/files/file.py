"""The fill file as a type: a span file with prompts, a model for inference, and how long to simulate."""

from __future__ import annotations

from typing import Annotated, Final, Literal

from msgspec import Meta, Struct

from unidle.span.files.file import SpanFile, positive

TOKENS_MOST: Final = 10_000_000
Tokens = Annotated[int, Meta(ge=1, le=TOKENS_MOST)]


class TokensPart(Struct, frozen=True, forbid_unknown_fields=True, kw_only=True):
    """Lengths of prompts between two bounds, each factor of them equally likely (log-uniform)."""

    min: Annotated[Tokens, Meta(description="Tokens of the shortest prompt.", examples=[64])]
    max: Annotated[Tokens, Meta(description="Tokens of the longest prompt.", examples=[4096])]


class PromptsPart(Struct, frozen=True, forbid_unknown_fields=True, kw_only=True):
    """Prompts that arrive at the inference service."""

    process: Annotated[
        Literal["poisson", "burst", "trace"],
        Meta(
            description="poisson: independent arrivals. burst: several prompts at once, at independent times. trace: as in "
            "the file that tokens names.",
            examples=["poisson"],
        ),
    ]
    rate_per_s: Annotated[
        Annotated[float, positive(10**6, "")] | None,
        Meta(description="Prompts per second in the mean. Required, except for a trace.", examples=[20]),
    ] = None
    tokens: Annotated[
        TokensPart | Annotated[str, Meta(min_length=1, max_length=4096)],
        Meta(
            description="Lengths of prompts: bounds, or a CSV file relative to this one with a column tokens. For a trace the "
            "file has arrival_s, too, and may have priority and slo_ttft_ms.",
            extra={"says": "{min: ..., max: ...}, or the name of a CSV file"},
        ),
    ]
    slo_ttft_ms: Annotated[
        Annotated[float, positive(10**9, "")] | None,
        Meta(
            description="Time to the first token that is promised, in milliseconds. A prompt that would take longer is not "
            "accepted. Default: no limit."
        ),
    ] = None
    burst: Annotated[int, Meta(ge=1, le=100_000, description="Prompts of a burst.")] = 8


class InferenceModelPart(Struct, frozen=True, forbid_unknown_fields=True, kw_only=True):
    """A transformer that answers prompts."""

    layers: Annotated[int, Meta(ge=1, le=100_000, description="Number of layers.", examples=[32])]
    hidden: Annotated[int, Meta(ge=1, le=10**6, description="Hidden size.", examples=[4096])]
    bytes_per_value: Annotated[int, Meta(ge=1, le=16, description="Bytes of a value; 2 for bfloat16.")] = 2
    kv_share: Annotated[
        float,
        Meta(
            gt=0, le=1,
            description="Width of keys and values relative to the hidden size; 0.25 if four query heads share one.",
        ),
    ] = 1.0  # fmt: skip


class InferencePart(Struct, frozen=True, forbid_unknown_fields=True, kw_only=True):
    """The inference service whose prefill runs in the waits of training."""

    model: InferenceModelPart
    pp: Annotated[
        int,
        Meta(ge=1, le=8, description="Devices of an inference pipeline. All are in one site.", examples=[4]),
    ]
    tflops: Annotated[
        Annotated[float, positive(10**6, "")] | None,
        Meta(
            description="Achieved rate of a device in prefill, in 10^12 operations per second. Default: device_tflops."
        ),
    ] = None
    chunk_tokens: Annotated[
        int, Meta(ge=1, le=TOKENS_MOST, description="Tokens of a chunk of a prompt, at most.")
    ] = 512
    gives_way_us: Annotated[
        float,
        Meta(
            ge=0,
            le=10**6,
            description="Microseconds that training waits at most if a piece has to be given up: the kernel that runs "
            "has to end.",
        ),
    ] = 200.0
    dedicated_gpus: Annotated[
        int, Meta(ge=0, le=10**6, description="Devices that prefill only, for prompts that no wait takes.")
    ] = 0
    decode_batch: Annotated[
        int,
        Meta(
            ge=1, le=100_000, description="Requests that a device decodes together, for the time per token."
        ),
    ] = 16
    memory_gb_per_s: Annotated[
        float, positive(10**7, "Memory bandwidth of a device that decodes, in 10^9 bytes per second.")
    ] = 2000.0


class FillFile(SpanFile, frozen=True, forbid_unknown_fields=True, kw_only=True):
    """A span file with prompts whose prefill runs in the waits of its training."""

    prompts: PromptsPart
    inference: InferencePart
    jitter_pct: Annotated[
        float,
        Meta(
            ge=0,
            le=300,
            description="Coefficient of variation of each operation and transfer of training, in percent (log-normal).",
        ),
    ] = 0.0
    seconds: Annotated[
        float, positive(10**5, "Seconds of training to simulate. Whole iterations count, one at least.")
    ] = 20.0
    seed: Annotated[int, Meta(ge=0, le=2**63 - 1, description="Seed of prompts and jitter.")] = 0


OWN_FIELDS: Final = ("prompts", "inference", "jitter_pct", "seconds", "seed")
