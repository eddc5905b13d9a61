"""What every model of text is here: an embedding, layers that attend through a cache, and logits."""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass
from typing import Final, Protocol

import torch
from torch.nn import functional

from unidle.fill.serve.model.config import ModelConfig, Rotary


@dataclass(slots=True)
class Activations:
    """What passes from layer to layer, and all of it: ``x`` of shape [tokens, hidden], ``positions`` [tokens].

    ``turn``: cosine and sine of rotary embedding, each [tokens, 1, head_dim].
    """

    x: torch.Tensor
    positions: torch.Tensor
    turn: tuple[torch.Tensor, torch.Tensor] | None = None


class Attend(Protocol):
    """Attention of new tokens over those of the same sequence in the cache, and over themselves."""

    def __call__(self, layer: int, q: torch.Tensor, k: torch.Tensor, v: torch.Tensor) -> torch.Tensor:
        """Store ``k`` and ``v`` [tokens, kv_heads, head_dim]; return [tokens, heads, head_dim] for ``q`` of the same shape."""
        ...


class CausalModel(Protocol):
    """A model. A pass is ``begin``, each ``layer`` in order, ``logits``; it can pause between any two of them."""

    config: ModelConfig
    weight_bytes: int

    def begin(self, tokens: torch.Tensor, positions: torch.Tensor) -> Activations:
        """Embed tokens [tokens]."""
        ...

    def layer(self, index: int, state: Activations, attend: Attend) -> None:
        """Replace ``state.x`` with the output of a layer."""
        ...

    def logits(self, x: torch.Tensor) -> torch.Tensor:
        """float32 [rows, vocabulary] for the rows [rows, hidden]."""
        ...


ACTIVATION: Final[dict[str, Callable[[torch.Tensor], torch.Tensor]]] = {
    "gelu": functional.gelu,
    "gelu_new": lambda x: functional.gelu(x, approximate="tanh"),
    "gelu_pytorch_tanh": lambda x: functional.gelu(x, approximate="tanh"),
    "relu": functional.relu,
    "silu": functional.silu,
}


def frequencies(rotary: Rotary, head_dim: int, device: torch.device) -> torch.Tensor:
    """Inverse frequencies [head_dim / 2] of rotary embedding, scaled as Hugging Face does."""
    steps = torch.arange(0, head_dim, 2, dtype=torch.int64).float() / head_dim
    plain = 1.0 / (rotary.theta**steps)
    if rotary.kind == "linear":
        plain = plain / rotary.factor
    elif rotary.kind == "llama3":
        length = 2 * math.pi / plain
        low, high = rotary.low_freq_factor, rotary.high_freq_factor
        smooth = (rotary.original_context / length - low) / (high - low)
        between = (1 - smooth) * plain / rotary.factor + smooth * plain
        slow = torch.where(length > rotary.original_context / low, plain / rotary.factor, between)
        plain = torch.where(length < rotary.original_context / high, plain, slow)
    return plain.to(device)


def turned(x: torch.Tensor, turn: tuple[torch.Tensor, torch.Tensor]) -> torch.Tensor:
    """Rotary embedding of [tokens, heads, head_dim]."""
    cos, sin = turn
    first, second = x.chunk(2, dim=-1)
    return x * cos + torch.cat((-second, first), dim=-1) * sin
