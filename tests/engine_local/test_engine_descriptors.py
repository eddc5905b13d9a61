"""Few file descriptors: no more ranks start, with the reason, and ranks that run are not given up."""

from __future__ import annotations

import os
import resource
import signal
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from unidle.engine.local.event_marks import EventMarks
from unidle.engine.local.ranks import descriptors, process_tree, rundir
from unidle.engine.local.ranks.rank_watch import RankWatch


@contextmanager
def _limit(soft: int) -> Iterator[None]:
    before = resource.getrlimit(resource.RLIMIT_NOFILE)
    resource.setrlimit(resource.RLIMIT_NOFILE, (soft, before[1]))
    try:
        yield
    finally:
        resource.setrlimit(resource.RLIMIT_NOFILE, before)


@contextmanager
def _no_descriptor() -> Iterator[None]:
    """Every call that needs a new descriptor fails with EMFILE while the block runs."""
    lowest = os.dup(0)
    os.close(lowest)
    with _limit(lowest):
        yield


def test_a_gang_is_refused_before_descriptors_run_out() -> None:
    highest = max(int(fd.name) for fd in Path("/proc/self/fd").iterdir()) + 1
    with _limit(highest + descriptors.RESERVE + 50):
        assert descriptors.shortage(1) is None
        why = descriptors.shortage(1000)
    assert why is not None
    assert "1000 ranks" in why
    assert "ulimit -n" in why


def test_a_run_with_few_descriptors_is_refused_with_the_limit_and_the_remedy(tmp_path: Path) -> None:
    done = subprocess.run(
        [sys.executable, "-m", "unidle", "run", "--store", str(tmp_path / "s.db"), "--cpu-devices", "1", "--", "true"],
        check=False, capture_output=True, text=True, timeout=60,
        preexec_fn=lambda: resource.setrlimit(resource.RLIMIT_NOFILE, (36, 36)),
    )  # fmt: skip
    assert done.returncode == 1, done.stderr
    assert "limit of 36 are left" in done.stderr
    assert "Traceback" not in done.stderr


def test_a_rank_that_runs_is_not_given_up_when_no_descriptor_is_left(tmp_path: Path) -> None:
    sleeper = subprocess.Popen([sys.executable, "-c", "import time; time.sleep(600)"])
    try:
        ticks = process_tree.ticks_of(sleeper.pid)
        rundir.write_json(str(tmp_path / rundir.SUPERVISOR), {"pid": sleeper.pid, "ticks": ticks})
        watch = RankWatch(str(tmp_path), 0, "run", {}, EventMarks())
        with _no_descriptor():
            watch.look(1)
        assert watch.state == "unknown"
        watch.look(2)
        assert watch.state == "alive"
        assert watch.news() == []
        watch.let_go()
    finally:
        sleeper.send_signal(signal.SIGKILL)
        sleeper.wait()
