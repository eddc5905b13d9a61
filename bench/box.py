"""What a box costs at rest, how soon a mark is at the hub, a restart through it next to the local engine's, and a warm one."""

from __future__ import annotations

import argparse
import os
import signal
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

from _table import Row, main
from unidle.clock import RealClock, boottime_ns
from unidle.engine.local.engine import LocalEngine
from unidle.engine.protocol import RankMarks, StartGang, StopGang
from unidle.events.marks import Mark
from unidle.fleet import Device, Fleet, Node
from unidle.jobs import JobSpec, RankPlace

TESTS = Path(__file__).resolve().parent.parent / "tests"
sys.path[:0] = [str(TESTS / "box"), str(TESTS)]
import small_hub  # type: ignore[import-not-found]  # noqa: E402

REST_S = 60.0
MARKS_S = 20.0
RUNS = 7
FLEET = Fleet(nodes=(Node("n", "site", (Device("n/0", "n", 0, "cpu"),)),))
SILENT = "import time; time.sleep(3600)"
STEPS = """
import time
for n in range(1, 10**6):
    print(f"step {n}/1000000 loss 2.1", flush=True)
    time.sleep(0.05)
"""
FIRST = "import time; print(time.clock_gettime_ns(time.CLOCK_BOOTTIME), flush=True); time.sleep(3600)"
IMPORTS = """
import sys, time
how = "warm" if "torch" in sys.modules else "cold"
import torch, torch.distributed, torch.nn.parallel, torch.distributed.fsdp, torch.utils.data
print(how, time.clock_gettime_ns(time.CLOCK_BOOTTIME), flush=True)
time.sleep(3600)
"""
WARM_RUNS = 3
ONE_THREAD = {"OMP_NUM_THREADS": "1"}  # as ranks of a gang have it: a Python with threads cannot be forked
LOST_NS = 60_000_000_000


def rows(_: argparse.Namespace) -> Iterator[Row]:
    small_hub.EVERY_S = 1.0  # as a hub does
    small_hub.wait_until = answered
    for measure in (rest, marks, restart, warm_restart):
        with (
            tempfile.TemporaryDirectory() as place,
            small_hub.hub_and_box(Path(place)) as (hub, box),
        ):
            yield from measure(hub, box)


def rest(hub: small_hub.SmallHub, box: small_hub.RealBox) -> Iterator[Row]:
    """A box whose one rank is silent; the hub pings it once a second."""
    peer = hub.peer().welcome()
    peer.start(1, SILENT)
    hub.mark("spawn")
    settled = boottime_ns() + 15_000_000_000
    until(lambda: boottime_ns() > settled)
    before, begin_ns = cpu_s(box.pid), boottime_ns()
    until(lambda: boottime_ns() > begin_ns + REST_S * 1e9)
    used = (cpu_s(box.pid) - before) / REST_S * 100
    how = f"measured here, {REST_S:.0f} s, one silent rank, a ping a second"
    yield Row("box at rest: CPU", "% of one core", used, goal="at most 0.1", holds=used <= 0.1, how=how)
    bare = bare_python_mb()
    for field, what, goal in (
        ("Pss", "its share of memory (PSS)", 15.0),
        ("Rss", "its resident memory (RSS)", 15.0),
        ("Private_Dirty", "its memory that no other process has (USS)", None),
    ):
        mb, bare_mb = rollup_mb(box.pid, field), bare[field]
        yield Row(
            f"box at rest: {what}", "MB", mb, bare_mb, "Python with ssl imported", bare_mb / mb,
            goal=None if goal is None else f"at most {goal:.0f}", holds=None if goal is None else mb <= goal, how=how,
        )  # fmt: skip


def bare_python_mb() -> dict[str, float]:
    """Memory of the same Python with TLS and nothing else, while it waits: what no box can go below."""
    words = [sys.executable, "-I", "-S", "-E", "-c", "import ssl; print(flush=True); input()"]
    with subprocess.Popen(words, stdin=subprocess.PIPE, stdout=subprocess.PIPE) as process:
        assert process.stdout is not None
        process.stdout.readline()
        found = {field: rollup_mb(process.pid, field) for field in ("Pss", "Rss", "Private_Dirty")}
        process.kill()
    return found


def marks(hub: small_hub.SmallHub, box: small_hub.RealBox) -> Iterator[Row]:
    """From a step's mark in the journal to the hub, over TLS: the supervisor writes marks of steps as they are read."""
    hub.peer().welcome().start(1, STEPS, ranks=4)
    for rank in range(4):
        hub.mark("step", rank=rank)
    begin_ns = boottime_ns()
    cpu = cpu_s(box.pid)
    until(lambda: boottime_ns() > begin_ns + MARKS_S * 1e9)
    used = (cpu_s(box.pid) - cpu) / MARKS_S * 100
    offset_ns = RealClock().offset_ns
    late_ms = sorted(
        (mark["received"] + offset_ns - mark["t"]) / 1e6
        for rank in range(4)
        for mark in list(hub.marks[1, rank].values())
        if mark["k"] == "step" and mark["received"] > begin_ns
    )
    how = f"measured here, {len(late_ms)} marks of 4 ranks in {MARKS_S:.0f} s, from the step to the hub"
    p99 = late_ms[int(len(late_ms) * 0.99)]
    yield Row("mark on the wire: median", "ms", statistics.median(late_ms), how=how)
    yield Row("mark on the wire: p99", "ms", p99, goal="at most 50", holds=p99 <= 50, how=how)
    yield Row("box with 4 ranks of 20 steps/s: CPU", "% of one core", used, how=how)


