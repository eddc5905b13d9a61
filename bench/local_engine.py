"""What the local engine costs: its supervisors, its polling, and the time to start, notice and stop ranks."""

from __future__ import annotations

import argparse
import os
import resource
import signal
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator
from pathlib import Path

from _table import Row, main
from unidle.clock import RealClock, boottime_ns
from unidle.engine.local.engine import LocalEngine
from unidle.engine.local.ranks import process_tree
from unidle.engine.protocol import RankMarks, StartGang, StopGang
from unidle.events.marks import Mark
from unidle.fleet import Device, Fleet, Node
from unidle.jobs import JobSpec, RankPlace

RANKS = 8
RUNS = 7
STEADY_S = 15.0
FLOOD_MB = 400
FAST_PYTHON = (sys.executable, "-I", "-S", "-c")
FLEET = Fleet(nodes=(Node("n", "site", tuple(Device(f"n/{k}", "n", k, "cpu") for k in range(RANKS))),))
STEPS = """
import time
for n in range(10**6):
    print(f"iter {n}: loss 2.1, time 100.0ms", flush=True)
    time.sleep(0.1)
"""
FLOOD = """
import os, sys, time
data = (b"2026-01-01 12:00:00 INFO worker 17 fetched 1234 items from queue in 0.12 s\\n" * 1000)[:65536]
if sys.argv[1] == "bytes":
    data = os.urandom(65536)
for _ in range(int(sys.argv[2])):
    os.write(1, data)
time.sleep(int(sys.argv[3]))
"""


class Gang:
    """A gang under a fresh engine, followed until a condition holds."""

    def __init__(self, command: tuple[str, ...], ranks: int, root: Path) -> None:
        self.engine = LocalEngine(root, FLEET, RealClock())
        self.engine.capabilities()  # finding the control groups is paid once per controller
        self.ranks = ranks
        self.marks: list[list[Mark]] = [[] for _ in range(ranks)]
        places = tuple(RankPlace(k, "n", (f"n/{k}",)) for k in range(ranks))
        self.started_ns = self.engine._clock.now_ns()  # noqa: SLF001
        self.engine.start(StartGang("bench", 1, JobSpec(command=command, ranks=ranks), places))

    def until(self, condition: Callable[[], bool]) -> None:
        while not condition():
            self.turn()

    def turn(self) -> None:
        self.engine.wait(None)
        for seen in self.engine.poll():
            assert isinstance(seen, RankMarks)
            self.marks[seen.rank] += seen.marks

    def have(self, kind: str) -> bool:
        return all(any(mark.k == kind for mark in marks) for marks in self.marks)

    def stop(self, grace_ns: int = 0) -> None:
        self.engine.stop(StopGang("bench", 1, self.ranks, grace_ns))
        self.until(lambda: self.have("exit"))
        self.engine.close()


def rows(_: argparse.Namespace) -> Iterator[Row]:
    with tempfile.TemporaryDirectory() as place:
        names = (Path(place) / str(k) for k in range(1000))
        yield from supervisors(names)
        yield from floods(names)
        yield from starts(names)
        yield from ends(names)
        yield from steady(next(names))


def supervisors(roots: Iterator[Path]) -> Iterator[Row]:
    """One supervisor of a silent rank: processor time to the rank's first instruction, and memory."""
    cpu_ms, rss_mb, own_mb = [], [], []
    for _ in range(RUNS):
        gang = Gang((*FAST_PYTHON, "import time; time.sleep(600)"), 1, next(roots))
        gang.until(lambda g=gang: g.have("spawn"))  # type: ignore[misc]
        pid = supervisor_of(gang)
        cpu_ms.append(cpu_s(pid) * 1e3)
        rss_mb.append(memory_mb(pid, "VmRSS"))
        own_mb.append(memory_mb(pid, "RssAnon"))
        gang.stop()
    bare_ms = []
    for _ in range(RUNS):
        before = resource.getrusage(resource.RUSAGE_CHILDREN)
        subprocess.run([*FAST_PYTHON, "pass"], check=True)
        after = resource.getrusage(resource.RUSAGE_CHILDREN)
        bare_ms.append((after.ru_utime + after.ru_stime - before.ru_utime - before.ru_stime) * 1e3)
    ours, peer = statistics.median(cpu_ms), statistics.median(bare_ms)
    how = f"measured here, median of {RUNS}"
    yield Row(
        "start of a supervisor",
        "ms of CPU",
        ours,
        peer,
        "python -I -S -c pass",
        peer / ours,
        "at most 40",
        ours <= 40,
        how,
    )
    rss = statistics.median(rss_mb)
    yield Row("resident memory of a supervisor", "MB", rss, goal="at most 10", holds=rss <= 10, how=how)
    yield Row("of which not shared with other processes", "MB", statistics.median(own_mb), how=how)


