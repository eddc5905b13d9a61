"""User code as anyone would write it: a small transformer with dropout, its data, its loss, an optimizer of its own."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor, nn

WORDS, LENGTH = 13, 6


class Embed(nn.Module):
    def __init__(self, width: int) -> None:
        super().__init__()
        self.words = nn.Embedding(WORDS, width)
        self.places = nn.Parameter(torch.randn(LENGTH, width) / 10)

    def forward(self, tokens: Tensor) -> Tensor:
        return self.words(tokens) + self.places


class Block(nn.Module):
    def __init__(self, width: int, dropout: float, shared: bool = False) -> None:
        super().__init__()
        self.before, self.between = nn.LayerNorm(width), nn.LayerNorm(width)
        self.mix = nn.Linear(width, 3 * width)
        self.out = nn.Linear(width, width)
        self.up, self.down = nn.Linear(width, 2 * width), nn.Linear(2 * width, width)
        if shared:  # the same weights three times in a layer
            self.before = self.between
            self.out.weight = nn.Parameter(self.mix.weight.detach()[:width].clone())
        self.shared = shared
        self.drop = nn.Dropout(dropout)

    def forward(self, x: Tensor) -> Tensor:
        q, k, v = (
            part.unflatten(-1, (2, -1)).transpose(1, 2) for part in self.mix(self.before(x)).chunk(3, -1)
        )
        mixed = nn.functional.scaled_dot_product_attention(q, k, v, is_causal=True)
        x = x + self.drop(self.out(mixed.transpose(1, 2).flatten(2)))
        for _ in range(3 if self.shared else 1):
            x = x + self.drop(self.down(torch.nn.functional.gelu(self.up(self.between(x)))))
        return x


class Head(nn.Module):
    def __init__(self, width: int) -> None:
        super().__init__()
        self.norm, self.words = nn.LayerNorm(width), nn.Linear(width, WORDS, bias=False)

    def forward(self, x: Tensor) -> Tensor:
        return self.words(self.norm(x))


def build(blocks: int = 4, width: int = 8, dropout: float = 0.1, shared: bool = False) -> nn.Module:
    return nn.Sequential(
        Embed(width), *(Block(width, dropout, shared and k == 1) for k in range(blocks)), Head(width)
    )


class Listed(nn.Module):
    """Blocks in a ModuleList: no Sequential to cut."""

    def __init__(self, blocks: int, width: int, dropout: float) -> None:
        super().__init__()
        self.embed, self.head = Embed(width), Head(width)
        self.blocks = nn.ModuleList(Block(width, dropout) for _ in range(blocks))
        self.register_buffer("scale", torch.ones(1))

    def forward(self, tokens: Tensor) -> Tensor:
        x = self.embed(tokens) * self.scale
        for block in self.blocks:
            x = block(x)
        return self.head(x)


def listed(blocks: int = 3, width: int = 8, dropout: float = 0.1) -> nn.Module:
    return Listed(blocks, width, dropout)


def loss(output: Tensor, target: Tensor) -> Tensor:
    return nn.functional.cross_entropy(output.flatten(0, 1), target.flatten())


def batch(step: int, index: int, size: int, generator_seed: int) -> tuple[Tensor, Tensor]:
    made = torch.Generator().manual_seed(generator_seed)
    tokens = torch.randint(WORDS, (size, LENGTH + 1), generator=made)
    return tokens[:, :-1], tokens[:, 1:]


def momentum(parameters: list[nn.Parameter], lr: float) -> torch.optim.Optimizer:
    return torch.optim.SGD(parameters, lr=lr, momentum=0.9, nesterov=True)


def faulty(**_: Any) -> nn.Module:
    raise RuntimeError("no such shape")


def tied() -> nn.Module:
    one, other = nn.Linear(4, 4), nn.Linear(4, 4)
    other.weight = one.weight
    return nn.Sequential(one, nn.ReLU(), other)


def broken(output: Tensor, target: Tensor) -> Tensor:
    return output.sum() * (1 // 0)
