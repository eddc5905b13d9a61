"""Ranks (gloo) of the straggler benchmark: one process each, all with the same work, but one that takes longer.

Starts them, prints "warm" when all have stepped, and runs until it is stopped.
"""

from __future__ import annotations

import argparse
import os
import signal
import subprocess
import sys
import tempfile
import time

import torch
import torch.distributed as dist
from torch import nn
from torch.nn.parallel import DistributedDataParallel


def delayed(how: str, ms: float) -> None:
    """Take that long: on a CPU in Python, or blocked as in a read."""
    end = time.perf_counter() + ms / 1e3
    if how == "blocked":
        time.sleep(ms / 1e3)
    while time.perf_counter() < end:
        pass


def rank_main(rank: int, given: argparse.Namespace) -> None:
    os.environ.update(RANK=str(rank), WORLD_SIZE=str(given.ranks))
    torch.manual_seed(0)
    dist.init_process_group(
        "gloo", init_method=f"file://{given.rendezvous}", rank=rank, world_size=given.ranks
    )
    model = DistributedDataParallel(nn.Sequential(nn.Linear(256, 512), nn.ReLU(), nn.Linear(512, 256)))
    optimizer = torch.optim.SGD(model.parameters(), lr=0.01)
    step = 0
    while True:
        time.sleep(given.device_ms / 1e3)  # what a CPU does while a GPU computes
        if rank == given.late:
            delayed(given.how, given.late_ms)
        rows = torch.randn(32, 256)
        loss = nn.functional.mse_loss(model(rows), rows)
        optimizer.zero_grad()
        loss.backward()  # type: ignore[no-untyped-call]
        optimizer.step()
        step += 1
        if rank == 0 and step == 5:
            print("warm", flush=True)


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("--ranks", type=int, default=2)
    parser.add_argument("--late", type=int, default=-1)
    parser.add_argument("--late-ms", type=float, default=10.0)
    parser.add_argument("--device-ms", type=float, default=30.0)
    parser.add_argument("--how", choices=("busy", "blocked"), default="busy")
    parser.add_argument("--rank", type=int)
    parser.add_argument("--rendezvous")
    given = parser.parse_args()
    if given.rank is not None:
        rank_main(given.rank, given)
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(0))
    with tempfile.TemporaryDirectory() as place:
        ranks = []
        for rank in range(given.ranks):
            more = ["--rank", str(rank), "--rendezvous", f"{place}/r"]
            env = os.environ | {"RANK": str(rank), "WORLD_SIZE": str(given.ranks)}
            ranks.append(subprocess.Popen([sys.executable, *sys.argv, *more], env=env))
        try:
            ranks[0].wait()
        finally:
            for process in ranks:
                process.kill()
                process.wait()


if __name__ == "__main__":
    main()
