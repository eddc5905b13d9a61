"""Trains a network on small molecules that are built again for each step from a catalogue of fragments.

Runs until it is stopped. --seed changes sizes and with them all times.
"""

from __future__ import annotations

import argparse
import gc
import random

import torch
from torch import Tensor, nn


class Atom:
    def __init__(self, element: int) -> None:
        self.element = element
        self.bonds: list[Atom] = []


class Molecule:
    def __init__(self, elements: list[int], chance: random.Random) -> None:
        self.atoms = [Atom(element) for element in elements]
        for atom in self.atoms[1:]:
            other = chance.choice(self.atoms)
            atom.bonds.append(other)
            other.bonds.append(atom)

    def features(self) -> list[int]:
        counts = [0] * 32
        for atom in self.atoms:
            counts[(atom.element + len(atom.bonds)) % 32] += 1
        return counts


def catalogue(chance: random.Random, size: int) -> list[dict[str, list[int]]]:
    return [{"elements": [chance.randrange(20) for _ in range(8)], "used": []} for _ in range(size)]


def batch(fragments: list[dict[str, list[int]]], chance: random.Random) -> Tensor:
    molecules = [Molecule(f["elements"] * 2, chance) for f in chance.sample(fragments, 16)]
    return torch.tensor([m.features() for m in molecules], dtype=torch.float32)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--seed", type=int, default=0)
    seed = parser.parse_args().seed
    torch.manual_seed(seed)
    chance = random.Random(seed)
    fragments = catalogue(chance, 60_000 + 30_000 * (seed % 3))
    model = nn.Sequential(nn.Linear(32, 512), nn.ReLU(), nn.Linear(512, 512), nn.ReLU(), nn.Linear(512, 1))
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-3)
    step = 0
    while True:
        features = batch(fragments, chance)
        loss = nn.functional.mse_loss(model(features).squeeze(1), features.sum(1))
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        step += 1
        if step % 2 == 0:
            gc.collect()  # memory grew without it
        if step % 10 == 0:
            print(f"step {step} loss {loss.item():.4f}", flush=True)


if __name__ == "__main__":
    main()
