"""Trains for a number of steps under torch.profiler on request, and prints which operators that counted.

counted.py STEPS
"""

from __future__ import annotations

import json
import sys
import time
from collections import Counter

import torch
from torch import nn
from torch.profiler import ProfilerActivity, profile

PAUSE_S = 0.06  # some hundred operators a step: few enough for the budget of the probes


def main(steps: int) -> None:
    model = nn.Sequential(nn.Linear(16, 32), nn.LayerNorm(32), nn.ReLU(), nn.Linear(32, 4))
    optimizer = torch.optim.AdamW(model.parameters(), fused=True)
    rows, wanted = torch.randn(8, 16), torch.randint(0, 4, (8,))

    def train(count: int, pause_s: float) -> None:
        for _ in range(count):
            optimizer.zero_grad()
            nn.functional.cross_entropy(model(rows), wanted).backward()  # type: ignore[no-untyped-call]
            optimizer.step()
            time.sleep(pause_s)

    with profile(activities=[ProfilerActivity.CPU]):
        train(2, 0)
    print("ready", flush=True)
    sys.stdin.readline()
    with profile(activities=[ProfilerActivity.CPU]) as seen:
        train(steps, PAUSE_S)
    # The events as recorded: the profiler's tables leave out operators that call themselves.
    assert seen.profiler is not None
    assert seen.profiler.kineto_results is not None
    events = Counter(e.name() for e in seen.profiler.kineto_results.events() if e.name().startswith("aten::"))
    names = {}
    for schema in torch._C._jit_get_all_schemas():  # noqa: SLF001
        names["_".join(filter(None, (schema.name, schema.overload_name)))] = schema.name
    print(json.dumps({"events": events, "names": names}), flush=True)
    sys.stdin.readline()


if __name__ == "__main__":
    main(int(sys.argv[1]))
