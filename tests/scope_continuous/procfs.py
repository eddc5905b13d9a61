"""A small real look: what /proc tells of processes, without stacks below the system call. For tests of what comes after a look."""

from __future__ import annotations

import time
from collections import Counter
from collections.abc import Sequence
from pathlib import Path

from unidle.scope.model import Frame, Process, Profile, Quality, Sample, Thread

TICK_NS = 10_000_000


def look(pids: Sequence[int], seconds: float, *, hz: int = 99) -> Profile:
    """States of all threads, ``hz`` times a second; exact times are sums of the samples."""
    start_ns, wall_ns = time.monotonic_ns(), time.time_ns()
    end_ns, every_ns = start_ns + int(seconds * 1e9), int(1e9 / hz)
    counts: Counter[tuple[int, int, str]] = Counter()
    names: dict[tuple[int, int], str] = {}
    parents: dict[int, tuple[str, int]] = {}
    while (now_ns := time.monotonic_ns()) < end_ns:
        for pid in pids:
            for key, name, state, parent in _threads(pid):
                counts[(*key, state)] += 1
                names[key] = name
                parents[pid] = (name, parent)
        time.sleep(max(every_ns - (time.monotonic_ns() - now_ns), 0) / 1e9)
    end_ns = time.monotonic_ns()
    frames = (Frame("native", "work", module="program"), Frame("wait", "sleep"))
    samples = tuple(
        Sample(pid, tid, int(state != "R"), "on" if state == "R" else "off", count, count * every_ns)
        for (pid, tid, state), count in counts.items()
    )
    threads = []
    for key, name in names.items():
        on_ns = sum(s.ns for s in samples if (s.pid, s.tid) == key and s.state == "on")
        threads.append(Thread(*key, name, on_ns, end_ns - start_ns - on_ns, 0, start_ns, end_ns))
    return Profile(
        "T2", start_ns, end_ns, frames, ((0,), (0, 1)), samples, tuple(threads),
        tuple(Process(pid, name, parent, "3.11") for pid, (name, parent) in parents.items()),
        quality=Quality(samples=sum(counts.values())), misses=("stacks",), hz=hz, wall_start_ns=wall_ns,
    )  # fmt: skip


def _threads(pid: int) -> list[tuple[tuple[int, int], str, str, int]]:
    found = []
    try:
        for task in Path(f"/proc/{pid}/task").iterdir():
            text = (task / "stat").read_text()
            name, rest = text[text.index("(") + 1 : text.rindex(")")], text[text.rindex(")") + 2 :].split()
            found.append(((pid, int(task.name)), name, rest[0], int(rest[1])))
    except OSError:
        pass
    return found
