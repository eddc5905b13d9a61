"""Trains an autoencoder of tables and writes down how much memory each step needs.

Runs until it is stopped. --seed changes sizes and with them all times.
"""

from __future__ import annotations

import argparse
import os
import subprocess
import sys

import torch
from torch import nn

MEMORY = "import sys; print(next(l for l in open(f'/proc/{sys.argv[1]}/status') if l.startswith('VmRSS')).split()[1])"


def memory_mib() -> float:
    told = subprocess.run(
        [sys.executable, "-S", "-c", MEMORY, str(os.getpid())], capture_output=True, text=True
    )
    return int(told.stdout) / 1024


def network(columns: int, width: int) -> nn.Module:
    return nn.Sequential(
        nn.Linear(columns, width),
        nn.SiLU(),
        nn.Linear(width, 16),
        nn.SiLU(),
        nn.Linear(16, width),
        nn.SiLU(),
        nn.Linear(width, columns),
    )


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--seed", type=int, default=0)
    seed = parser.parse_args().seed
    torch.manual_seed(seed)
    columns = 96 + 32 * (seed % 3)
    model = network(columns, 512)
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-3)
    most = 0.0
    step = 0
    while True:
        table = torch.randn(128, columns).cumsum(dim=1)
        loss = nn.functional.mse_loss(model(table), table)
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        most = max(most, memory_mib())
        step += 1
        if step % 50 == 0:
            print(f"step {step} loss {loss.item():.4f}, at most {most:.0f} MiB", flush=True)


if __name__ == "__main__":
    main()
