"""Models as a user writes them."""

from __future__ import annotations

import os
import signal
from typing import Any

import torch
from torch import Tensor, nn


class Block(nn.Module):
    def __init__(self, width: int) -> None:
        super().__init__()
        self.norm, self.up, self.act = nn.LayerNorm(width), nn.Linear(width, 4 * width), nn.GELU()
        self.down = nn.Linear(4 * width, width)

    def forward(self, x: Tensor) -> Tensor:
        made: Tensor = x + self.down(self.act(self.up(self.norm(x))))
        return made


class Model(nn.Module):
    """Something before a list of blocks, and something after it."""

    def __init__(self, blocks: int, width: int) -> None:
        super().__init__()
        self.tokens, self.places = nn.Embedding(50, width), nn.Embedding(8, width)
        self.blocks = nn.ModuleList(Block(width) for _ in range(blocks))
        self.norm, self.head = nn.LayerNorm(width), nn.Linear(width, 50)

    def forward(self, x: Tensor) -> Tensor:
        hidden = self.tokens(x) + self.places(torch.arange(8, device=x.device))
        for block in self.blocks:
            hidden = block(hidden)
        made: Tensor = self.head(self.norm(hidden))
        return made


def build(blocks: int = 2, width: int = 32) -> nn.Module:
    print("this is not an answer")
    return Model(blocks, width)


def layers() -> list[nn.Module]:
    return [nn.Linear(4, 4), nn.Linear(4, 4)]


def batch(step: int, index: int, size: int, seed: int) -> tuple[Tensor, Tensor]:
    made = torch.randint(0, 50, (size, 9), generator=torch.Generator().manual_seed(seed + index))
    return made[:, :-1], made[:, 1:]


def loss(output: Tensor, target: Tensor) -> Tensor:
    return nn.functional.cross_entropy(output.flatten(0, 1), target.flatten())


def no_batch(step: int, index: int, size: int, seed: int) -> str:
    return "text"


def number() -> int:
    return 7


def raises() -> nn.Module:
    raise ValueError("no weights here\nand more")


def huge() -> nn.Module:
    return nn.Sequential(nn.Linear(10**8, 10**8), nn.Linear(1, 1))


def killed() -> Any:
    os.kill(os.getpid(), signal.SIGKILL)
