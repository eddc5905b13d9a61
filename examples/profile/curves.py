"""Fits a network to noisy curves and tells a log shipper each step how every layer fares.

Runs until it is stopped. --seed changes sizes and with them all times.
"""

from __future__ import annotations

import argparse
import json
import signal
import subprocess
import sys

import torch
from torch import nn

# Stands for the agent that takes log lines from a pipe and sends them to a collector.
SHIPPER = """
import sys, time
while block := sys.stdin.buffer.read1(2048):
    time.sleep({pause})
"""


def network(width: int, depth: int) -> nn.Sequential:
    layers: list[nn.Module] = [nn.Linear(1, width)]
    for _ in range(depth):
        layers += [nn.Tanh(), nn.Linear(width, width)]
    return nn.Sequential(*layers, nn.Tanh(), nn.Linear(width, 1))


def described(step: int, loss: float, model: nn.Module) -> str:
    norms = {
        name: {"weight": p.norm().item(), "gradient": p.grad.norm().item()}
        for name, p in model.named_parameters()
        if p.grad is not None
    }
    return json.dumps({"step": step, "loss": loss, "norms": norms})


def train(seed: int, log: subprocess.Popen[str]) -> None:
    torch.manual_seed(seed)
    model = network(96 + 32 * (seed % 2), 10)
    optimizer = torch.optim.Adam(model.parameters(), lr=1e-3)
    step = 0
    assert log.stdin is not None
    while True:
        x = torch.rand(256, 1) * 6
        y = torch.sin(x * (1 + seed % 4)) + 0.1 * torch.randn_like(x)
        loss = nn.functional.mse_loss(model(x), y)
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        step += 1
        log.stdin.write(described(step, loss.item(), model) + "\n")
        log.stdin.flush()
        if step % 50 == 0:
            print(f"step {step} loss {loss.item():.4f}", flush=True)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--seed", type=int, default=0)
    seed = parser.parse_args().seed
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(0))
    program = SHIPPER.format(pause=0.06 + 0.03 * (seed % 3))
    log = subprocess.Popen([sys.executable, "-c", program], stdin=subprocess.PIPE, text=True)
    try:
        train(seed, log)
    finally:
        log.kill()
        log.wait()


if __name__ == "__main__":
    main()
