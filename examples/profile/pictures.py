"""Trains a small convolutional classifier on pictures that are cut, turned and blurred on the way.

Runs until it is stopped. --seed changes data, sizes and with them all times.
"""

from __future__ import annotations

import argparse

import numpy as np
import torch
from torch import Tensor, nn
from torch.utils.data import DataLoader, Dataset


class Pictures(Dataset[tuple[Tensor, int]]):
    def __init__(self, seed: int) -> None:
        self.chance = np.random.default_rng(seed)
        self.side = 160 + 32 * (seed % 3)
        self.pictures = self.chance.integers(0, 256, (32, self.side, self.side, 3), dtype=np.uint8)

    def __len__(self) -> int:
        return 50_000

    def __getitem__(self, k: int) -> tuple[Tensor, int]:
        picture = self.pictures[k % len(self.pictures)].astype(np.float64) / 255
        if self.chance.random() < 0.5:
            picture = picture[:, ::-1]
        for _ in range(3):
            picture = (
                picture + np.roll(picture, 1, 0) + np.roll(picture, 1, 1) + np.roll(picture, -1, 0)
            ) / 4
        top, left = self.chance.integers(0, self.side - 64, 2)
        cut = picture[top : top + 64, left : left + 64]
        return torch.from_numpy(np.ascontiguousarray(cut.transpose(2, 0, 1))).float(), k % 10


def network() -> nn.Module:
    return nn.Sequential(
        nn.Conv2d(3, 8, 3, stride=2),
        nn.ReLU(),
        nn.Conv2d(8, 16, 3, stride=2),
        nn.ReLU(),
        nn.AdaptiveAvgPool2d(4),
        nn.Flatten(),
        nn.Linear(256, 10),
    )


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--workers", type=int, default=1)
    given = parser.parse_args()
    torch.manual_seed(given.seed)
    data = Pictures(given.seed)
    loader = DataLoader(data, batch_size=16, num_workers=given.workers, persistent_workers=given.workers > 0)
    model = network()
    optimizer = torch.optim.SGD(model.parameters(), lr=0.05, momentum=0.9)
    step = 0
    while True:
        for pictures, labels in loader:
            loss = nn.functional.cross_entropy(model(pictures), labels)
            optimizer.zero_grad()
            loss.backward()
            optimizer.step()
            step += 1
            if step % 20 == 0:
                print(f"step {step} loss {loss.item():.4f}", flush=True)


if __name__ == "__main__":
    main()
