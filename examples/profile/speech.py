"""Trains a small network that tells spoken digits apart, while next epoch's spectrograms are made at the same time.

Runs until it is stopped. --seed changes sizes and with them all times.
"""

from __future__ import annotations

import argparse
import multiprocessing
import os
import signal
import sys

import numpy as np
import torch
from torch import nn


def spectrograms(seed: int) -> None:
    chance = np.random.default_rng(seed)
    window = np.hanning(400)
    while os.getppid() != 1:
        sound = chance.standard_normal(16_000)
        parts = np.lib.stride_tricks.sliding_window_view(sound, 400)[::160] * window
        np.log1p(np.abs(np.fft.rfft(parts, axis=1)) ** 2)


def network(width: int) -> nn.Module:
    return nn.Sequential(
        nn.Conv1d(64, width, 5, stride=2),
        nn.GELU(),
        nn.Conv1d(width, width, 5, stride=2),
        nn.GELU(),
        nn.AdaptiveAvgPool1d(4),
        nn.Flatten(),
        nn.Linear(4 * width, 10),
    )


def train(seed: int) -> None:
    torch.manual_seed(seed)
    model = network(96 + 32 * (seed % 3))
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-3)
    step = 0
    while True:
        sounds, digits = torch.randn(16, 64, 98), torch.randint(0, 10, (16,))
        loss = nn.functional.cross_entropy(model(sounds), digits)
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        step += 1
        if step % 50 == 0:
            print(f"step {step} loss {loss.item():.4f}", flush=True)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--makers", type=int, help="processes that make spectrograms")
    given = parser.parse_args()
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(0))
    makers = given.makers or 2 * len(os.sched_getaffinity(0))
    spawn = multiprocessing.get_context("spawn")
    for k in range(makers):
        spawn.Process(target=spectrograms, args=(given.seed * 100 + k,), daemon=True).start()
    train(given.seed)


if __name__ == "__main__":
    main()
