"""A trainer that shares a table with a thread that holds its lock while it sorts."""

import threading

import torch
from timers import steps, timed
from torch import nn

lock = threading.Lock()
table = torch.randn(400_000)


def keep_sorted() -> None:
    while True:
        with lock:
            table.sort()
        torch.randn(60_000).sort()


model = nn.Sequential(nn.Linear(256, 512), nn.ReLU(), nn.Linear(512, 1))
optimizer = torch.optim.SGD(model.parameters(), lr=0.01)
threading.Thread(target=keep_sorted, daemon=True).start()
for _ in steps():
    with timed("compute"):
        rows = torch.randn(128, 256)
        loss = nn.functional.mse_loss(model(rows).squeeze(1), rows.sum(1))
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
    with timed("lock"):
        lock.acquire()
    lock.release()
