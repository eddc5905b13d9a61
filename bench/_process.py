"""What the benchmarks of the running system share: processes, their processor time and memory."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path

UNIDLE = (sys.executable, "-m", "unidle")
TORCHRUN = (sys.executable, "-m", "torch.distributed.run", "--standalone")
POLL_S = 0.02


def environment(**changes: str) -> dict[str, str]:
    """This process's environment as an installed program finds it: byte code is cached."""
    env = {key: value for key, value in os.environ.items() if not key.startswith("UNIDLE_")}
    env.pop("PYTHONDONTWRITEBYTECODE", None)
    if "PYTHONPATH" in env:
        env["PYTHONPATH"] = os.pathsep.join(
            str(Path(p).absolute()) for p in env["PYTHONPATH"].split(os.pathsep)
        )
    return env | changes


@contextmanager
def started(
    command: Sequence[str], directory: Path, env: dict[str, str]
) -> Iterator[subprocess.Popen[bytes]]:
    """A process in ``directory``, its output in ``out`` and ``err`` there; nothing of it stays behind."""
    with (directory / "out").open("wb") as out, (directory / "err").open("wb") as err:
        process = subprocess.Popen(command, cwd=directory, env=env, stdout=out, stderr=err)
    try:
        yield process
    finally:
        below = descendants(process.pid)
        for pid, ticks in below:
            _kill(pid, ticks, signal.SIGCONT)  # a stopped process cannot end
        if process.poll() is None:
            process.send_signal(signal.SIGCONT)
            process.terminate()
            try:
                process.wait(20)
            except subprocess.TimeoutExpired:
                process.kill()
                process.wait()
        for pid, ticks in below:
            _kill(pid, ticks, signal.SIGKILL)


def until(condition: Callable[[], bool], limit_s: float) -> bool:
    """Poll until the condition holds; False when it does not within ``limit_s``."""
    end = time.monotonic() + limit_s
    while not condition():
        if time.monotonic() > end:
            return False
        time.sleep(POLL_S)
    return True


def descendants(pid: int) -> list[tuple[int, int]]:
    """Process ids and start ticks of all that runs below a process."""
    found = []
    for child in children(pid):
        ticks = _ticks(child)
        if ticks is not None:
            found += [(child, ticks), *descendants(child)]
    return found


def children(pid: int) -> list[int]:
    """Direct children, in order of their start."""
    try:
        tasks = list(Path(f"/proc/{pid}/task").iterdir())
        return sorted(int(child) for task in tasks for child in (task / "children").read_text().split())
    except OSError:
        return []


def cpu_s(pid: int) -> float:
    """Processor time of a process's live threads, in user and kernel, exact to the nanosecond."""
    total_ns = 0
    for task in Path(f"/proc/{pid}/task").iterdir():
        total_ns += int((task / "schedstat").read_text().split()[0])
    return total_ns / 1e9


def memory_bytes(pid: int) -> tuple[int, int]:
    """Resident (RSS) and proportional (PSS) memory of a process."""
    fields = dict(
        line.split(":", 1) for line in Path(f"/proc/{pid}/smaps_rollup").read_text().splitlines()[1:]
    )
    rss, pss = (int(fields[name].split()[0]) * 1024 for name in ("Rss", "Pss"))
    return rss, pss


def _ticks(pid: int) -> int | None:
    try:
        return int(Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[19])
    except OSError:
        return None


def _kill(pid: int, ticks: int, number: int) -> None:
    if _ticks(pid) == ticks:
        try:
            os.kill(pid, number)
        except ProcessLookupError:
            pass
