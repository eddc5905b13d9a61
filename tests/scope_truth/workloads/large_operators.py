"""A wide network, forward, backward and optimizer, with a moving average kept by hand in Python."""

import torch
from timers import steps, timed
from torch import nn

model = nn.Sequential(nn.Linear(512, 1024), nn.GELU(), nn.Linear(1024, 1024), nn.GELU(), nn.Linear(1024, 10))
optimizer = torch.optim.AdamW(model.parameters(), lr=1e-4)
history = [float(k) for k in range(3000)]


def smooth(values: list[float]) -> list[float]:
    out, mean = [], 0.0
    for value in values:
        mean = 0.98 * mean + 0.02 * value
        out.append(mean)
    return out


for _ in steps():
    with timed("compute"):
        loss = nn.functional.cross_entropy(model(torch.randn(96, 512)), torch.randint(0, 10, (96,)))
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
    with timed("python"):
        for _ in range(60):
            history = smooth(history)
