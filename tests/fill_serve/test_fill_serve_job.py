"""``unidle fill serve --job``: a server that prefills in the waits of a running job."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest

from fill_run import running
from fill_run.running import groups_of
from fill_serve.doors import Door, children, door
from unidle.engine.local.ranks.process_tree import descendants
from waiting import wait_until

TRAINER = Path(running.__file__).with_name("trainer.py")
NOT_IDLE = str(Path(running.__file__).with_name("not_idle"))
PROMPT = "the quick brown fox jumps over the lazy dog, and a bubble is a wait for its gang " * 2
BODY: dict[str, Any] = {"model": "tiny", "prompt": PROMPT, "max_tokens": 8, "temperature": 0}
BUBBLES = 'route="bubbles",outcome="answered"'


def unidle(*words: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [sys.executable, "-P", "-m", "unidle", *words],
        capture_output=True,
        text=True,
        timeout=300,
        check=False,
    )


@contextmanager
def job(store: Path, *command: str) -> Iterator[str]:
    """The id of a job with one rank, once it has started. It is ended at the end."""
    words = ("run", "--store", str(store), "--cpu-devices", "1", "--max-restarts", "3", "--", *command)
    with store.with_suffix(".log").open("wb") as out:
        process = subprocess.Popen([sys.executable, "-P", "-m", "unidle", *words], stdout=out, stderr=out)
    try:
        wait_until(lambda: jobs(store), what="the job")
        yield jobs(store)[0]["job"]
    finally:
        if process.poll() is None:
            process.send_signal(signal.SIGTERM)
        process.wait()


def jobs(store: Path) -> list[dict[str, Any]]:
    done = unidle("list", "--all", "--json", "--store", str(store))
    return json.loads(done.stdout or "[]") if done.returncode == 0 else []


def trainer_of(process: int) -> int:
    """The rank below a process."""
    [found] = [pid for pid in descendants(process) if TRAINER.name in command_of(pid)]
    return found


def command_of(pid: int) -> str:
    try:
        words = Path(f"/proc/{pid}/cmdline").read_bytes().split(b"\0")
    except OSError:
        return ""
    return words[-3].decode() if len(words) > 2 and words[1] == b"-u" else ""


def connected(served: Door) -> bool:
    return served.metric("workers", 'kind="bubbles"') == 1


def answered_in_bubbles(served: Door) -> Any:
    """The text of an answer whose prompt was prefilled in waits."""
    before = served.metric("requests_total", BUBBLES)
    status, found = served.post("/v1/completions", BODY)
    assert status == 200, found
    assert served.metric("requests_total", BUBBLES) == before + 1
    return found["choices"][0]["text"]


@pytest.mark.usefixtures("groups", "reference")
def test_prompts_are_prefilled_in_the_waits_of_a_job_and_follow_it_through_a_restart(
    place: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("PYTHONPATH", NOT_IDLE)
    store, options = tmp_path / "a.db", ("--chunk-tokens", "16", "--slo-ttft", "1000", "--piece-ms", "1000")
    with job(store, sys.executable, "-u", str(TRAINER), "1000000") as name:
        given = ("--job", name, "--store", str(store))
        with door(place / "tiny", tmp_path / "log", *options, *given) as served:
            wait_until(lambda: connected(served), what="a filler")
            text = answered_in_bubbles(served)

            other = unidle("fill", "serve", "--model", str(place / "tiny"), "--port", "0", *given)
            assert other.returncode == 3
            assert "the job has fillers already" in other.stderr

            os.kill(trainer_of(os.getpid()), signal.SIGKILL)
            wait_until(lambda: not connected(served), what="the filler to leave")
            wait_until(lambda: connected(served), what="a filler next to the new rank")
            assert answered_in_bubbles(served) == text

            fillers = [pid for pid in children(served.process.pid) if "job_fillers" in words_of(pid)]
            assert len(fillers) == 1
            unidle("cancel", name, "--store", str(store))
            wait_until(lambda: f"fillers of {name} ended" in served.log.read_text())
            status, found = served.post("/v1/completions", BODY)
            assert (status, found["choices"][0]["text"]) == (200, text)
            assert served.metric("requests_total", 'route="dedicated",outcome="answered"') == 1
    assert served.process.returncode == 0, served.log.read_text()
    assert not groups_of(fillers[0])


def words_of(pid: int) -> str:
    return Path(f"/proc/{pid}/cmdline").read_bytes().replace(b"\0", b" ").decode()


@pytest.mark.usefixtures("groups", "reference")
def test_fillers_end_with_a_server_that_is_killed(
    place: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("PYTHONPATH", NOT_IDLE)
    store = tmp_path / "a.db"
    with job(store, sys.executable, "-u", str(TRAINER), "1000000") as name:
        options = ("--chunk-tokens", "16", "--job", name, "--store", str(store))
        with door(place / "tiny", tmp_path / "log", *options) as served:
            wait_until(lambda: connected(served), what="a filler")
            [runs] = [pid for pid in children(served.process.pid) if "job_fillers" in words_of(pid)]
            assert groups_of(runs)
            served.process.kill()
            served.process.wait()
        wait_until(lambda: not groups_of(runs), what="the groups to go")
        assert jobs(store)[0]["state"] == "running"


@pytest.mark.usefixtures("reference")
def test_a_job_without_waits_that_ended_or_that_is_not_there_is_a_clear_error(
    place: Path, tmp_path: Path
) -> None:
    store = tmp_path / "a.db"

    def served(name: str) -> tuple[int, str]:
        done = unidle(
            "fill", "serve", "--model", str(place / "tiny"), "--port", "0", "--job", name, "--store", str(store), "--wait", "0"
        )  # fmt: skip
        return done.returncode, done.stderr

    with job(store, "/bin/sleep", "1000") as name:
        wait_until(lambda: "no rank of the job runs" not in served(name)[1])
        code, error = served(name)
        assert code == 3
        assert "rank 0 shows no waits" in error
        code, error = served("other")
        assert code == 2
        assert "other" in error
    code, error = served(name)
    assert code == 3
    assert f"the job has {jobs(store)[0]['state']}" in error
