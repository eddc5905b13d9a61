"""A rank of the checkpoint benchmark: steps of a fixed length on a state of a given size; prints what saving cost.

The step's work is a sleep: what a CPU does while a GPU computes. The state changes at each step.
"""

from __future__ import annotations

import argparse
import json
import os
import time
from pathlib import Path

import torch
import torch.distributed as dist

from unidle.rank.checkpoint import Checkpointer


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("how", choices=("unidle", "torch.save"))
    parser.add_argument("--megabytes", type=int, required=True)
    parser.add_argument("--steps", type=int, required=True)
    parser.add_argument("--step-s", type=float, required=True)
    parser.add_argument("--every", type=int, required=True)
    parser.add_argument("--directory", type=Path, required=True)
    args = parser.parse_args()
    dist.init_process_group("gloo")
    torch.manual_seed(0)
    width = 1024
    layers = max(1, args.megabytes * 2**20 // (3 * 4 * width * width))  # parameters, and AdamW's two moments
    model = torch.nn.Sequential(*(torch.nn.Linear(width, width, bias=False) for _ in range(layers)))
    optimizer = torch.optim.AdamW(model.parameters())
    for parameter in model.parameters():
        parameter.grad = torch.ones_like(parameter)
    told: dict[str, object] = {"bytes": 3 * 4 * layers * width * width}
    if args.how == "unidle":
        ckpt = Checkpointer(
            args.directory, model=model, optimizer=optimizer, every=args.every, restore_test="read"
        )
        dist.barrier()
        begin = time.perf_counter()
        start = ckpt.restore()
        told |= {"restore_s": time.perf_counter() - begin, "start": start}
    else:
        start = 0
    stalls = []
    for step in range(start + 1, start + args.steps + 1):
        optimizer.step()
        time.sleep(args.step_s)
        dist.barrier()
        begin = time.perf_counter()
        if args.how == "unidle":
            ckpt.step(step)
        elif step % args.every == 0 and dist.get_rank() == 0:
            save(args.directory, step, model, optimizer)
        if args.how != "unidle":
            dist.barrier()  # the others wait for the one that writes
        stalls.append(time.perf_counter() - begin)
        print(f"step {step}", flush=True)
    if args.how == "unidle":
        ckpt.close()
    print(json.dumps(told | {"stalls_s": stalls}), flush=True)
    dist.barrier()
    time.sleep(0.5)
    dist.destroy_process_group()


def save(directory: Path, step: int, model: torch.nn.Module, optimizer: torch.optim.Optimizer) -> None:
    directory.mkdir(parents=True, exist_ok=True)
    with (directory / f"step_{step}.tmp").open("wb") as file:
        torch.save({"model": model.state_dict(), "optimizer": optimizer.state_dict()}, file)
        file.flush()
        os.fsync(file.fileno())
    (directory / f"step_{step}.tmp").replace(directory / f"step_{step}.pt")


if __name__ == "__main__":
    main()
