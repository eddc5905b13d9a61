"""Trains a recurrent model of hourly weather, with a cell of its own design.

Runs until it is stopped. --seed changes sizes and with them all times.
"""

from __future__ import annotations

import argparse

import torch
from torch import Tensor, nn


class Cell(nn.Module):
    def __init__(self, inputs: int, width: int) -> None:
        super().__init__()
        self.forget = nn.Linear(inputs + width, width)
        self.write = nn.Linear(inputs + width, width)
        self.show = nn.Linear(inputs + width, width)
        self.scale = nn.Parameter(torch.ones(width))
        self.shift = nn.Parameter(torch.zeros(width))

    def forward(self, x: Tensor, hidden: Tensor, memory: Tensor) -> tuple[Tensor, Tensor]:
        both = torch.cat([x, hidden], dim=1)
        keep = torch.sigmoid(self.forget(both))
        memory = keep * memory + (1 - keep) * torch.tanh(self.write(both))
        middle = memory - memory.mean(dim=1, keepdim=True)
        memory = middle / (middle.pow(2).mean(dim=1, keepdim=True) + 1e-5).sqrt() * self.scale + self.shift
        return torch.sigmoid(self.show(both)) * torch.tanh(memory), memory


class Weather(nn.Module):
    def __init__(self, width: int) -> None:
        super().__init__()
        self.cell = Cell(6, width)
        self.width = width
        self.head = nn.Linear(width, 6)

    def forward(self, hours: Tensor) -> Tensor:
        hidden = memory = hours.new_zeros(hours.shape[0], self.width)
        told = []
        for k in range(hours.shape[1]):
            hidden, memory = self.cell(hours[:, k], hidden, memory)
            told.append(self.head(hidden))
        return torch.stack(told, dim=1)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--seed", type=int, default=0)
    seed = parser.parse_args().seed
    torch.manual_seed(seed)
    model = Weather(8 + 4 * (seed % 3))
    optimizer = torch.optim.Adam(model.parameters(), lr=1e-3)
    step = 0
    while True:
        hours = torch.randn(8, 49 + 24 * (seed % 2), 6)
        loss = nn.functional.mse_loss(model(hours[:, :-1]), hours[:, 1:])
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        step += 1
        if step % 20 == 0:
            print(f"step {step} loss {loss.item():.4f}", flush=True)


if __name__ == "__main__":
    main()
