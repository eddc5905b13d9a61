"""A decoder-only transformer that runs a prompt layer by layer and chunk by chunk, its keys and values explicit. PyTorch, on the CPU."""

from __future__ import annotations

import math
from dataclasses import dataclass, field

import torch
from torch import Tensor
from torch.nn.functional import gelu, layer_norm, linear, scaled_dot_product_attention


@dataclass(frozen=True, slots=True)
class TransformerShape:
    """``context``: the longest prompt, in tokens."""

    layers: int = 4
    width: int = 128
    heads: int = 4
    vocabulary: int = 256
    context: int = 1024


@dataclass(slots=True)
class Caches:
    """Keys and values of one prompt: of each layer a tensor (heads, tokens, width of a head), as many tokens as have run."""

    keys: list[Tensor | None]
    values: list[Tensor | None]
    size_bytes: int = 0


class Transformer:
    """Weights from a seed: the same seed gives the same model everywhere."""

    def __init__(self, shape: TransformerShape, seed: int = 0) -> None:
        self.shape = shape
        chance = torch.Generator().manual_seed(seed)

        def made(*size: int) -> Tensor:
            return torch.randn(*size, generator=chance) / math.sqrt(size[-1])

        width = shape.width
        self._tokens, self._places = made(shape.vocabulary, width), made(shape.context, width)
        self._layers = [
            _Layer(made(3 * width, width), made(width, width), made(4 * width, width), made(width, 4 * width))
            for _ in range(shape.layers)
        ]
        self._head = made(shape.vocabulary, width)

    def caches(self) -> Caches:
        """Of a prompt of which nothing has run."""
        return Caches([None] * self.shape.layers, [None] * self.shape.layers)

    def kv_bytes(self, tokens: int) -> int:
        """Keys and values of so many tokens, in all layers."""
        return 2 * self.shape.layers * tokens * self.shape.width * 4

    def embed(self, tokens: Tensor, start: int) -> Tensor:
        """The chunk ``tokens`` of a prompt, from position ``start``: (tokens, width)."""
        with torch.no_grad():
            return self._tokens[tokens] + self._places[start : start + len(tokens)]

    def layer(self, number: int, x: Tensor, caches: Caches) -> Tensor:
        """One layer over a chunk, after all earlier chunks of the prompt; its keys and values are added to ``caches``."""
        with torch.no_grad():
            return self._layers[number](x, number, caches, self.shape.heads)

    def next_token(self, x: Tensor) -> int:
        """The greedy token after the chunk whose last layer is ``x``."""
        with torch.no_grad():
            last = layer_norm(x[-1:], (self.shape.width,))
            return int(linear(last, self._head).argmax())


@dataclass(slots=True)
class _Layer:
    mix: Tensor
    out: Tensor
    up: Tensor
    down: Tensor
    _masks: dict[tuple[int, int], Tensor] = field(default_factory=dict)

    def __call__(self, x: Tensor, number: int, caches: Caches, heads: int) -> Tensor:
        count, width = x.shape
        parts = linear(layer_norm(x, (width,)), self.mix).view(count, 3, heads, width // heads)
        q, k, v = parts.permute(1, 2, 0, 3)
        before, past = caches.keys[number], caches.values[number]
        if before is not None and past is not None:
            k, v = torch.cat((before, k), 1), torch.cat((past, v), 1)
        caches.keys[number], caches.values[number] = k, v
        caches.size_bytes += 2 * count * width * 4
        mask = torch.ones(count, k.shape[1], dtype=torch.bool).tril(k.shape[1] - count)
        mixed = scaled_dot_product_attention(q[None], k[None], v[None], attn_mask=mask)[0]
        x = x + linear(mixed.transpose(0, 1).reshape(count, width), self.out)
        return x + linear(gelu(linear(layer_norm(x, (width,)), self.up)), self.down)
