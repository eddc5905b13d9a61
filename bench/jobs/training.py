"""A training process for the profiler's benchmarks: prints when each step ended, how long it took, and its processor time.

All in nanoseconds.

SIGUSR1 starts and stops torch.profiler in it, the one contestant that cannot look from outside.
"""

from __future__ import annotations

import argparse
import signal
import time
from typing import Any

import torch
from torch import Tensor, nn


class Model(nn.Module):
    """A small transformer over vectors."""

    def __init__(self, width: int) -> None:
        super().__init__()
        layer = nn.TransformerEncoderLayer(width, 4, 4 * width, batch_first=True, dropout=0.0)
        self.layers = nn.TransformerEncoder(layer, 2, enable_nested_tensor=False)
        self.head = nn.Linear(width, width)

    def forward(self, rows: Tensor) -> Tensor:
        made: Tensor = self.head(self.layers(rows))
        return made


def text(step: int) -> int:
    """Some work in Python, as a data pipeline has it."""
    return len({f"{step}-{k}".upper() for k in range(1500)})


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("--width", type=int, default=128)
    parser.add_argument("--batch", type=int, default=16)
    given = parser.parse_args()
    asked = [False]
    signal.signal(signal.SIGUSR1, lambda *_: asked.__setitem__(0, not asked[0]))
    model = Model(given.width)
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-4)
    profiler: Any = None
    step = 0
    while True:
        if asked[0] and profiler is None:
            profiler = torch.profiler.profile(activities=[torch.profiler.ProfilerActivity.CPU])
            profiler.start()
        elif not asked[0] and profiler is not None:
            profiler.stop()
            profiler = None
        start, used = time.monotonic_ns(), time.process_time_ns()
        text(step)
        rows = torch.randn(given.batch, 32, given.width)
        loss = nn.functional.mse_loss(model(rows), rows)
        optimizer.zero_grad()
        loss.backward()  # type: ignore[no-untyped-call]
        optimizer.step()
        end = time.monotonic_ns()
        step += 1
        print(end, end - start, time.process_time_ns() - used, flush=True)


if __name__ == "__main__":
    main()
