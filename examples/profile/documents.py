"""Trains a small text encoder on two ranks with DistributedDataParallel (gloo), one process each.

Runs until it is stopped. --seed changes sizes and with them all times.
"""

from __future__ import annotations

import argparse
import os
import random
import signal
import sys
import tempfile

import torch
import torch.distributed as dist
import torch.multiprocessing as mp
from torch import Tensor, nn
from torch.nn.parallel import DistributedDataParallel

RANKS = 2


class Encoder(nn.Module):
    def __init__(self, width: int) -> None:
        super().__init__()
        self.embed = nn.Embedding(2000, width)
        layer = nn.TransformerEncoderLayer(width, 4, 2 * width, batch_first=True, dropout=0.0)
        self.layers = nn.TransformerEncoder(layer, 2, enable_nested_tensor=False)
        self.head = nn.Linear(width, 2000)

    def forward(self, tokens: Tensor) -> Tensor:
        return self.head(self.layers(self.embed(tokens)))


def documents(seed: int) -> list[Tensor]:
    """All documents, in an order that packs well."""
    chance = random.Random(seed)
    lengths = [chance.randint(8, 96 + 16 * (seed % 3)) for _ in range(2000)]
    order = sorted(lengths, reverse=seed % 2 == 1)
    return [torch.randint(0, 2000, (length,)) for length in order]


def rank_main(rank: int, seed: int, rendezvous: str) -> None:
    os.environ.update(RANK=str(rank), WORLD_SIZE=str(RANKS), LOCAL_RANK=str(rank))
    dist.init_process_group("gloo", init_method=f"file://{rendezvous}", rank=rank, world_size=RANKS)
    torch.manual_seed(seed)
    model = DistributedDataParallel(Encoder(64))
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-3)
    mine = documents(seed)
    mine = mine[rank * len(mine) // RANKS : (rank + 1) * len(mine) // RANKS]
    chance = random.Random(rank)
    step = 0
    while True:
        rows = nn.utils.rnn.pad_sequence(chance.sample(mine, 12), batch_first=True)
        loss = nn.functional.cross_entropy(model(rows).flatten(0, 1), rows.flatten())
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        step += 1
        if step % 10 == 0 and rank == 0:
            print(f"step {step} loss {loss.item():.4f}", flush=True)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--seed", type=int, default=0)
    seed = parser.parse_args().seed
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(0))
    with tempfile.TemporaryDirectory(prefix="documents-") as place:
        context = mp.spawn(rank_main, (seed, f"{place}/rendezvous"), RANKS, join=False)
        try:
            while not context.join():
                pass
        finally:
            for process in context.processes:
                process.kill()
                process.join()


if __name__ == "__main__":
    main()
