"""Programs that rows start: `work.py DEVICE PROGRAM ...`. They know nothing of unidle but its checkpoints.

DEVICE is `cuda` (the GPU that the process sees first) or `cpu`.
"""

from __future__ import annotations

import hashlib
import json
import os
import select
import signal
import sys
import time
from collections.abc import Callable
from pathlib import Path

import torch
from torch import nn


def visible(device: str) -> None:
    """What PyTorch sees."""
    count = torch.cuda.device_count() if torch.cuda.is_available() else 0
    uuid = str(getattr(torch.cuda.get_device_properties(0), "uuid", "")) if count else ""
    print(json.dumps({"count": count, "uuid": uuid, "device": device}))


def burn(device: str) -> None:
    """Full load until it is killed."""
    a, b = (torch.randn(4096, 4096, device=device) for _ in range(2))
    (a @ b).sum().item()
    print("burning", flush=True)
    for _ in range(100_000):
        for _ in range(10):
            a @ b
        synchronize(device)


def rate(device: str, place: str, ranks: str, seconds: str) -> None:
    """Products a second while all ranks multiply, into PLACE/rate.RANK; they wait for each other first."""
    rank, folder = os.environ.get("RANK", "0"), Path(place)
    size = 4096 if device == "cuda" else 256
    kind = torch.bfloat16 if device == "cuda" else torch.float32
    a, b = (torch.randn(size, size, device=device).to(kind) for _ in range(2))
    for _ in range(5):
        a @ b
    synchronize(device)
    (folder / f"ready.{rank}").touch()
    while len(list(folder.glob("ready.*"))) < int(ranks):
        time.sleep(0.005)
    done, began = 0, time.perf_counter()
    while time.perf_counter() - began < float(seconds):
        for _ in range(10):
            a @ b
        synchronize(device)
        done += 10
    told = {
        "rate": done / (time.perf_counter() - began), "ended_ns": time.monotonic_ns(),
        "mps": os.environ.get("CUDA_MPS_PIPE_DIRECTORY", ""),
        "threads": os.environ.get("CUDA_MPS_ACTIVE_THREAD_PERCENTAGE", ""),
    }  # fmt: skip
    (folder / f"rate.{rank}").write_text(json.dumps(told))


def train(device: str, place: str, steps: str, kill_after_s: str) -> None:
    """Train with checkpoints in memory at each step; the first attempt kills itself after some time (0: it does not).

    PLACE gets `killed`, `entered` and `resumed` (monotonic ns), and `digest`, of all parameters and moments.
    """
    folder, again = Path(place), os.environ["TORCHELASTIC_RESTART_COUNT"] != "0"
    if again:
        stamp(folder / "entered")
    import torch.distributed as dist

    from unidle.rank.checkpoint import Checkpointer

    if device == "cuda":
        torch.cuda.set_device(0)
    dist.init_process_group("nccl" if device == "cuda" else "gloo")
    torch.manual_seed(1)
    width = 1024 if device == "cuda" else 64
    model = nn.Sequential(nn.Linear(width, 4 * width), nn.GELU(), nn.Linear(4 * width, width)).to(device)
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-3)
    saver = Checkpointer(
        folder / "checkpoints", model=model, optimizer=optimizer, every=50, restore_test="read"
    )
    first = saver.restore() + 1
    began = time.monotonic()
    for step in range(first, int(steps) + 1):
        data = torch.randn(256, width, generator=torch.Generator().manual_seed(step)).to(device)
        loss = nn.functional.mse_loss(model(data), data.sin())
        loss.backward()  # type: ignore[no-untyped-call]
        optimizer.step()
        optimizer.zero_grad()
        print(f"step {step}: loss {loss.item():.6f}", flush=True)
        saver.step(step)
        if again:
            stamp(folder / "resumed")
        if not again and 0 < float(kill_after_s) <= time.monotonic() - began:
            (folder / "step").write_text(str(step))
            stamp(folder / "killed")
            os.kill(os.getpid(), signal.SIGKILL)
        time.sleep(0.05)
        if again and step >= int((folder / "step").read_text()) + 5:
            break  # a few steps prove it
    saver.close()
    state = [*model.state_dict().values(), *(v for s in optimizer.state.values() for v in s.values())]
    content = b"".join(t.detach().float().cpu().contiguous().numpy().tobytes() for t in state)
    (folder / "state").write_bytes(content)
    (folder / "digest").write_text(f"{step} {hashlib.sha256(content).hexdigest()}")
    dist.destroy_process_group()


def profiled(device: str, seconds: str) -> None:
    """Train and print how many steps were done."""
    step = trainer(device)
    for _ in range(5):
        step()
    print("ready", flush=True)
    done, began = 0, time.monotonic()
    while time.monotonic() - began < float(seconds):
        step()
        done += 1
    print(json.dumps({"steps": done, "seconds": time.monotonic() - began}), flush=True)


def traced(device: str, trace: str) -> None:
    """Train under torch.profiler: its trace, and what it counts of kernels itself."""
    from torch.profiler import ProfilerActivity, profile

    step = trainer(device)
    for _ in range(5):
        step()
    kinds = [ProfilerActivity.CPU] + ([ProfilerActivity.CUDA] if device == "cuda" else [])
    with profile(activities=kinds) as seen:
        for _ in range(20):
            step()
    seen.export_chrome_trace(trace)
    events = json.loads(Path(trace).read_text())["traceEvents"]
    kernels = [event for event in events if event.get("cat") == "kernel"]
    print(json.dumps({"kernels": len(kernels), "kernel_us": sum(event["dur"] for event in kernels)}))


def injected(device: str) -> None:
    """The steps of `traced` without torch.profiler, once a line was read; it then goes on until the next one, and ends."""
    step = trainer(device)
    for _ in range(5):
        step()
    synchronize(device)
    print("ready", flush=True)
    sys.stdin.readline()
    began_ns = time.time_ns()
    for _ in range(20):
        step()
    synchronize(device)
    print(json.dumps({"began_ns": began_ns, "ended_ns": time.time_ns()}), flush=True)
    while not select.select([sys.stdin], [], [], 0)[0]:
        step()


def count(device: str, file: str) -> None:
    """Count on the device, a number a tenth of a second, each into FILE."""
    total = torch.zeros(1, device=device)
    while True:
        total += 1
        Path(file).write_text(str(int(total.item())))
        time.sleep(0.1)


def trainer(device: str) -> Callable[[], None]:
    """A step: a batch from pinned memory, forward, backward, optimizer, and a loss that is read."""
    width = 1024
    model = nn.Sequential(nn.Linear(width, width), nn.GELU(), nn.Linear(width, width)).to(device)
    optimizer = torch.optim.AdamW(model.parameters())
    host = torch.randn(512, width)
    host = host.pin_memory() if device == "cuda" else host

    def step() -> None:
        batch = host.to(device, non_blocking=True) if device == "cuda" else host.clone()
        loss = nn.functional.mse_loss(model(batch), batch)
        loss.backward()  # type: ignore[no-untyped-call]
        optimizer.step()
        optimizer.zero_grad()
        loss.item()

    return step


def synchronize(device: str) -> None:
    if device == "cuda":
        torch.cuda.synchronize()


def stamp(path: Path) -> None:
    """Note the time of what happens for the first time."""
    if not path.exists():
        path.write_text(str(time.monotonic_ns()))


if __name__ == "__main__":
    programs = {f.__name__: f for f in (visible, burn, rate, train, profiled, traced, injected, count)}
    programs[sys.argv[2]](sys.argv[1], *sys.argv[3:])
