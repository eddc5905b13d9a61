"""A rank of a gang under test, of the standard library alone: ``rank.py PLACE NAME [--stubborn] [--ends CODE]``.

It trains until the file PLACE/go-NAME is there. What it does stands in PLACE, whatever unidle's own log says: a line in
``starts`` and one in ``stops``. It holds a shared lock on a file of its attempt while it lives, which the kernel lets go
of when it dies, and tries the locks of all other attempts when it begins: who holds one is alive at the same time.
``--stubborn``: it ignores SIGTERM. ``--ends CODE``: the first rank of the first attempt ends so at once.
"""

import fcntl
import json
import os
import signal
import sys
import time

STEP_S = 0.05


def main() -> int:
    place, name, *options = sys.argv[1:]
    me = {word: os.environ[f"UNIDLE_{word.upper()}"] for word in ("job", "attempt", "rank", "node")}
    if "--stubborn" in options:
        signal.signal(signal.SIGTERM, signal.SIG_IGN)
    holds_fd = os.open(lock_of(place, me["job"], me["attempt"]), os.O_RDWR | os.O_CREAT, 0o600)
    fcntl.flock(holds_fd, fcntl.LOCK_SH)  # another rank that looks holds it for a moment
    note(place, "starts", {**me, "pid": os.getpid(), "t": boottime_ns(), "others": others(place, me)})
    if "--ends" in options and me["attempt"] == "1" and me["rank"] == "0":
        while len(lines(place, "starts", me["job"])) < int(os.environ["WORLD_SIZE"]):
            time.sleep(0.01)
        return int(options[options.index("--ends") + 1])
    step = 0
    while not os.path.exists(os.path.join(place, f"go-{name}")):
        step += 1
        print(f"step {step}/100000 loss {1 / step:.4f}", flush=True)
        time.sleep(STEP_S)
    note(place, "stops", {**me, "pid": os.getpid(), "t": boottime_ns(), "steps": step})
    return 0


def lock_of(place: str, job: str, attempt: str) -> str:
    return os.path.join(place, "alive", f"{job}.{attempt}")


def others(place: str, me: dict) -> list:
    """Other attempts of the job of which a rank lives now."""
    found = []
    for entry in os.listdir(os.path.join(place, "alive")):
        job, _, attempt = entry.rpartition(".")
        if job != me["job"] or attempt == me["attempt"]:
            continue
        fd = os.open(lock_of(place, job, attempt), os.O_RDWR)
        try:
            fcntl.flock(fd, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            found.append(int(attempt))
        os.close(fd)
    return found


def note(place: str, file: str, what: dict) -> None:
    """One line, with one call."""
    fd = os.open(os.path.join(place, file), os.O_WRONLY | os.O_CREAT | os.O_APPEND, 0o600)
    os.write(fd, json.dumps(what).encode() + b"\n")
    os.close(fd)


def lines(place: str, file: str, job: str = "") -> list:
    """What was noted, of one job or of all."""
    try:
        with open(os.path.join(place, file), "rb") as noted:
            found = [json.loads(line) for line in noted.read().splitlines()]
    except FileNotFoundError:
        return []
    return [one for one in found if not job or one["job"] == job]


def boottime_ns() -> int:
    return time.clock_gettime_ns(time.CLOCK_BOOTTIME)


if __name__ == "__main__":
    sys.exit(main())
