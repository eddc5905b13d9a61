"""A small GPT as a list of layers, its data and its loss: what examples/span/train.yaml trains. Nothing in it knows of unidle."""

from __future__ import annotations

import torch
from torch import Tensor, nn

VOCABULARY = 64


class Embedding(nn.Module):
    """Tokens and their places as vectors."""

    def __init__(self, width: int, length: int) -> None:
        super().__init__()
        self.token = nn.Embedding(VOCABULARY, width)
        self.place = nn.Parameter(torch.zeros(length, width))

    def forward(self, tokens: Tensor) -> Tensor:
        return self.token(tokens) + self.place[: tokens.shape[1]]


class Block(nn.Module):
    """Attention and a small network, each with a residual connection."""

    def __init__(self, width: int, heads: int) -> None:
        super().__init__()
        self.heads = heads
        self.before = nn.LayerNorm(width)
        self.mix = nn.Linear(width, 3 * width)
        self.out = nn.Linear(width, width)
        self.between = nn.LayerNorm(width)
        self.net = nn.Sequential(nn.Linear(width, 4 * width), nn.GELU(), nn.Linear(4 * width, width))

    def forward(self, x: Tensor) -> Tensor:
        batch, length, width = x.shape
        parts = self.mix(self.before(x)).view(batch, length, 3, self.heads, width // self.heads)
        q, k, v = parts.permute(2, 0, 3, 1, 4)
        mixed = nn.functional.scaled_dot_product_attention(q, k, v, is_causal=True)
        x = x + self.out(mixed.transpose(1, 2).reshape(batch, length, width))
        return x + self.net(self.between(x))


class Head(nn.Module):
    """Vectors as scores of the next token."""

    def __init__(self, width: int) -> None:
        super().__init__()
        self.norm = nn.LayerNorm(width)
        self.scores = nn.Linear(width, VOCABULARY)

    def forward(self, x: Tensor) -> Tensor:
        return self.scores(self.norm(x))


def build(blocks: int = 6, width: int = 128, heads: int = 4, length: int = 64) -> nn.Sequential:
    """The layers, which a cut counts: embedding, blocks, head."""
    return nn.Sequential(Embedding(width, length), *(Block(width, heads) for _ in range(blocks)), Head(width))


def batch(_step: int, _index: int, size: int, seed: int, length: int = 64) -> tuple[Tensor, Tensor]:
    """One microbatch, ``seed`` being its own: sequences that count up by a stride, so that there is something to learn."""
    chance = torch.Generator().manual_seed(seed)
    first = torch.randint(VOCABULARY, (size, 1), generator=chance)
    stride = torch.randint(1, 8, (size, 1), generator=chance)
    tokens = (first + stride * torch.arange(length + 1)) % VOCABULARY
    return tokens[:, :-1], tokens[:, 1:]


def loss(scores: Tensor, target: Tensor) -> Tensor:
    return nn.functional.cross_entropy(scores.flatten(0, 1), target.flatten())
