"""A small network in float64 under DDP, with checkpoints by unidle: the job that the drill hurts.

torchrun --nproc-per-node 4 train.py --steps 100 --result result.pt
"""

from __future__ import annotations

import argparse
import time
from pathlib import Path

import torch
import torch.distributed as dist
from torch import nn
from torch.nn.parallel import DistributedDataParallel

from unidle.rank.checkpoint import Checkpointer

WIDTH = 64
BATCH = 32


class Data:
    """Samples by position: the position is all that has to be saved."""

    def __init__(self) -> None:
        self.position = 0

    def next(self) -> tuple[torch.Tensor, torch.Tensor]:
        """This rank's part of the next batch."""
        random = torch.Generator().manual_seed(self.position)
        x = torch.randn(BATCH, WIDTH, generator=random, dtype=torch.float64)
        self.position += 1
        mine = x[dist.get_rank() :: dist.get_world_size()]
        return mine, mine.flip(1).sin()

    def state_dict(self) -> dict[str, int]:
        return {"position": self.position}

    def load_state_dict(self, state: dict[str, int]) -> None:
        self.position = state["position"]


def train(args: argparse.Namespace) -> None:
    torch.manual_seed(1)
    layers = nn.Sequential(nn.Linear(WIDTH, WIDTH), nn.GELU(), nn.Linear(WIDTH, WIDTH)).to(torch.float64)
    model, data = DistributedDataParallel(layers), Data()
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-3)
    ckpt = Checkpointer(
        args.checkpoints, model=model, optimizer=optimizer, data=data, every=args.every, restore_test="read"
    )
    work = torch.randn(args.work, args.work) if args.work else None
    for step in range(ckpt.restore() + 1, args.steps + 1):
        x, y = data.next()
        begun = time.thread_time()
        while work is not None and time.thread_time() - begun < args.compute_s:
            work @ work  # stands for the work of a larger model
        loss = nn.functional.mse_loss(model(x), y)
        loss.backward()
        optimizer.step()
        optimizer.zero_grad()
        time.sleep(args.step_s)
        if dist.get_rank() == 0:
            print(f"step {step}: loss {loss.item():.12f}")
        ckpt.step(step)
    ckpt.close()
    if args.result and dist.get_rank() == 0:
        moments = {
            f"{k}.{name}": value for k, s in enumerate(optimizer.state.values()) for name, value in s.items()
        }
        torch.save(
            {"position": data.position, "model": layers.state_dict(), "optimizer": moments}, args.result
        )


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawTextHelpFormatter)
    parser.add_argument("--steps", type=int, default=100)
    parser.add_argument("--step-s", type=float, default=0.05, help="sleep in each step, to watch it")
    parser.add_argument("--compute-s", type=float, default=0.02, help="more processor time in each step")
    parser.add_argument("--work", type=int, default=64, help="size of the matrices for it; 0: none")
    parser.add_argument("--every", type=int, default=20, help="steps between checkpoints")
    parser.add_argument("--checkpoints", type=Path, default=Path("checkpoints"))
    parser.add_argument("--result", type=Path, help="where rank 0 writes the final state")
    args = parser.parse_args()
    dist.init_process_group("gloo")
    train(args)
    dist.barrier()
    time.sleep(1)  # gloo may abort a rank that is still in the barrier when a peer closes its connections
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
