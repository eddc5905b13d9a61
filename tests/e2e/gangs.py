"""Jobs of small shell ranks, and what the machine and the store say of them."""

from __future__ import annotations

import contextlib
import json
import os
import subprocess
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from e2e.commands import start, unidle
from unidle.errors import StoreError
from unidle.store.open import open_store
from unidle.view.jobs import JobView
from unidle.view.snapshot import load_view
from unidle.view.state import View
from waiting import wait_until

CGROUPS = Path("/sys/fs/cgroup")


def write_job(path: Path, script: str, **fields: Any) -> Path:
    """A job file whose ranks run ``script`` in bash; its name is the file's."""
    job = {"name": path.stem, "command": ["bash", "-c", script], **fields}
    path.write_text(json.dumps(job))
    return path


def submit(store: Path | str, path: Path, script: str, *, hold: bool = False, **fields: Any) -> str:
    """Submit a job and return its id; ``hold``: also one that the fleet cannot hold."""
    held = ["--hold"] if hold else []
    done = unidle("submit", write_job(path, script, **fields), "--store", store, "--json", *held)
    assert done.returncode == 0, done.stderr
    return str(json.loads(done.stdout)["job"])


@contextmanager
def running(*words: object, **more: Any) -> Iterator[subprocess.Popen[bytes]]:
    """A command that runs beside the block, and is killed at its end if it still runs."""
    more = {"stdout": subprocess.PIPE, "stderr": subprocess.PIPE, **more}
    with start(*words, **more) as process:
        try:
            yield process
        finally:
            process.kill()


def last_line(output: str) -> dict[str, Any]:
    """What ``unidle run --json`` says at its end."""
    answer = json.loads(output.splitlines()[-1])
    assert isinstance(answer, dict)
    return answer


def view_of(store: Path | str) -> View:
    """What the log of a store has now. Errors: StoreError."""
    opened = open_store(str(store), create=False, read_only=True)
    try:
        return load_view(opened)
    finally:
        opened.close()


def jobs_of(store: Path | str) -> dict[str, JobView]:
    """The jobs in a store, by name; empty while there is no store."""
    try:
        opened = open_store(str(store), create=False, read_only=True)
    except StoreError:  # not there yet, or not whole
        return {}
    try:
        return {job.spec.name: job for job in load_view(opened).jobs.values()}
    finally:
        opened.close()


def wait_for_state(store: Path | str, name: str, *states: str, timeout_s: float = 60) -> JobView:
    """The job, once it is in one of the states."""

    def look() -> JobView | None:
        job = jobs_of(store).get(name)
        return job if job is not None and job.state in states else None

    found = wait_until(look, timeout_s, f"{name} to be {' or '.join(states)}")
    assert found is not None
    return found


def rank_pids(store: Path | str, name: str) -> list[int]:
    """Process ids of the ranks of the job's last attempt, as far as they are up."""
    job = jobs_of(store).get(name)
    ranks = job.attempts[-1].ranks if job is not None and job.attempts else []
    return [rank.pid for rank in ranks if rank.pid is not None]


def processes_of(job: str) -> list[str]:
    """Every living process of a job: its ranks, what they started, their supervisors."""
    return [f"{pid}: {command}" for pid, command in _processes(job)]


def groups_of(job: str) -> list[Path]:
    """Control groups of a job that are there now."""
    places = (
        Path(folder) for folder, _, _ in os.walk(CGROUPS)
    )  # glob fails where groups of others go meanwhile
    return [
        each for each in places if each.name.startswith(f"{job}.") and each.parent.name.startswith("unidle-")
    ]


def assert_nothing_runs(job: str) -> None:
    wait_until(lambda: not processes_of(job), 60, f"the processes of {job} to be gone: {processes_of(job)}")
    wait_until(lambda: not groups_of(job), 60, f"the control groups of {job} to be gone")


def _processes(job: str) -> Iterator[tuple[int, str]]:
    mine, place = f"UNIDLE_JOB={job}".encode(), f"/{job}/".encode()
    for entry in Path("/proc").iterdir():
        if entry.name.isdigit():
            with contextlib.suppress(OSError):
                environment = (entry / "environ").read_bytes().split(b"\0")
                command = (entry / "cmdline").read_bytes()
                if mine in environment or (b"supervisor.py" in command and place in command):
                    yield int(entry.name), command.replace(b"\0", b" ").decode(errors="replace")
