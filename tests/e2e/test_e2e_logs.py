"""``unidle logs`` while a job runs, over its restarts, and after."""

from __future__ import annotations

import signal
from pathlib import Path

import pytest

from e2e import gangs
from e2e.commands import unidle
from waiting import wait_until

SCRIPT = (
    'for k in 1 2 3; do echo "try $TORCHELASTIC_RESTART_COUNT rank $RANK line $k"; sleep 0.1; done; '
    'echo "to stderr" >&2; sleep 0.3; [ "$TORCHELASTIC_RESTART_COUNT" = 1 ] || exit 3'
)


def lines_of(attempt: int, rank: int) -> list[str]:
    return [*(f"try {attempt - 1} rank {rank} line {k}" for k in (1, 2, 3)), "to stderr"]


@pytest.mark.slow
def test_logs_are_followed_over_a_restart(tmp_path: Path) -> None:
    store = tmp_path / "s.db"
    gangs.submit(store, tmp_path / "job.yaml", SCRIPT, ranks=2, restart={"max": 1, "backoff_s": 1.5})
    with gangs.running("logs", "job", "-f", "--rank", 1, "--store", store) as follower:
        assert follower.stderr is not None
        told = follower.stderr.readline().decode().rstrip()
        assert told.endswith("has not started yet: waiting for its first line")
        with gangs.running("up", "--store", store, "--until-idle") as service:
            assert service.wait(60) == 0
        out, _ = follower.communicate(timeout=60)
    assert follower.returncode == 0
    assert out.decode().splitlines() == lines_of(1, 1) + lines_of(2, 1)
    last = unidle("logs", "job", "--store", store).stdout.splitlines()
    for rank in (0, 1):  # the lines of both in order of time
        assert [line for line in last if line.startswith(f"[{rank}] ")] == [
            f"[{rank}] {line}" for line in lines_of(2, rank)
        ]
    assert len(last) == 2 * len(lines_of(2, 0))
    first = unidle("logs", "job", "--rank", 0, "--attempt", 1, "--store", store).stdout.splitlines()
    assert first == lines_of(1, 0)


def test_following_ends_quietly_with_ctrl_c_and_leaves_the_job_alone(tmp_path: Path) -> None:
    store = tmp_path / "s.db"
    file = gangs.write_job(tmp_path / "job.yaml", "echo here; while [ ! -e go ]; do sleep 0.05; done")
    with gangs.running("run", file, "--store", store, "--json") as controller:
        gangs.wait_for_state(store, "job", "running")
        with gangs.running("logs", "job", "-f", "--store", store) as follower:
            assert follower.stdout is not None
            assert follower.stdout.readline() == b"here\n"
            follower.send_signal(signal.SIGINT)
            out, err = follower.communicate(timeout=60)
        assert (follower.returncode, out, err.strip()) == (130, b"", b"")
        (tmp_path / "go").touch()
        assert controller.wait(60) == 0


def test_reader_that_goes_away_is_no_error(tmp_path: Path) -> None:
    store = tmp_path / "s.db"
    done = unidle(
        "run", "--name", "chat", "--store", store, "--json", "--", "bash", "-c", "yes | head -c 2000000"
    )
    assert done.returncode == 0
    with gangs.running("logs", "chat", "--store", store) as reader:
        assert reader.stdout is not None
        assert reader.stdout.read(2) == b"y\n"
        reader.stdout.close()
        wait_until(lambda: reader.poll() is not None, 60, "the reader's end")
        assert reader.stderr is not None
        assert reader.stderr.read() == b""
    assert reader.returncode in (0, 1)
