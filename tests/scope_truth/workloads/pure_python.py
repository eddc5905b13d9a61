"""A simulation in plain Python with a pause between rounds; PyTorch is imported and hardly used."""

import random
import time
from dataclasses import dataclass

import torch
from timers import steps, timed


@dataclass
class Walker:
    x: float = 0.0
    y: float = 0.0

    def move(self, chance: random.Random) -> float:
        self.x += chance.gauss(0, 1)
        self.y += chance.gauss(0, 1)
        return (self.x**2 + self.y**2) ** 0.5


chance = random.Random(0)
walkers = [Walker() for _ in range(300)]
weights = torch.randn(256, 256)

for _ in steps():
    with timed("python"):
        far = [max(walker.move(chance) for walker in walkers) for _ in range(12)]
    with timed("compute"):
        for _ in range(3):
            weights @ weights
    with timed("idle"):
        time.sleep(0.004)
    assert far
