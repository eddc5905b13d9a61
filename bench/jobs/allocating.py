"""Allocates and frees in a known pattern; prints its own sums when its standard input says to begin and to end.

Every round makes tensors of two sizes and frees one of them; the other is kept for ten rounds.
"""

from __future__ import annotations

import argparse
import json
import sys
import time
from collections import deque

import torch

SMALL, LARGE = 3_000_000, 17_000_000  # bytes, over what malloc takes from the system in pieces of their own


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("--rounds", type=int, default=300)
    parser.add_argument("--pause-s", type=float, default=0.01)
    given = parser.parse_args()
    kept: deque[torch.Tensor] = deque(maxlen=10)
    torch.empty(8)
    print("ready", flush=True)
    sys.stdin.readline()
    began = time.perf_counter()
    for _ in range(given.rounds):
        torch.empty(SMALL, dtype=torch.uint8)
        kept.append(torch.empty(LARGE, dtype=torch.uint8))
        time.sleep(given.pause_s)
    took = time.perf_counter() - began
    told = {
        "allocated_bytes": given.rounds * (SMALL + LARGE),
        "allocations": 2 * given.rounds,
        "live_bytes": len(kept) * LARGE,
        "seconds": took,
    }
    print(json.dumps(told), flush=True)
    sys.stdin.readline()


if __name__ == "__main__":
    main()
