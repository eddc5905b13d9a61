"""A job on hosts whose newest checkpoint is damaged: it is moved aside before the restart, and the log has it."""

from __future__ import annotations

import os
import signal
import sys
from pathlib import Path

import pytest

from e2e.commands import unidle
from e2e.gangs import submit
from e2e.test_e2e_hosts import ended, opened
from unidle.checkpoint.sums import side_file
from waiting import wait_until

pytestmark = pytest.mark.slow
SAVES = """
import os, pathlib, time
here = pathlib.Path("ckpt")
here.mkdir(exist_ok=True)
if os.environ["UNIDLE_ATTEMPT"] == "1":
    for step in (1, 2):
        (here / "tmp").write_bytes(bytes([step]) * 10_000)
        (here / "tmp").rename(here / f"step_{step}.bin")
    pathlib.Path("pid").write_text(str(os.getpid()))
    time.sleep(300)
print("found", *sorted(path.name for path in here.glob("*.bin")), flush=True)
"""


def test_the_agents_box_reads_the_newest_checkpoint_before_a_restart(tmp_path: Path) -> None:
    with opened(tmp_path) as fleet:
        saves = {"path": "ckpt", "quarantine_bad": True}
        (tmp_path / "saves.py").write_text(SAVES)
        more = {"command": [sys.executable, "saves.py"], "workdir": str(tmp_path), "restart": {"max": 1}}
        job = submit(fleet.store, tmp_path / "job.yaml", "", checkpoint=saves, **more)
        newest = tmp_path / "ckpt" / "step_2.bin"
        wait_until(lambda: newest.exists() and Path(side_file(str(newest))).exists(), 60, "its checksums")
        state = newest.stat()
        newest.write_bytes(newest.read_bytes()[:-1] + b"x")
        os.utime(newest, ns=(state.st_atime_ns, state.st_mtime_ns))
        os.kill(int((tmp_path / "pid").read_text()), signal.SIGKILL)
        ended(fleet, job)
        shown = unidle("explain", job, "--store", fleet.store).stdout
        assert "checkpoint step_2.bin is bad" in shown, shown
        assert "moved to" in shown, shown
        assert unidle("logs", job, "--store", fleet.store).stdout.endswith("found step_1.bin\n")
