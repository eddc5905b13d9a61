"""The shape of a decoder, how it is trained or served, and how it is cut. Sizes in values unless a name has a unit."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Final, Literal

Precision = Literal["fp32", "bf16", "fp8", "int8", "int4"]
Optimizer = Literal["adamw", "momentum", "sgd"]
WEIGHT_BITS: Final = {"fp32": 32, "bf16": 16, "fp8": 8, "int8": 8, "int4": 4}
VALUE_BYTES: Final = {"fp32": 4, "bf16": 2, "fp8": 2, "int8": 2, "int4": 2}
"""Of an activation; products of 8 and 4 bits are added up and kept in 16."""
GROUP: Final = 128
"""Weights that share one scale of 2 bytes, at 8 and 4 bits."""


@dataclass(frozen=True, slots=True)
class DecoderModel:
    """A decoder in the form of GPT-2, or with ``gated`` in that of Llama (RMSNorm, rotary positions, gated MLP)."""

    layers: int
    hidden: int
    heads: int
    kv_heads: int
    head_dim: int
    intermediate: int
    vocabulary: int
    positions: int = 0
    gated: bool = True
    bias: bool = False
    tied: bool = False

    @property
    def layer_parameters(self) -> int:
        """Of one layer: attention, MLP and two norms."""
        h, q, kv, i = (
            self.hidden,
            self.heads * self.head_dim,
            self.kv_heads * self.head_dim,
            self.intermediate,
        )
        linear = h * (q + 2 * kv) + q * h + (3 if self.gated else 2) * h * i
        bias = (q + 2 * kv + h + (2 * i if self.gated else i) + h) if self.bias else 0
        return linear + bias + (2 * h if self.gated else 4 * h)

    @property
    def embedding_parameters(self) -> int:
        """Tokens, positions, the last norm, and the output where it is not tied."""
        return (
            self.vocabulary * self.hidden * (1 if self.tied else 2)
            + self.positions * self.hidden
            + self.hidden * (1 if self.gated else 2)
        )

    @property
    def parameters(self) -> int:
        """Of the whole model."""
        return self.layers * self.layer_parameters + self.embedding_parameters

    @property
    def layer_values(self) -> int:
        """Values that the backward pass of a layer needs, for each token, with fused attention.

        GPT-2: input, norm, q k v, attention, input and norm of the MLP, and its inner values twice. Llama: input, normalized and
        scaled input twice, q k v with repeated keys and values, attention, and four inner values.
        """
        q = self.heads * self.head_dim
        if self.gated:
            return 6 * self.hidden + 4 * q + 4 * self.intermediate
        return 4 * self.hidden + 4 * q + 2 * self.intermediate

    @property
    def layer_statistics(self) -> int:
        """Values of 4 bytes for each token: of the two norms, and one for each head of attention."""
        return self.heads + (2 if self.gated else 4)


@dataclass(frozen=True, slots=True)
class Use:
    """What is done with it. ``batch`` in sequences of ``sequence`` tokens on one device; ``training`` false: served."""

    batch: int = 1
    sequence: int = 2048
    precision: Precision = "bf16"
    training: bool = True
    optimizer: Optimizer = "adamw"
    recompute: bool = False


@dataclass(frozen=True, slots=True)
class ShardedOver:
    """Over how many devices. ``zero``: 0 none, 1 optimizer, 2 gradients too, 3 weights too (as FSDP), over ``data`` devices."""

    tensor: int = 1
    pipeline: int = 1
    data: int = 1
    zero: int = 0
