"""Train a small byte-level GPT with PyTorch's DistributedDataParallel.

    torchrun --nproc-per-node 4 train.py --steps 200

The text is the source of Python's own standard library. Checkpoints are written whole or not at all,
and a run that is started again goes on from the newest good one, on the same data as if it had
never stopped.
"""

from __future__ import annotations

import argparse
import math
import os
import sysconfig
import time
from pathlib import Path

import torch
import torch.distributed as dist
from torch import nn
from torch.nn import functional as F  # noqa: N812
from torch.nn.parallel import DistributedDataParallel

TEXT_BYTES = 4_000_000


def arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawTextHelpFormatter)
    parser.add_argument("--steps", type=int, default=240)
    parser.add_argument("--lr", type=float, default=3e-3)
    parser.add_argument("--batch", type=int, default=8, help="sequences per rank and step")
    parser.add_argument("--context", type=int, default=64, help="bytes per sequence")
    parser.add_argument("--layers", type=int, default=2)
    parser.add_argument("--heads", type=int, default=4)
    parser.add_argument("--width", type=int, default=64)
    parser.add_argument("--checkpoint-dir", type=Path, default=Path("checkpoints"))
    parser.add_argument("--checkpoint-every", type=int, default=20)
    parser.add_argument("--eval-every", type=int, default=60)
    parser.add_argument("--log-every", type=int, default=1)
    parser.add_argument("--seed", type=int, default=1)
    return parser.parse_args()


# ---- text


def load_text() -> tuple[torch.Tensor, torch.Tensor]:
    """The standard library's sources as bytes: nine tenths to train on, one tenth to evaluate."""
    text = bytearray()
    for path in sorted(Path(sysconfig.get_path("stdlib")).glob("*.py")):
        text += path.read_bytes()
        if len(text) >= TEXT_BYTES:
            break
    data = torch.frombuffer(text, dtype=torch.uint8)
    cut = len(data) * 9 // 10
    return data[:cut], data[cut:]


def batch_of(data: torch.Tensor, args: argparse.Namespace, *key: int) -> tuple[torch.Tensor, torch.Tensor]:
    """A batch that depends on the seed and ``key`` only, so that a resumed run sees the same data."""
    seed = args.seed
    for part in key:
        seed = (seed * 1_000_003 + part) % 2**63
    random = torch.Generator().manual_seed(seed)
    starts = torch.randint(len(data) - args.context - 1, (args.batch,), generator=random)
    rows = torch.stack([data[s : s + args.context + 1] for s in starts.tolist()]).long()
    return rows[:, :-1], rows[:, 1:]


# ---- model


