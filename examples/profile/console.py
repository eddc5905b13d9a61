"""Trains a network in the background of a console that shows how far it is.

Runs until it is stopped. --seed changes sizes and with them all times.
"""

from __future__ import annotations

import argparse
import threading
import time
from dataclasses import dataclass, field

import torch
from torch import nn


@dataclass(slots=True)
class Progress:
    step: int = 0
    losses: list[float] = field(default_factory=list)


def train(seed: int, progress: Progress) -> None:
    torch.manual_seed(seed)
    width = 48 + 16 * (seed % 3)
    model = nn.Sequential(
        nn.Linear(32, width), nn.ReLU(), nn.Linear(width, width), nn.ReLU(), nn.Linear(width, 4)
    )
    optimizer = torch.optim.Adam(model.parameters(), lr=1e-3)
    while True:
        rows, kinds = torch.randn(64, 32), torch.randint(0, 4, (64,))
        loss = nn.functional.cross_entropy(model(rows), kinds)
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        progress.step += 1
        progress.losses = [*progress.losses[-199:], loss.item()]


def curve(losses: list[float]) -> str:
    if not losses:
        return ""
    low, high = min(losses), max(losses)
    return "".join(" .:-=+*#"[int(7 * (loss - low) / (high - low or 1))] for loss in losses[-60:])


def show(progress: Progress) -> None:
    shown, last = "", time.monotonic()
    while True:
        line = f"step {progress.step} {curve(progress.losses)}"
        if line != shown and time.monotonic() - last > 0.5:
            print(line, flush=True)
            shown, last = line, time.monotonic()


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--seed", type=int, default=0)
    progress = Progress()
    threading.Thread(
        target=train, args=(parser.parse_args().seed, progress), name="trainer", daemon=True
    ).start()
    show(progress)


if __name__ == "__main__":
    main()
