"""Commands that are forked from a warm process are as those that a shell starts."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import pytest

from warm_commands import WARM, can_run, can_start


def both(*words: str, **more: Any) -> list[tuple[int, str, str]]:
    cold = subprocess.run(
        [sys.executable, "-m", "unidle", *words], capture_output=True, text=True, check=False, **more
    )
    warm = WARM.run(list(words), timeout_s=60, **more)
    return [(done.returncode, done.stdout, done.stderr) for done in (cold, warm)]


@pytest.mark.parametrize(
    "words",
    [
        ("--version",), ("--help",), ("run", "--help"), ("lost",), ("run", "none.yaml"), ("list", "--store", "none.db"),
        ("schema", "job"), ("span", "simulate", "none.json"),
    ],
    ids=" ".join,
)  # fmt: skip
def test_exit_code_and_output_are_the_same(tmp_path: Path, words: tuple[str, ...]) -> None:
    cold, warm = both(*words, cwd=tmp_path)
    assert warm == cold


def test_input_environment_and_directory_are_its_own(tmp_path: Path) -> None:
    (tmp_path / "job.yaml").write_text("command: [a]\nranks: lots\n")
    cold, warm = both("run", "job.yaml", cwd=tmp_path)
    assert cold == warm and cold[0] == 2
    cold, warm = both("run", "-", cwd=tmp_path, input="command: [a]\nrank: 1\n")
    assert cold == warm and "rank: unknown field" in warm[2]
    narrow = {**os.environ, "COLUMNS": "60"}
    cold, warm = both("run", "--help", env=narrow)
    assert cold == warm and max(map(len, warm[1].splitlines())) <= 60


def test_several_run_at_once_and_each_has_its_own_result(tmp_path: Path) -> None:
    names = [f"none-{k}.yaml" for k in range(8)]
    with ThreadPoolExecutor(4) as pool:
        done = list(pool.map(lambda name: WARM.run(["run", name], timeout_s=60, cwd=tmp_path), names))
    assert [one.returncode for one in done] == [2] * 8
    assert all(name in one.stderr for name, one in zip(names, done, strict=True))


def test_one_that_does_not_end_is_killed(tmp_path: Path) -> None:
    words = ["run", "--store", str(tmp_path / "s.db"), "--cpu-devices", "1", "--", "sleep", "2"]
    with pytest.raises(subprocess.TimeoutExpired):
        WARM.run(words, timeout_s=0.5)
    done = WARM.run(["up", "--store", str(tmp_path / "s.db"), "--until-idle"], timeout_s=60)
    assert done.returncode == 0, done.stderr


def test_what_python_reads_when_it_starts_needs_a_new_one() -> None:
    assert can_run({"env": {**os.environ, "NO_COLOR": "1"}})
    assert not can_run({"env": {**os.environ, "PYTHONUTF8": "0"}})
    assert not can_run({"preexec_fn": os.getpid})
    assert not can_start({"env": {**os.environ, "LD_PRELOAD": "none"}})


def test_one_that_is_started_is_as_a_process_of_subprocess(tmp_path: Path) -> None:
    words = ["up", "--store", str(tmp_path / "s.db"), "--cpu-devices", "1", "--progress", "plain"]
    both_ways = {"stdout": subprocess.PIPE, "stderr": subprocess.STDOUT, "text": True}
    with WARM.start(words, start_new_session=True, **both_ways) as up:
        assert up.stdout is not None
        assert up.stdout.readline()
        assert os.getsid(up.pid) == up.pid
        assert up.poll() is None
        with pytest.raises(subprocess.TimeoutExpired):
            up.wait(0.01)
        up.send_signal(signal.SIGKILL)
        assert up.wait(60) == up.poll() == -signal.SIGKILL
    done = WARM.start(["run", "none.yaml"], cwd=tmp_path, **both_ways)
    assert "none.yaml" in done.communicate(timeout=60)[0]
    assert done.returncode == 2
