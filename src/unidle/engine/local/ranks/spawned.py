"""The process of a rank by its journal, for those who look at a rank and do not hold it."""

from __future__ import annotations

import json
import os
import stat

from unidle.engine.local.ranks import process_tree, rundir


def spawned(directory: str) -> tuple[int, int] | None:
    """Pid and start time (clock ticks since boot) of the process that a rank's supervisor started; None while there is none."""
    try:
        fd = os.open(
            f"{directory}/{rundir.JOURNAL}", os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC
        )
    except OSError:
        return None
    if not stat.S_ISREG(os.fstat(fd).st_mode):
        os.close(fd)
        return None
    with open(fd, "rb") as journal:
        for line in journal:  # it is named at the beginning of a file that may be long
            if b'"spawn"' not in line:
                continue
            try:
                mark = json.loads(line)
            except ValueError:
                continue
            if isinstance(mark, dict) and mark.get("k") == "spawn":
                pid, ticks = mark.get("pid"), mark.get("ticks")
                return (pid, ticks) if isinstance(pid, int) and isinstance(ticks, int) else None
    return None


def is_same(pid: int, ticks: int) -> bool:
    """Whether a process that started then is still there."""
    return process_tree.is_live(pid) and process_tree.ticks_of(pid) == ticks


def live_pid(directory: str) -> int | None:
    """The rank's own process, if it still is that one."""
    found = spawned(directory)
    return found[0] if found is not None and is_same(*found) else None