class Block(nn.Module):
    def __init__(self, width: int, heads: int) -> None:
        super().__init__()
        self.heads = heads
        self.norm1, self.norm2 = nn.LayerNorm(width), nn.LayerNorm(width)
        self.qkv, self.out = nn.Linear(width, 3 * width), nn.Linear(width, width)
        self.mlp = nn.Sequential(nn.Linear(width, 4 * width), nn.GELU(), nn.Linear(4 * width, width))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        batch, context, width = x.shape
        qkv = self.qkv(self.norm1(x)).view(batch, context, 3, self.heads, width // self.heads)
        q, k, v = qkv.permute(2, 0, 3, 1, 4)
        mixed = F.scaled_dot_product_attention(q, k, v, is_causal=True)
        x = x + self.out(mixed.transpose(1, 2).reshape(batch, context, width))
        return x + self.mlp(self.norm2(x))


class GPT(nn.Module):
    def __init__(self, args: argparse.Namespace) -> None:
        super().__init__()
        self.byte = nn.Embedding(256, args.width)
        self.place = nn.Embedding(args.context, args.width)
        self.blocks = nn.Sequential(*(Block(args.width, args.heads) for _ in range(args.layers)))
        self.norm = nn.LayerNorm(args.width)
        self.head = nn.Linear(args.width, 256, bias=False)

    def forward(self, x: torch.Tensor, y: torch.Tensor) -> torch.Tensor:
        hidden = self.byte(x) + self.place(torch.arange(x.shape[1], device=x.device))
        logits = self.head(self.norm(self.blocks(hidden)))
        return F.cross_entropy(logits.flatten(0, 1), y.flatten())


# ---- checkpoints


def save(args: argparse.Namespace, step: int, model: nn.Module, optimizer: torch.optim.Optimizer) -> None:
    """Write to a temporary name, sync, rename: a reader sees the whole checkpoint or none. The last two are kept."""
    args.checkpoint_dir.mkdir(parents=True, exist_ok=True)
    path = args.checkpoint_dir / f"step_{step:06d}.pt"
    beside = path.with_suffix(".tmp")
    with beside.open("wb") as file:
        torch.save({"step": step, "model": model.state_dict(), "optimizer": optimizer.state_dict()}, file)
        file.flush()
        os.fsync(file.fileno())
    beside.replace(path)
    folder = os.open(args.checkpoint_dir, os.O_RDONLY)
    os.fsync(folder)
    os.close(folder)
    for old in sorted(args.checkpoint_dir.glob("step_*.pt"))[:-2]:
        old.unlink()


def newest_good(args: argparse.Namespace) -> dict | None:
    """The newest checkpoint that can be read."""
    for path in sorted(args.checkpoint_dir.glob("step_*.pt"), reverse=True):
        try:
            return torch.load(path, map_location="cpu", weights_only=True)
        except (OSError, RuntimeError, EOFError) as error:
            print(f"skipping {path}: {error}")
    return None


def resume(args: argparse.Namespace, model: nn.Module, optimizer: torch.optim.Optimizer) -> int:
    """Load what rank 0 finds on every rank; returns the number of steps done."""
    found = [newest_good(args) if dist.get_rank() == 0 else None]
    dist.broadcast_object_list(found)
    if found[0] is None:
        return 0
    model.load_state_dict(found[0]["model"])
    optimizer.load_state_dict(found[0]["optimizer"])
    return found[0]["step"]


# ---- training


@torch.no_grad()
def evaluate(model: nn.Module, args: argparse.Namespace, data: torch.Tensor, device: str) -> float:
    """Mean loss over a few fixed batches, shared out among the ranks."""
    model.eval()
    batches = [batch_of(data, args, 0, dist.get_rank(), k) for k in range(4)]
    loss = torch.stack([model(x.to(device), y.to(device)) for x, y in batches]).mean()
    dist.all_reduce(loss)
    model.train()
    return loss.item() / dist.get_world_size()


def learning_rate(args: argparse.Namespace, step: int) -> float:
    """A short warm-up, then a cosine down to a tenth."""
    warm = min(1.0, step / 20)
    return args.lr * warm * (0.55 + 0.45 * math.cos(math.pi * step / args.steps))


def warm_up(model: nn.Module, args: argparse.Namespace, data: torch.Tensor, device: str) -> None:
    """One pass that changes nothing: DDP settles the order of its sums after the first.

    Without it a resumed run would add up its first gradients in another order, and so differ a bit.
    """
    x, y = batch_of(data, args, 0, dist.get_rank())
    model(x.to(device), y.to(device)).backward()
    model.zero_grad()


def train(args: argparse.Namespace, device: str) -> None:
    rank = dist.get_rank()
    torch.manual_seed(args.seed)
    training, validation = load_text()
    raw = GPT(args).to(device)
    optimizer = torch.optim.AdamW(raw.parameters(), lr=args.lr)
    done = resume(args, raw, optimizer)
    model = DistributedDataParallel(raw)
    warm_up(model, args, training, device)
    if rank == 0:
        size = sum(p.numel() for p in raw.parameters())
        print(f"{size:,} parameters, {len(training):,} bytes of text, from step {done}")
    for step in range(done + 1, args.steps + 1):
        begin = time.perf_counter()
        for group in optimizer.param_groups:
            group["lr"] = learning_rate(args, step)
        x, y = batch_of(training, args, step, rank)
        loss = model(x.to(device), y.to(device))
        loss.backward()
        nn.utils.clip_grad_norm_(raw.parameters(), 1.0)
        optimizer.step()
        optimizer.zero_grad()
        if rank == 0 and (step % args.log_every == 0 or step == args.steps):
            print(f"iter {step}: loss {loss.item():.4f}, time {(time.perf_counter() - begin) * 1e3:.2f}ms")
        if step % args.eval_every == 0 or step == args.steps:
            losses = [evaluate(raw, args, data, device) for data in (training, validation)]
            if rank == 0:
                print(f"step {step}: train loss {losses[0]:.4f}, val loss {losses[1]:.4f}")
        if rank == 0 and (step % args.checkpoint_every == 0 or step == args.steps):
            save(args, step, raw, optimizer)


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
