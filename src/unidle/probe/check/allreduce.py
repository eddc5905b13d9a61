"""Bus bandwidth of an all-reduce: among the GPUs of one node (NCCL), or between processes on CPUs (gloo).

``python -m unidle.probe.check.allreduce`` is one rank of it, under the environment that torchrun gives; it prints
the rate on rank 0. Bus bandwidth is 2 (n - 1) / n times size over time, as nccl-tests count it.
"""

from __future__ import annotations

import argparse
import os
import socket
import subprocess
import sys
import time

from unidle.probe.check.model import Absent, Context, Outcome, ProbeResult, least, unknown
from unidle.words import counted


def node_allreduce(context: Context) -> Outcome:
    """Among all GPUs of the node that PyTorch sees."""
    from unidle.probe.check.gemm import devices, name_of

    try:
        gpus = [device for device in devices() if device != "cpu"]
    except ImportError:
        return Absent("PyTorch is not installed in unidle's environment")
    if len(gpus) < 2:
        return Absent("fewer than two GPUs that PyTorch can use")
    try:
        rate = run_ranks("nccl", len(gpus), 256 << 20, 20)
    except RuntimeError as error:
        return ProbeResult((unknown("allreduce", str(error)),))
    limits = context.limits(name_of(gpus[0]))
    limit = limits.allreduce_gb_per_s if len(gpus) >= (limits.devices or 0) else None  # it is of a whole node
    return ProbeResult(
        (least("allreduce", rate, "GB/s", limit, f"bus bandwidth of {counted(len(gpus), 'GPU')}, 256 MiB"),)
    )


def run_ranks(backend: str, ranks: int, size_bytes: int, times: int, timeout_s: float = 60.0) -> float:
    """GB/s of an all-reduce among ``ranks`` processes here. Errors: RuntimeError in one line."""
    with socket.create_server(("127.0.0.1", 0)) as free:
        port = free.getsockname()[1]
    command = [
        sys.executable,
        "-P",
        "-m",
        __name__,
        "--backend",
        backend,
        "--bytes",
        str(size_bytes),
        "--times",
        str(times),
    ]
    base = {**os.environ, "MASTER_ADDR": "127.0.0.1", "MASTER_PORT": str(port), "WORLD_SIZE": str(ranks)}
    started = [
        subprocess.Popen(
            command, env={**base, "RANK": str(rank), "LOCAL_RANK": str(rank)}, text=True,
            stdout=subprocess.PIPE, stderr=subprocess.PIPE, stdin=subprocess.DEVNULL,
        )
        for rank in range(ranks)
    ]  # fmt: skip
    until = time.monotonic() + timeout_s
    try:
        ended = [process.communicate(timeout=max(until - time.monotonic(), 0.1)) for process in started]
    except subprocess.TimeoutExpired:
        raise RuntimeError(f"the {backend} all-reduce did not end within {timeout_s:g} s") from None
    finally:
        for process in started:
            process.kill()
            process.communicate()
    for process, (_, error) in zip(started, ended, strict=True):
        if process.returncode:
            raise RuntimeError(
                f"the {backend} all-reduce failed: {(error.strip().splitlines() or ['?'])[-1]}"
            )
    return float(ended[0][0])


def main(argv: list[str] | None = None) -> int:
    """One rank."""
    parser = argparse.ArgumentParser(prog=f"python -m {__name__}")
    parser.add_argument("--backend", choices=("nccl", "gloo"), default="gloo")
    parser.add_argument("--bytes", type=int, default=64 << 20)
    parser.add_argument("--times", type=int, default=10)
    given = parser.parse_args(argv)
    import torch
    import torch.distributed as dist

    dist.init_process_group(given.backend)
    device = f"cuda:{os.environ['LOCAL_RANK']}" if given.backend == "nccl" else "cpu"
    if given.backend == "nccl":
        torch.cuda.set_device(device)
    data = torch.ones(given.bytes // 4, device=device)
    best = float("inf")
    for _ in range(given.times + 2):
        data.fill_(1.0)
        dist.barrier()
        begin = time.perf_counter()
        dist.all_reduce(data)
        if given.backend == "nccl":
            torch.cuda.synchronize()
        best = min(best, time.perf_counter() - begin)
    ranks = dist.get_world_size()
    right = bool((data == ranks).all())
    dist.destroy_process_group()
    if not right:
        sys.stderr.write("the sum is wrong\n")
        return 1
    if os.environ.get("RANK") == "0":
        sys.stdout.write(f"{2 * (ranks - 1) / ranks * given.bytes / best / 1e9:.6f}\n")
    return 0


if __name__ == "__main__":
    sys.exit(main())
