"""Train a small network with checkpoints that survive the death of ranks and nodes.

    torchrun --nproc-per-node 2 train.py --steps 200
    torchrun --nproc-per-node 2 train.py --steps 200 --fsdp

Start it again, on the same number of ranks or another, and it goes on where it was.
"""

from __future__ import annotations

import argparse
import os
import time
from pathlib import Path

import torch
import torch.distributed as dist
from torch import nn
from torch.distributed.fsdp import fully_shard
from torch.nn.parallel import DistributedDataParallel

from unidle.rank.checkpoint import Checkpointer


def arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawTextHelpFormatter)
    parser.add_argument("--steps", type=int, default=200)
    parser.add_argument("--batch", type=int, default=64, help="samples per step, over all ranks")
    parser.add_argument("--width", type=int, default=64)
    parser.add_argument("--fsdp", action="store_true", help="shard parameters (FSDP2) instead of DDP")
    parser.add_argument("--checkpoint-dir", type=Path, default=Path("checkpoints"))
    parser.add_argument("--checkpoint-every", default="auto", help="steps, or auto: by the cost model")
    parser.add_argument("--memory-every", type=int, default=1, help="steps between copies in memory")
    parser.add_argument("--restore-test", default="load", choices=("load", "read"))
    parser.add_argument("--step-s", type=float, default=0.0, help="slow each step down, to watch it")
    parser.add_argument("--result", type=Path, help="where rank 0 writes the final state, to compare runs")
    return parser.parse_args()


class Data:
    """Samples by position: the position is all that has to be saved."""

    def __init__(self, args: argparse.Namespace) -> None:
        self.args, self.position = args, 0

    def next(self) -> tuple[torch.Tensor, torch.Tensor]:
        """This rank's part of the next batch."""
        random = torch.Generator().manual_seed(self.position)
        x = torch.randn(self.args.batch, self.args.width, generator=random, dtype=torch.float64)
        self.position += 1
        mine = x[dist.get_rank() :: dist.get_world_size()]
        return mine, mine.flip(1).sin()

    def state_dict(self) -> dict[str, int]:
        return {"position": self.position}

    def load_state_dict(self, state: dict[str, int]) -> None:
        self.position = state["position"]


def build(args: argparse.Namespace, device: str) -> nn.Module:
    torch.manual_seed(1)
    model = nn.Sequential(
        nn.Linear(args.width, 4 * args.width), nn.GELU(), nn.LayerNorm(4 * args.width), nn.Linear(4 * args.width, args.width)
    ).to(device, torch.float64)  # fmt: skip
    if args.fsdp:
        fully_shard(model)
        return model
    return DistributedDataParallel(model)


def train(args: argparse.Namespace, device: str) -> None:
    model, data = build(args, device), Data(args)
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-3)
    scheduler = torch.optim.lr_scheduler.CosineAnnealingLR(optimizer, args.steps)
    every = args.checkpoint_every if args.checkpoint_every == "auto" else int(args.checkpoint_every)
    ckpt = Checkpointer(
        args.checkpoint_dir, model=model, optimizer=optimizer, data=data, extra={"scheduler": scheduler},
        every=every, memory_every=args.memory_every, restore_test=args.restore_test,
    )  # fmt: skip
    start = ckpt.restore()
    for step in range(start + 1, args.steps + 1):
        x, y = data.next()
        loss = nn.functional.mse_loss(model(x.to(device)), y.to(device))
        loss.backward()
        optimizer.step()
        optimizer.zero_grad()
        scheduler.step()
        time.sleep(args.step_s)
        if dist.get_rank() == 0:
            print(f"step {step}: loss {loss.item():.12f}")
        ckpt.step(step)
    ckpt.close()
    if args.result:
        write_result(args, model, optimizer, data)


def write_result(
    args: argparse.Namespace, model: nn.Module, optimizer: torch.optim.Optimizer, data: Data
) -> None:
    """Parameters, optimizer and data position as plain tensors."""
    whole = {f"model.{k.removeprefix('module.')}": full(v) for k, v in model.state_dict().items()}
    for k, state in enumerate(optimizer.state.values()):
        whole |= {f"optimizer.{k}.{key}": full(value) for key, value in state.items()}
    if dist.get_rank() == 0:
        torch.save({"position": data.position, "tensors": whole}, args.result)


def full(tensor: torch.Tensor) -> torch.Tensor:
    return (tensor.full_tensor() if hasattr(tensor, "full_tensor") else tensor).detach().cpu()


def main() -> None:
    args = arguments()
    gpus = torch.cuda.is_available()
    device = f"cuda:{int(os.environ['LOCAL_RANK']) % torch.cuda.device_count()}" if gpus else "cpu"
    if gpus:
        torch.cuda.set_device(device)
    dist.init_process_group("nccl" if gpus else "gloo")
    train(args, device)
    dist.barrier()
    if not gpus:
        time.sleep(1)  # gloo may abort a rank that is still in the barrier when a peer closes its connections
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
