"""Ranks with gloo: two that train, each listens for its peers, for a store, and for HTTP requests for its figures.

With ``reduce`` three ranks that only run a model and reduce its output among them.
"""

from __future__ import annotations

import os
import sys
import threading
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from multiprocessing import get_context

import torch
import torch.distributed as dist
from torch import nn


class Figures(BaseHTTPRequestHandler):
    def do_GET(self) -> None:
        body = b"loss 1.0\n" * 50
        self.send_response(200)
        self.send_header("Content-Length", str(len(body)))
        self.end_headers()
        self.wfile.write(body)

    def log_message(self, *_: object) -> None:
        pass


def train(rank: int, store: str) -> None:
    torch.manual_seed(0)
    dist.init_process_group("gloo", init_method=f"file://{store}", rank=rank, world_size=2)
    model = nn.Sequential(nn.Embedding(256, 64), nn.Flatten(), nn.Linear(64 * 16, 256))
    wrapped = nn.parallel.DistributedDataParallel(model)
    optimizer = torch.optim.SGD(wrapped.parameters(), lr=0.01)
    if rank == 0:
        server = ThreadingHTTPServer(("127.0.0.1", 0), Figures)
        threading.Thread(target=server.serve_forever, daemon=True).start()
        print(server.server_port, flush=True)
    while True:
        text = torch.randint(0, 256, (32, 16))
        loss = nn.functional.cross_entropy(wrapped(text), text[:, 0])
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()


def reduce(rank: int, store: str) -> None:
    dist.init_process_group("gloo", init_method=f"file://{store}", rank=rank, world_size=3)
    model = nn.Linear(256, 256)
    if rank == 0:
        print(0, flush=True)
    with torch.no_grad():
        while True:
            dist.all_reduce(model(torch.ones(64, 256)))


if __name__ == "__main__":
    os.environ.setdefault("GLOO_SOCKET_IFNAME", "lo")
    run, world = (reduce, 3) if sys.argv[2:] == ["reduce"] else (train, 2)
    ranks = [
        get_context("spawn").Process(target=run, args=(r, sys.argv[1]), daemon=True) for r in range(world)
    ]
    for one in ranks:
        one.start()
    sys.stdin.read()
    for one in ranks:
        one.kill()
        one.join()
