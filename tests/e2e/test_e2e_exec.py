"""`unidle exec` on one machine: a command with a rank's environment, in its directory."""

from __future__ import annotations

import signal
import sys
from pathlib import Path

from e2e.commands import start, unidle
from waiting import wait_until


def test_a_command_sees_what_a_rank_sees(tmp_path: Path) -> None:
    store, work = tmp_path / "a.db", tmp_path / "work"
    work.mkdir()
    words = (
        "run",
        "--store",
        store,
        "--cpu-devices",
        2,
        "--ranks",
        2,
        "--workdir",
        work,
        "--progress",
        "off",
    )
    running = start(*words, "--", sys.executable, "-c", "import time\nwhile True: time.sleep(0.1)")

    def run(*command: str, rank: int = 1) -> tuple[int, str, str]:
        done = unidle("exec", "--store", store, "--rank", rank, "--", *command)
        return done.returncode, done.stdout, done.stderr

    try:
        wait_until(lambda: store.exists() and run("true")[0] == 0, 60, "rank 1 runs")
        code, out, _ = run("/bin/sh", "-c", "echo $UNIDLE_RANK; pwd; exit 5")
        assert (code, out.splitlines()) == (5, ["1", str(work)])
        assert run("no-such-program")[0] == 127
        code, _, errors = run("true", rank=2)
        assert code == 2
        assert "the job has no such rank" in errors
        done = unidle("exec", "--store", store)
        assert done.returncode == 2
        assert "there is no command" in done.stderr
    finally:
        running.send_signal(signal.SIGINT)
        running.communicate(timeout=60)
    assert run("true")[0] == 2  # no job of the store runs
