"""A PyTorch gang that loses a rank starts again from a Python that has imported PyTorch, with equal results."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
from pathlib import Path

import pytest

from e2e.gangs import jobs_of, running
from unidle.engine.local.ranks import process_tree
from unidle.engine.local.vitals.process_state import look_at
from waiting import wait_until

pytestmark = pytest.mark.slow
TRAIN = """
import os, sys, torch, torch.distributed as dist
from torch.nn.parallel import DistributedDataParallel as DDP
print("began as", sys.orig_argv[1], flush=True)
torch.manual_seed(0)
dist.init_process_group("gloo")
rank, world = dist.get_rank(), dist.get_world_size()
model = DDP(torch.nn.Linear(8, 8, dtype=torch.float64))
optimizer = torch.optim.AdamW(model.parameters(), lr=0.1)
first, stop = 0, int(sys.argv[1])
if os.path.exists("state.pt"):
    state = torch.load("state.pt")
    model.module.load_state_dict(state["model"]); optimizer.load_state_dict(state["optimizer"]); first = state["step"]
for step in range(first, stop):
    data = torch.Generator().manual_seed(1000 * step + rank)
    loss = model(torch.randn(4, 8, dtype=torch.float64, generator=data)).pow(2).mean()
    optimizer.zero_grad(); loss.backward(); optimizer.step()
    if rank == 0:
        if (step + 1) % 5 == 0:
            torch.save({"model": model.module.state_dict(), "optimizer": optimizer.state_dict(), "step": step + 1}, "state.tmp")
            os.replace("state.tmp", "state.pt")
        print(f"at step {step + 1}", flush=True)
    if step + 1 == int(os.environ.get("PAUSE_AT", -1)) and os.environ["TORCHELASTIC_RESTART_COUNT"] == "0":
        import time; time.sleep(200)  # longer would be a hang
if rank == 0:
    torch.save(model.module.state_dict(), "final.pt")
"""


def job(place: Path, **fields: object) -> Path:
    place.mkdir()
    (place / "train.py").write_text(TRAIN)
    content = {
        "name": "ddp", "command": [sys.executable, "train.py", "20"], "ranks": 2, "progress": {"pattern": "at step ([0-9]+)"},
        "restart": {"max": 2, "backoff_s": 0, "warm": True}, **fields,
    }  # fmt: skip
    (place / "job.json").write_text(json.dumps(content))
    return place / "job.json"


def cmdline(pid: int) -> bytes:
    try:
        return Path(f"/proc/{pid}/cmdline").read_bytes()
    except OSError:
        return b""


def is_ready(pid: int) -> bool:
    """A warm Python that waits for a request."""
    return b"_unidle_local" in cmdline(pid) and look_at(pid).doing == "network"


def test_a_rank_that_was_killed_comes_back_warm_and_the_result_is_the_same(tmp_path: Path) -> None:
    import torch

    store = tmp_path / "s.db"
    broken, whole = job(tmp_path / "broken", env={"PAUSE_AT": "12"}), job(tmp_path / "whole")
    with running("run", broken, "--store", store, "--cpu-devices", 2, stdout=subprocess.DEVNULL) as run:
        wait_until(lambda: (found := jobs_of(store).get("ddp")) and found.steps() == 12, 120, "step 12")
        wait_until(lambda: any(is_ready(pid) for pid in process_tree.children(run.pid)), 120, "a warm Python")
        pid = jobs_of(store)["ddp"].attempts[0].ranks[1].pid
        assert pid is not None
        os.kill(pid, signal.SIGKILL)
        second = wait_until(lambda: jobs_of(store)["ddp"].attempts[1:], 60, "another attempt")[0]
        wait_until(lambda: all(r.pid for r in jobs_of(store)["ddp"].attempts[1].ranks), 60, "its ranks")
        assert run.wait(120) == 0
    assert second.number == 2
    logs = [next(tmp_path.glob(f"s.db.d/runs/*/{attempt}/rank0/log")).read_text() for attempt in (1, 2)]
    assert "began as train.py" in logs[0]
    assert logs[1].startswith("began as -c\nat step 11\n"), "not warm, or not from the checkpoint of step 10"
    with running(
        "run", whole, "--store", tmp_path / "w.db", "--cpu-devices", 2, stdout=subprocess.DEVNULL
    ) as run:
        assert run.wait(120) == 0
    states = [torch.load(tmp_path / name / "final.pt") for name in ("broken", "whole")]
    for name, value in states[0].items():
        assert torch.allclose(value, states[1][name], rtol=0, atol=1e-12), name