def restart(hub: small_hub.SmallHub, box: small_hub.RealBox) -> Iterator[Row]:
    """Kill -9 of a rank until the first instruction of the next attempt, which the hub starts with the end's arrival."""
    peer = hub.peer().welcome()
    took_ms = []
    for attempt in range(1, RUNS + 2):
        killed_ns = boottime_ns()
        if attempt > 1:
            os.kill(hub.mark("spawn", attempt - 1)["pid"], signal.SIGKILL)
            hub.end_of(attempt - 1)
        peer.start(attempt, FIRST)
        took_ms.append((first_ns(box.rank(attempt)) - killed_ns) / 1e6)
    ours, peer_ms = statistics.median(took_ms[1:]), statistics.median(local_restarts())
    how = f"measured here, median of {RUNS}, Python's own start included"
    yield Row(
        "kill -9 of a rank to the next one's first instruction", "ms", ours, peer_ms, "local engine", peer_ms / ours,
        "within 300 of the local engine", ours - peer_ms <= 300, how,
    )  # fmt: skip


def warm_restart(hub: small_hub.SmallHub, box: small_hub.RealBox) -> Iterator[Row]:
    """The same until PyTorch is imported, warm and cold by turns in one box."""
    (box.runs / "imports.py").parent.mkdir(exist_ok=True)
    (box.runs / "imports.py").write_text(IMPORTS)
    peer = hub.peer().welcome()
    took: dict[str, list[float]] = {"warm": [], "cold": []}
    attempt = 0
    while min(map(len, took.values())) < WARM_RUNS:
        attempt += 1
        killed_ns = boottime_ns()
        if attempt > 1:
            os.kill(hub.mark("spawn", attempt - 1)["pid"], signal.SIGKILL)
            hub.end_of(attempt - 1)
        orders = small_hub.python_orders("", attempt)
        orders |= {"argv": [sys.executable, "-u", "imports.py"], "workdir": str(box.runs)}
        orders["env"] |= ONE_THREAD
        wish = ONE_THREAD if attempt == 1 or len(took["warm"]) <= len(took["cold"]) else None
        peer.ask("start", attempt=attempt, ranks=[{"rank": 0, "orders": {**orders, "warm": wish}}])
        how, done_ns = printed(box.rank(attempt)).split()
        if attempt == 1:
            settled_ns = killed_ns + 15_000_000_000  # the first one shows no steps
            until(lambda until_ns=settled_ns: boottime_ns() > until_ns)  # type: ignore[misc]
        elif how == "warm" or wish is None:
            took[how].append((int(done_ns) - killed_ns) / 1e9)
    warm, cold = statistics.median(took["warm"]), statistics.median(took["cold"])
    how = f"measured here, median of {WARM_RUNS} by turns ({min(took['warm']):.2f} to {max(took['warm']):.2f}; cold {min(took['cold']):.2f} to {max(took['cold']):.2f})"
    yield Row(
        "warm restart through a box: kill -9 to PyTorch imported", "s", warm, cold, "cold restart", cold / warm,
        "10 times faster", cold / warm >= 10, how,
    )  # fmt: skip


def local_restarts() -> Iterator[float]:
    """The same through the local engine, in ms."""
    places = (RankPlace(0, "n", ("n/0",)),)
    with tempfile.TemporaryDirectory() as place:
        engine = LocalEngine(Path(place), FLEET, RealClock())
        spec = JobSpec(command=(sys.executable, "-u", "-c", FIRST), ranks=1)
        for attempt in range(1, RUNS + 2):
            killed_ns = boottime_ns()
            if attempt > 1:
                os.kill(awaited(engine, attempt - 1, "spawn").pid or 0, signal.SIGKILL)
                awaited(engine, attempt - 1, "exit")
            engine.start(StartGang("bench", attempt, spec, places))
            found_ns = first_ns(Path(place) / "bench" / str(attempt) / "rank0")
            if attempt > 1:
                yield (found_ns - killed_ns) / 1e6
        engine.stop(StopGang("bench", attempt, 1, 0))
        awaited(engine, attempt, "exit")
        engine.close()


def awaited(engine: LocalEngine, attempt: int, kind: str) -> Mark:
    while True:
        engine.wait(None)
        for seen in engine.poll():
            if isinstance(seen, RankMarks) and seen.attempt == attempt:
                for mark in seen.marks:
                    if mark.k == kind:
                        return mark


def first_ns(directory: Path) -> int:
    return int(printed(directory))


def printed(directory: Path) -> str:
    """What the rank printed."""
    log = directory / "log"
    until(lambda: log.exists() and log.read_bytes().endswith(b"\n"))
    return log.read_text()


def until(condition: Callable[[], bool]) -> None:
    end_ns = boottime_ns() + LOST_NS + int(REST_S * 1e9)
    while not condition():
        assert boottime_ns() < end_ns
        time.sleep(0.001)


def answered(predicate: Callable[[], Any], *_: object, **__: object) -> Any:
    """As ``waiting.wait_until``, which looks ever more rarely."""
    until(lambda: bool(predicate()))
    return predicate()


def cpu_s(pid: int) -> float:
    """CPU time of a process, its children not counted."""
    return sum(
        int((task / "schedstat").read_text().split()[0]) / 1e9 for task in Path(f"/proc/{pid}/task").iterdir()
    )


def rollup_mb(pid: int, field: str) -> float:
    lines = Path(f"/proc/{pid}/smaps_rollup").read_text().splitlines()
    return next(int(line.split()[1]) for line in lines if line.startswith(f"{field}:")) * 1024 / 1e6


if __name__ == "__main__":
    main("box", rows)
