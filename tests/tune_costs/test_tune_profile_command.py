"""`unidle tune profile` and `unidle tune top`, with real programs."""

from __future__ import annotations

import importlib.util
import json
import subprocess
import sys
from contextlib import closing
from pathlib import Path
from typing import Any

import pytest

import needs
from e2e.commands import ask, start, unidle
from e2e.gangs import jobs_of
from unidle.store.open import open_store
from unidle.store.profiles import ProfileShelf
from waiting import wait_until

TRAINING = """import gc
import torch
weight = torch.zeros(4, requires_grad=True)
optimizer = torch.optim.SGD([weight], lr=0.1)
objects = [[n] for n in range(50_000)]
for step in range(32):
    weight.sum().backward()
    optimizer.step()
    gc.collect()
"""
BUSY = """import time
while True:
    end = time.perf_counter() + 0.02
    while time.perf_counter() < end:
        sum(range(500))
"""
SLOW = """import gc
from typing import TYPE_CHECKING
if TYPE_CHECKING:
    import torch
class Loss:
    def backward(self):
        return sum(range(50_000))
objects = [[n] for n in range(300_000)]
loss = Loss()
while True:
    loss.backward()
    gc.collect()
"""
FLEET = {
    "nodes": [{"id": "n1", "devices": {"count": 1, "kind": "cpu"}}], "guard": {"preflight": "off"},
    "profile": {"seconds": 1, "every_s": 2, "hz": 199},
}  # fmt: skip


@pytest.mark.skipif(importlib.util.find_spec("torch") is None, reason="needs PyTorch")
def test_program_is_sampled_in_a_copy_and_findings_have_their_share(tmp_path: Path) -> None:
    (tmp_path / "train.py").write_text(TRAINING)
    done = unidle("tune", "profile", "--json", "--", sys.executable, "train.py", cwd=tmp_path)
    assert done.returncode == 0, done.stderr
    found = json.loads(done.stdout)
    assert found["steps"] == 30
    assert found["step_ms"] > 0
    first = found["findings"][0]
    assert (first["code"], first["file"], first["line"]) == ("UDL206", "train.py", 9)
    assert first["share_pct"] > 30
    rounded = 0.051  # of the share that is shown
    least, most = (100 / (100 - min(first["share_pct"] + by, 99.999)) for by in (-rounded, rounded))
    assert min(least, 1000) * 0.99 <= first["bound_x"] <= most * 1.01
    assert {"code", "file", "line", "share_pct", "bound_x", "message"} == first.keys()
    assert [one.name for one in tmp_path.iterdir()] == ["train.py"]


def test_program_that_fails_and_bad_input(tmp_path: Path) -> None:
    (tmp_path / "a.py").write_text("raise ValueError('no data')\n")
    done = unidle("tune", "profile", "--", sys.executable, "a.py", cwd=tmp_path)
    assert done.returncode == 1
    assert "the program ended with 1: ValueError: no data" in done.stderr
    assert unidle("tune", "profile", cwd=tmp_path).returncode == 2
    assert unidle("tune", "profile", "1", "--", "true", cwd=tmp_path).returncode == 2


def test_running_process_has_its_lines(tmp_path: Path) -> None:
    (tmp_path / "busy.py").write_text(BUSY)
    with subprocess.Popen([sys.executable, "-P", str(tmp_path / "busy.py")]) as process:
        try:
            done = unidle("tune", "profile", process.pid, "--seconds", "2", "--json")
        finally:
            process.kill()
    assert done.returncode == 0, done.stderr
    first = json.loads(done.stdout)["findings"][0]
    assert (first["code"], first["file"]) == (None, str(tmp_path / "busy.py"))


@needs.ebpf
def test_top_the_ledger_and_the_report_know_a_job_by_the_code_of_its_slow_line(tmp_path: Path) -> None:
    store, page = tmp_path / "s.db", tmp_path / "report.html"
    (tmp_path / "fleet.yaml").write_text(json.dumps(FLEET))
    (tmp_path / "slow.py").write_text(SLOW)
    words = ("run", "--profile", "--fleet", tmp_path / "fleet.yaml", "--store", store, "--")
    with start(*words, sys.executable, tmp_path / "slow.py") as process:
        try:

            def looked() -> bool:
                with closing(open_store(str(store), create=False, read_only=True)) as opened:
                    return any(
                        True
                        for _ in ProfileShelf(opened).rows(next(iter(jobs_of(store).values())).id, 0, 2**62)
                    )

            def listed() -> list[dict[str, Any]]:
                return ask("tune", "top", "--store", store)

            wait_until(lambda: jobs_of(store), 60, "the job")
            wait_until(looked, 60, "a look at the rank")
            wait_until(lambda: listed() and listed()[0]["won_back_hours"], 60, "samples of the job's line")
        finally:
            process.terminate()
            process.wait(60)
    (one,) = listed()
    assert one["device_hours"] >= one["won_back_hours"] > 0
    first = one["findings"][0]
    assert (first["code"], first["file"], first["line"]) == ("UDL206", str(tmp_path / "slow.py"), 12)

    by_code, by_leaf = (ask("ledger", "--store", store, "--by", by) for by in ("code", "leaf,code"))
    found = {each["code"]: each["ns"] for each in by_code["groups"]}
    assert found.keys() == {"UDL206", None}
    assert min(found.values()) > 0
    assert sum(found.values()) == sum(each["ns"] for each in by_leaf["groups"]) == by_code["capacity_ns"]
    assert unidle("ledger", "--store", store, "--by", "code").stdout.splitlines()[1].split()[0] == "UDL206"
    done = unidle("report", "--store", store, "--all", "--out", page)
    assert done.returncode == 0, done.stderr
    assert '<tr data-code="UDL206"><th scope=row>UDL206' in page.read_text()
    assert f'data-ns="{found["UDL206"]}"' in page.read_text()
