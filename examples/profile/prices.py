"""Trains a network that guesses prices, and records its loss with an experiment tracker.

Runs until it is stopped. --seed changes sizes and with them all times. Without --tracker it starts one of its own.
"""

from __future__ import annotations

import argparse
import json
import signal
import subprocess
import sys
import urllib.request

import torch
from torch import nn

# Stands for the tracker's server, which is far away and writes to a database.
SERVER = """
import http.server, time
class Handler(http.server.BaseHTTPRequestHandler):
    def do_POST(self):
        self.rfile.read(int(self.headers["Content-Length"]))
        time.sleep({latency})
        self.send_response(200)
        self.end_headers()
    def log_message(self, *_):
        pass
server = http.server.ThreadingHTTPServer(("127.0.0.1", 0), Handler)
print(server.server_port, flush=True)
server.serve_forever()
"""


class Tracker:
    def __init__(self, url: str) -> None:
        self.url = url

    def log(self, **values: float) -> None:
        request = urllib.request.Request(self.url, json.dumps(values).encode(), method="POST")  # noqa: S310
        with urllib.request.urlopen(request) as answer:  # noqa: S310
            answer.read()


def train(seed: int, tracker: Tracker) -> None:
    torch.manual_seed(seed)
    width = 512 + 128 * (seed % 3)
    model = nn.Sequential(
        nn.Linear(64, width), nn.ReLU(), nn.Linear(width, width), nn.ReLU(), nn.Linear(width, 1)
    )
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-3)
    step = 0
    while True:
        houses = torch.randn(128, 64)
        loss = nn.functional.mse_loss(model(houses).squeeze(1), houses.abs().sum(1))
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        step += 1
        tracker.log(step=step, loss=loss.item())
        if step % 50 == 0:
            print(f"step {step} loss {loss.item():.4f}", flush=True)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--tracker", help="URL")
    given = parser.parse_args()
    if given.tracker:
        train(given.seed, Tracker(given.tracker))
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(0))
    program = SERVER.format(latency=0.012 + 0.006 * (given.seed % 3))
    server = subprocess.Popen([sys.executable, "-c", program], stdout=subprocess.PIPE, text=True)
    try:
        assert server.stdout is not None
        train(given.seed, Tracker(f"http://127.0.0.1:{int(server.stdout.readline())}/"))
    finally:
        server.kill()
        server.wait()


if __name__ == "__main__":
    main()
