"""A small GPT as a list of layers, with its data and its loss: what `unidle span profile` measures for profiled.yaml."""

import torch
from torch import nn

VOCABULARY, LENGTH = 8192, 128


class Embed(nn.Module):
    def __init__(self, width):
        super().__init__()
        self.tokens, self.places = nn.Embedding(VOCABULARY, width), nn.Embedding(LENGTH, width)

    def forward(self, x):
        return self.tokens(x) + self.places.weight[: x.shape[1]]


class Block(nn.Module):
    def __init__(self, width, heads):
        super().__init__()
        self.heads = heads
        self.before, self.inner = nn.LayerNorm(width), nn.LayerNorm(width)
        self.qkv, self.out = nn.Linear(width, 3 * width), nn.Linear(width, width)
        self.up, self.down = nn.Linear(width, 4 * width), nn.Linear(4 * width, width)

    def forward(self, x):
        q, k, v = (
            part.unflatten(-1, (self.heads, -1)).transpose(1, 2)
            for part in self.qkv(self.before(x)).chunk(3, -1)
        )
        mixed = nn.functional.scaled_dot_product_attention(q, k, v, is_causal=True)
        x = x + self.out(mixed.transpose(1, 2).flatten(2))
        return x + self.down(nn.functional.gelu(self.up(self.inner(x))))


class Head(nn.Module):
    def __init__(self, width):
        super().__init__()
        self.norm, self.words = nn.LayerNorm(width), nn.Linear(width, VOCABULARY)

    def forward(self, x):
        return self.words(self.norm(x))


def build(blocks=6, width=256, heads=4):
    return nn.Sequential(Embed(width), *(Block(width, heads) for _ in range(blocks)), Head(width))


def batch(step, index, size, seed):
    generator = torch.Generator().manual_seed(seed * 1_000_003 + step * 1009 + index)
    text = torch.randint(0, VOCABULARY, (size, LENGTH + 1), generator=generator)
    return text[:, :-1], text[:, 1:]


def loss(output, target):
    return nn.functional.cross_entropy(output.flatten(0, 1), target.flatten())
