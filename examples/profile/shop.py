"""Trains a recommender of things to buy; a thread gets the next batch ready from a table of recent visits.

Runs until it is stopped. --seed changes sizes and with them all times.
"""

from __future__ import annotations

import argparse
import queue
import threading
import zlib

import torch
from torch import Tensor, nn

THINGS = 5000


class Visits:
    """Recent visits, packed; read by the thread that makes batches, and written by the one that trains."""

    def __init__(self, seed: int) -> None:
        self.lock = threading.Lock()
        self.packed = [
            zlib.compress(torch.randint(0, THINGS, (40_000,)).numpy().tobytes()) for _ in range(16)
        ]
        self.size = 4 + seed % 3
        self.scores: dict[int, float] = {}

    def batch(self) -> tuple[Tensor, Tensor]:
        with self.lock:
            rows = []
            for k in torch.randint(0, len(self.packed), (self.size,)).tolist():
                seen = torch.frombuffer(bytearray(zlib.decompress(self.packed[k])), dtype=torch.int64)
                rows.append(seen[:2048])
        things = torch.cat(rows)
        return things, (things % 7 == 0).float()

    def note(self, thing: int, score: float) -> None:
        with self.lock:
            self.scores[thing] = score


def prefetch(visits: Visits, ready: queue.Queue[tuple[Tensor, Tensor]]) -> None:
    latest = visits.batch()
    while True:
        try:
            ready.put_nowait(latest)
        except queue.Full:
            pass  # keeps the batch fresh until it is wanted
        latest = visits.batch()


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--seed", type=int, default=0)
    seed = parser.parse_args().seed
    torch.manual_seed(seed)
    visits = Visits(seed)
    ready: queue.Queue[tuple[Tensor, Tensor]] = queue.Queue(maxsize=8)
    threading.Thread(target=prefetch, args=(visits, ready), daemon=True).start()
    model = nn.Sequential(nn.Embedding(THINGS, 32), nn.Linear(32, 64), nn.ReLU(), nn.Linear(64, 1))
    optimizer = torch.optim.SGD(model.parameters(), lr=0.05)
    step = 0
    while True:
        things, bought = ready.get()
        for part, wanted in zip(things.split(1024), bought.split(1024), strict=True):
            loss = nn.functional.binary_cross_entropy_with_logits(model(part).squeeze(1), wanted)
            optimizer.zero_grad()
            loss.backward()
            optimizer.step()
            visits.note(int(part[0]), loss.item())
            step += 1
            if step % 100 == 0:
                print(f"step {step} loss {loss.item():.4f}", flush=True)


if __name__ == "__main__":
    main()
