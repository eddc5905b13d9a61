"""Real fillers next to real ranks, for the tests."""

from __future__ import annotations

import json
import os
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from unidle.engine.local.ranks.process_tree import descendants
from unidle.fill.runtime.process import FillerOrder
from unidle.fill.runtime.ranks import FilledRank, rank_below
from unidle.fill.runtime.supervise import FillSummary, FillSupervisor
from unidle.fill.runtime.trial import Trial
from waiting import wait_until

HERE = Path(__file__).parent
MEMORY = 256 << 20


@contextmanager
def training(steps: int = 100_000) -> Iterator[tuple[subprocess.Popen[str], FilledRank]]:
    """A process that trains, once it shows that it waits."""
    env = os.environ | {"PYTHONUNBUFFERED": "1"}
    process = subprocess.Popen(
        [sys.executable, str(HERE / "trainer.py"), str(steps)], stdout=subprocess.PIPE, text=True, env=env
    )
    try:
        wait_until(lambda: rank_below(0, process.pid) is not None)
        found = rank_below(0, process.pid)
        assert found is not None
        yield process, found
    finally:
        process.kill()
        process.communicate()


def order(name: str, out: Path, restarts: int = 0, **arguments: Any) -> FillerOrder:
    return FillerOrder(
        f"{HERE / 'fillers.py'}:{name}", {"out": str(out), **arguments}, 2_000_000, MEMORY, restarts=restarts
    )


def supervised(
    wanted: FillerOrder,
    rank: FilledRank,
    place: Path,
    until: Callable[[FillSupervisor], bool] = lambda _: False,
    trial: Trial | None = None,
    seconds: float = 300,
) -> tuple[FillSummary, FillSupervisor, list[str]]:
    """Run fillers until ``until``, they or training ended. Not idle: a busy machine would give them no time."""
    told: list[str] = []
    fill = FillSupervisor(wanted, [rank], place, place / "fill.jsonl", trial, told.append, idle=False)
    end = time.monotonic() + seconds

    def interrupted() -> bool:
        assert time.monotonic() < end, (
            f"no end after {seconds} s: {told}, {[each.log.read_text() for each in fill.fillers]}"
        )
        return until(fill)

    return fill.run(interrupted), fill, told


def records(place: Path) -> list[dict[str, Any]]:
    return [json.loads(line) for line in (place / "fill.jsonl").read_text().splitlines()]


def steps_of(rank: FilledRank) -> int:
    """How many steps the rank has done."""
    from unidle.rank.waits import BoardReader

    assert rank.board is not None
    reader = BoardReader(rank.pid, rank.board)
    try:
        return reader.steps
    finally:
        reader.close()


def groups_of(pid: int) -> list[str]:
    """Control groups that a supervisor with this process number made. Groups of others may go meanwhile."""
    return [
        f"{place}/{name}"
        for place, names, _ in os.walk("/sys/fs/cgroup")
        for name in names
        if name.startswith(f"unidle-fill-{pid}-")
    ]


def left_of_this_process() -> list[str]:
    """Control groups and processes of fillers that this process started and that are still there."""
    groups = groups_of(os.getpid())
    commands = []
    for pid in descendants(os.getpid()):
        try:
            command = Path(f"/proc/{pid}/cmdline").read_bytes().replace(b"\0", b" ").decode()
        except OSError:
            continue
        if "unidle.fill.runtime" in command or "while True: pass" in command or "/bin/sleep 1000" in command:
            commands.append(command)
    return groups + commands