def floods(roots: Iterator[Path]) -> Iterator[Row]:
    """Processor time of a supervisor whose rank prints as fast as it can; progress is looked for in all of it."""
    for kind in ("lines", "bytes"):
        command = (*FAST_PYTHON, FLOOD, kind, str(FLOOD_MB * 16))
        gang = Gang((*command, "600"), 1, next(roots))
        gang.until(lambda g=gang: g.have("spawn"))  # type: ignore[misc]
        pid = supervisor_of(gang)
        start_s, spent_s = cpu_s(pid), -1.0
        gang.until(lambda p=pid, s=start_s: cpu_s(p) > s)  # type: ignore[misc]
        while cpu_s(pid) != spent_s:  # until it sleeps
            spent_s = cpu_s(pid)
            gang.turn()
        ours = FLOOD_MB * 1.048576 / (spent_s - start_s)
        gang.stop()
        with (
            tempfile.TemporaryFile() as file,
            subprocess.Popen([*command, "0"], stdout=subprocess.PIPE) as source,
        ):
            cat = subprocess.Popen(["cat"], stdin=source.stdout, stdout=file)
            end_s = os.wait4(cat.pid, 0)[2]
            cat.returncode = 0
        peer = FLOOD_MB * 1.048576 / (end_s.ru_utime + end_s.ru_stime)
        how = f"measured here, {FLOOD_MB} MiB once"
        yield Row(
            f"output of a rank: {kind}", "MB/s of one core", ours, peer, "| cat > file",
            ours / peer, "at least 100", ours >= 100, how,
        )  # fmt: skip


def starts(roots: Iterator[Path]) -> Iterator[Row]:
    """From the engine's start to the last rank's first instruction."""
    code = "import time; print(time.clock_gettime_ns(time.CLOCK_BOOTTIME), flush=True)"
    took_ms = []
    for _ in range(RUNS):
        root = next(roots)
        before_ns = boottime_ns()
        gang = Gang((*FAST_PYTHON, code), 4, root)
        gang.until(lambda g=gang: g.have("exit"))  # type: ignore[misc]
        gang.engine.close()
        first = [int((root / "bench" / "1" / f"rank{k}" / "log").read_text()) for k in range(4)]
        took_ms.append((max(first) - before_ns) / 1e6)
    peer_ms = []
    for _ in range(RUNS):
        before_ns = boottime_ns()
        plain = [subprocess.Popen([*FAST_PYTHON, code], stdout=subprocess.PIPE) for _ in range(4)]
        peer_ms.append((max(int(p.communicate()[0]) for p in plain) - before_ns) / 1e6)
    ours, peer = statistics.median(took_ms), statistics.median(peer_ms)
    how = f"measured here, median of {RUNS}"
    yield Row(
        "start of 4 ranks, to the last one's first instruction",
        "ms",
        ours,
        peer,
        "4 x Popen",
        peer / ours,
        "at most 500",
        ours <= 500,
        how,
    )


def ends(roots: Iterator[Path]) -> Iterator[Row]:
    """A rank's death until the engine tells it; a gang's stop until no process is left."""
    told_ms, stopped_ms = [], []
    for _ in range(RUNS):
        gang = Gang((*FAST_PYTHON, "import time; time.sleep(600)"), 4, next(roots))
        gang.until(lambda g=gang: g.have("spawn"))  # type: ignore[misc]
        for _ in range(2):
            gang.engine.wait(gang.engine._clock.now_ns() + 100_000_000)  # noqa: SLF001
        begin = time.perf_counter()
        os.kill(gang.marks[2][0].pid or 0, signal.SIGKILL)
        gang.until(lambda g=gang: g.marks[2][-1].k == "exit")  # type: ignore[misc]
        told_ms.append((time.perf_counter() - begin) * 1e3)
        begin = time.perf_counter()
        gang.stop(10_000_000_000)
        stopped_ms.append((time.perf_counter() - begin) * 1e3)
    how = f"measured here, median of {RUNS}"
    ours = statistics.median(told_ms)
    yield Row(
        "death of a rank to its exit mark at the controller",
        "ms",
        ours,
        goal="at most 1,000",
        holds=ours <= 1000,
        how=how,
    )
    yield Row("stop of 3 ranks to their exit marks", "ms", statistics.median(stopped_ms), how=how)


def steady(root: Path) -> Iterator[Row]:
    """Eight ranks that print a step every 0.1 s: processor time of the engine's side and of the supervisors."""
    gang = Gang((*FAST_PYTHON, STEPS), RANKS, root)
    gang.until(lambda: gang.have("step"))
    pids = [supervisor_of(gang, rank) for rank in range(RANKS)]
    end = time.monotonic() + STEADY_S
    before, before_each = time.process_time(), sum(map(cpu_s, pids))
    while time.monotonic() < end:
        gang.turn()
    ours = (time.process_time() - before) / STEADY_S * 100
    each = (sum(map(cpu_s, pids)) - before_each) / STEADY_S * 100
    gang.stop()
    how = f"measured here, {STEADY_S:.0f} s, 10 steps/s per rank"
    yield Row(
        f"engine with {RANKS} ranks, polling",
        "% of one core",
        ours,
        goal="below 0.5",
        holds=ours < 0.5,
        how=how,
    )
    yield Row(f"all {RANKS} supervisors", "% of one core", each, how=how)


def supervisor_of(gang: Gang, rank: int = 0) -> int:
    """The parent of the rank's process."""
    stat = process_tree.stat_of(gang.marks[rank][0].pid or 0)
    assert stat is not None
    return stat[1]


def cpu_s(pid: int) -> float:
    """Time that the process's only thread ran."""
    return int(Path(f"/proc/{pid}/schedstat").read_text().split()[0]) / 1e9


def memory_mb(pid: int, field: str) -> float:
    lines = Path(f"/proc/{pid}/status").read_text().splitlines()
    return next(int(line.split()[1]) for line in lines if line.startswith(field)) * 1024 / 1e6


if __name__ == "__main__":
    main("local_engine", rows)
