"""Trains a small model that writes captions: features of a picture in, words out.

Runs until it is stopped. --seed changes data, sizes and with them all times.
"""

from __future__ import annotations

import argparse
import random

import torch
from torch import Tensor, nn
from torch.utils.data import DataLoader, Dataset

WORDS = 500


class Captions(Dataset[tuple[list[float], list[int]]]):
    def __init__(self, seed: int) -> None:
        self.chance = random.Random(seed)
        self.features = 512 + 128 * (seed % 3)
        self.rows = [self._row() for _ in range(512)]

    def _row(self) -> tuple[list[float], list[int]]:
        words = [self.chance.randrange(2, WORDS) for _ in range(self.chance.randint(8, 40))]
        return [self.chance.random() for _ in range(self.features)], words

    def __len__(self) -> int:
        return 100_000

    def __getitem__(self, k: int) -> tuple[list[float], list[int]]:
        return self.rows[k % len(self.rows)]


def batch(rows: list[tuple[list[float], list[int]]]) -> tuple[Tensor, Tensor]:
    longest = max(len(words) for _, words in rows)
    features = torch.zeros(len(rows), len(rows[0][0]))
    targets = torch.zeros(len(rows), longest, dtype=torch.long)
    for k, (values, words) in enumerate(rows):
        mean = sum(values) / len(values)
        spread = (sum((v - mean) ** 2 for v in values) / len(values)) ** 0.5
        for j, value in enumerate(values):
            features[k, j] = (value - mean) / spread
        for j, word in enumerate(words):
            targets[k, j] = word
    return features, targets


class Captioner(nn.Module):
    def __init__(self, features: int) -> None:
        super().__init__()
        self.look = nn.Linear(features, 32)
        self.say = nn.GRU(32, 32, batch_first=True)
        self.words = nn.Linear(32, WORDS)

    def forward(self, features: Tensor, length: int) -> Tensor:
        seen = self.look(features).unsqueeze(1).expand(-1, length, -1)
        return self.words(self.say(seen)[0])


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--seed", type=int, default=0)
    seed = parser.parse_args().seed
    torch.manual_seed(seed)
    data = Captions(seed)
    loader = DataLoader(data, batch_size=16 + 8 * (seed % 2), shuffle=True, collate_fn=batch)
    model = Captioner(data.features)
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-3)
    step = 0
    while True:
        for features, targets in loader:
            said = model(features, targets.shape[1])
            loss = nn.functional.cross_entropy(said.flatten(0, 1), targets.flatten(), ignore_index=0)
            optimizer.zero_grad()
            loss.backward()
            optimizer.step()
            step += 1
            if step % 10 == 0:
                print(f"step {step} loss {loss.item():.4f}", flush=True)


if __name__ == "__main__":
    main()
