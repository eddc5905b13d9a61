"""A rank that records what it promised: each start, each live rank that it found, each mark and when that was on the disk.

Arguments: place, run root, steps, seconds of each, how often the job fails first.
"""

import fcntl
import json
import os
import sys
import time
from pathlib import Path

import unidle.rank

ACK_S = 5.0
place, runs, steps, each_s, failures = Path(sys.argv[1]), Path(sys.argv[2]), *map(float, sys.argv[3:6])
job, attempt, rank = (
    os.environ["UNIDLE_JOB"],
    int(os.environ["UNIDLE_ATTEMPT"]),
    int(os.environ["UNIDLE_RANK"]),
)
name = f"{job}@{attempt}@{rank}"
journal = runs / job / str(attempt) / f"rank{rank}" / "journal.jsonl"


def now_ns() -> int:
    return time.clock_gettime_ns(time.CLOCK_BOOTTIME)


def record(path: Path, what: dict[str, object]) -> None:
    """One write, so that a kill leaves no half of a line."""
    fd = os.open(path, os.O_WRONLY | os.O_APPEND | os.O_CREAT, 0o600)
    os.write(fd, json.dumps(what).encode() + b"\n")
    os.close(fd)


def others() -> list[list[object]]:
    """Live ranks: each holds a lock until the kernel has ended it."""
    found: list[list[object]] = []
    for path in (place / "live").iterdir():
        if path.name == name:
            continue
        with path.open("rb") as file:
            try:
                fcntl.flock(file, fcntl.LOCK_SH | fcntl.LOCK_NB)
            except BlockingIOError:
                other, number, k = path.name.split("@")
                found.append([other, int(number), int(k)])
    return found


def on_disk() -> set[tuple[str, int]]:
    """The marks in the journal, which is synced first."""
    try:
        with journal.open("rb") as file:
            os.fsync(file.fileno())
            lines = file.read().split(b"\n")[:-1]
    except OSError:  # deleted, or the disk is full
        return set()
    marks = [json.loads(line) for line in lines]
    return {(mark["k"], mark["n"]) for mark in marks if mark["k"] in ("step", "saved") and "n" in mark}


def promised(marks: dict[tuple[str, int], int]) -> None:
    """Wait until the last of the marks is on the disk, and record each of them with its outcome."""
    deadline = time.monotonic() + ACK_S
    wanted = list(marks)[-1]
    while wanted not in (there := on_disk()) and journal.exists() and time.monotonic() < deadline:
        time.sleep(0.02)
    end_ns = now_ns()
    for (kind, n), start_ns in marks.items():
        outcome = "acknowledged" if (kind, n) in there else "unknown"
        record(
            place / "marks" / name, {"k": kind, "n": n, "start": start_ns, "end": end_ns, "outcome": outcome}
        )
    marks.clear()


live = os.open(place / "live" / name, os.O_RDWR | os.O_CREAT, 0o600)
twice = False
try:
    fcntl.flock(live, fcntl.LOCK_EX | fcntl.LOCK_NB)
except BlockingIOError:  # another rank that looks has it for a moment, or this one runs twice
    time.sleep(1)
    try:
        fcntl.flock(live, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        twice = True
found = others() + ([[job, attempt, rank]] if twice else [])
record(place / "starts", {"job": job, "attempt": attempt, "rank": rank, "pid": os.getpid(), "found": found})
unidle.rank.restored(0)
pending: dict[tuple[str, int], int] = {}
for step in range(1, int(steps) + 1):
    time.sleep(each_s)
    pending["step", step] = now_ns()
    unidle.rank.step(step)
    if step % 3 == 0:
        pending["saved", step] = now_ns()
        unidle.rank.saved(step)
        promised(pending)
    if attempt <= failures and step * 2 >= steps and rank == 0:
        sys.exit(3)
