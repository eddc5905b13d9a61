"""Trains a small language model of bytes and keeps its state, so that it can go on after a restart.

Runs until it is stopped. --seed changes sizes and with them all times; files go to --dir, else to a place of their own.
"""

from __future__ import annotations

import argparse
import os
import signal
import sys
import tempfile
from pathlib import Path

import torch
from torch import Tensor, nn


class Model(nn.Module):
    def __init__(self, width: int) -> None:
        super().__init__()
        self.embed = nn.Embedding(256, width)
        layer = nn.TransformerEncoderLayer(width, 4, 4 * width, batch_first=True, dropout=0.0)
        self.layers = nn.TransformerEncoder(layer, 2, enable_nested_tensor=False)
        self.head = nn.Linear(width, 256)

    def forward(self, tokens: Tensor) -> Tensor:
        mask = nn.Transformer.generate_square_subsequent_mask(tokens.shape[1])
        return self.head(self.layers(self.embed(tokens), mask=mask, is_causal=True))


def keep(path: Path, step: int, model: nn.Module, optimizer: torch.optim.Optimizer) -> None:
    fresh = path.with_suffix(".new")
    with fresh.open("wb") as file:
        torch.save({"step": step, "model": model.state_dict(), "optimizer": optimizer.state_dict()}, file)
        file.flush()
        os.fsync(file.fileno())
    fresh.replace(path)


def train(seed: int, place: Path) -> None:
    torch.manual_seed(seed)
    model = Model(256 + 64 * (seed % 3))
    optimizer = torch.optim.AdamW(model.parameters(), lr=3e-4)
    text = torch.randint(0, 256, (100_000,))
    step = 0
    while True:
        starts = torch.randint(0, len(text) - 33, (4,))
        rows = torch.stack([text[s : s + 33] for s in starts])
        loss = nn.functional.cross_entropy(model(rows[:, :-1]).flatten(0, 1), rows[:, 1:].flatten())
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        step += 1
        if step % (1 + seed % 2) == 0:
            keep(place / "last.pt", step, model, optimizer)
        if step % 20 == 0:
            print(f"step {step} loss {loss.item():.4f}", flush=True)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--dir", type=Path)
    given = parser.parse_args()
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(0))
    with tempfile.TemporaryDirectory(prefix="language-") as own:
        train(given.seed, given.dir or Path(own))


if __name__ == "__main__":
    main()
