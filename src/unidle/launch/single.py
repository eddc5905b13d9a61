"""The same training in one process, as what a run is compared with. ``python -m unidle.launch.single PLAN.json OUT``."""

from __future__ import annotations

import json
import sys
from pathlib import Path

import torch
from torch import nn

from unidle.launch.gloo_peer import function, layers_of, optimizer_of


def main(path: str, out: str) -> None:
    """Writes ``single.json`` with the losses and ``single.pt`` with the final state, by layer and name."""
    plan = json.loads(Path(path).read_text())
    torch.set_num_threads(1)
    layers = layers_of(plan)
    model = nn.Sequential(*layers)
    data, loss = function(plan["data"]), function(plan["loss"])
    optimizer = optimizer_of(plan, list(model.parameters()))
    total, losses = sum(plan["microbatches"]), []
    for step in range(1, plan["steps"] + 1):
        whole = 0.0
        for index in range(total):
            x, target = data(step, index, plan["microbatch"], plan["seed"])
            found = loss(model(x), target)
            whole += found.item()
            (found / total).backward()
        if plan.get("clip_norm"):
            nn.utils.clip_grad_norm_(model.parameters(), plan["clip_norm"])
        optimizer.step()
        optimizer.zero_grad()
        losses.append(whole / total)
    Path(out, "single.json").write_text(json.dumps({"losses": losses}))
    torch.save(model.state_dict(), Path(out, "single.pt"))


if __name__ == "__main__":
    main(*sys.argv[1:3])
