"""The trainer shares a table with a thread that holds its lock while it sorts."""

import threading

import torch
from timers import steps, timed

lock = threading.Lock()
table = torch.randn(400_000)
matrix = torch.randn(256, 256)


def keep_sorted() -> None:
    while True:
        with lock:
            table.sort()
        torch.randn(60_000).sort()


threading.Thread(target=keep_sorted, daemon=True).start()
for _ in steps():
    with timed("compute"):
        for _ in range(12):
            matrix @ matrix
    with timed("lock"):
        lock.acquire()
    lock.release()
