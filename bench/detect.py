"""From a line in a log to a fault in the store, and what it costs to look.

A real controller (`unidle up`, a process of its own, SQLite) serves four declared nodes, each with a log that is followed and an
NVML overlay. Lines are appended one at a time, at random moments; the time is from the write to the moment the fault can be
read in the store by another process. What watching costs is processor time of the same controller at rest, with `watch` and
with every source switched off, in pairs; and under a flood of 100,000 lines a second into one log.
"""

from __future__ import annotations

import argparse
import json
import random
import signal
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from _process import cpu_s, memory_bytes
from _table import Row, main
from unidle.store.open import open_store
from unidle.view.records import FaultView
from unidle.view.snapshot import load_view

NODES = 4
TALK = "[{at:12.6f}] usb 1-1.{k}: new high-speed USB device number {k} using xhci_hcd\n"
FAULT = "[{at:12.6f}] NVRM: Xid (PCI:0000:{bus:02x}:00): 79, pid='<unknown>', name=<unknown>, GPU has fallen off the bus.\n"
LATENCY_GOAL_S = 2.0
CPU_GOAL_PERCENT = 1.0
FLOOD_PER_S = 100_000
FLOOD_GOAL_PERCENT = 50.0
FLOOD_GOAL_MIB = 64.0


def write_fleet(root: Path, *, watched: bool, devices: int) -> Path:
    watch: dict[str, object] = {"kernel_log": "off"}
    if watched:
        watch = {
            "kernel_log": f"n[1-{NODES}].log",
            "nvml": f"nvml-n[1-{NODES}].json",
            "pci": [f"0000:{k:02x}:00.0" for k in range(1, devices + 1)],
        }
    fleet = {"nodes": [{"id": f"n[1-{NODES}]", "devices": {"count": devices, "kind": "cpu"}, "watch": watch}]}
    path = root / "fleet.json"
    path.write_text(json.dumps(fleet))
    for k in range(1, NODES + 1):
        (root / f"n{k}.log").touch()
    return path


@contextmanager
def controller(root: Path, *, watched: bool, devices: int = 8) -> Iterator[subprocess.Popen[str]]:
    root.mkdir()
    fleet = write_fleet(root, watched=watched, devices=devices)
    command = [sys.executable, "-m", "unidle", "up", "--fleet", str(fleet), "--store", str(root / "s.db"), "--progress", "plain"]  # fmt: skip
    with subprocess.Popen(command, stderr=subprocess.PIPE, text=True) as process:
        assert process.stderr is not None
        while "serving" not in (line := process.stderr.readline()):
            if not line:
                raise SystemExit("the controller has ended")
        try:
            yield process
        finally:
            process.send_signal(signal.SIGTERM)


def faults(root: Path) -> list[FaultView]:
    store = open_store(str(root / "s.db"), create=False, read_only=True)
    try:
        return load_view(store).faults
    finally:
        store.close()


def latencies(root: Path, count: int, seed: int) -> list[float]:
    """Seconds from the write of a line to the fault in the store, of ``count`` lines on different devices and nodes."""
    chance, found = random.Random(seed), []
    # one line for each device: a second one of the same would tell nothing new
    with controller(root, watched=True, devices=-(-count // NODES)):
        time.sleep(2)
        for k in range(count):
            time.sleep(chance.uniform(0.1, 0.6))
            log = root / f"n{k % NODES + 1}.log"
            with log.open("a") as file:
                file.write(FAULT.format(at=1000 + 70 * k, bus=k // NODES + 1))
            began = time.monotonic()
            while len(faults(root)) <= k and time.monotonic() - began < 10:
                time.sleep(0.01)
            found.append(time.monotonic() - began)
    return found


def at_rest(root: Path, seconds: float) -> tuple[float, float]:
    """Percent of one core that the controller uses, watching and not, measured in turns."""
    used: dict[bool, float] = {True: 0.0, False: 0.0}
    with controller(root / "on", watched=True) as on, controller(root / "off", watched=False) as off:
        time.sleep(3)
        for watched, process in ((True, on), (False, off)):
            used[watched] -= cpu_s(process.pid)
        time.sleep(seconds)
        for watched, process in ((True, on), (False, off)):
            used[watched] += cpu_s(process.pid)
    return 100 * used[True] / seconds, 100 * used[False] / seconds


def flood(root: Path, seconds: float) -> tuple[float, float, float]:
    """Under a flood: percent of a core, memory that it added (MiB), and seconds to a fault that came at its end."""
    block = "".join(TALK.format(at=k / 1000, k=k % 90) for k in range(FLOOD_PER_S // 20)).encode()
    with controller(root, watched=True) as process:
        time.sleep(2)
        memory, used = memory_bytes(process.pid)[0], cpu_s(process.pid)
        log = root / "n1.log"
        began = time.monotonic()
        with log.open("ab", buffering=0) as file:
            for tick in range(int(seconds * 20)):
                file.write(block)
                time.sleep(max(began + (tick + 1) / 20 - time.monotonic(), 0))
            spent = time.monotonic() - began
            used = cpu_s(process.pid) - used
            file.write(FAULT.format(at=10_000, bus=1).encode())
        written = time.monotonic()
        while not faults(root) and time.monotonic() - written < 30:
            time.sleep(0.01)
        late = time.monotonic() - written
        return 100 * used / spent, (memory_bytes(process.pid)[0] - memory) / 2**20, late


def rows(arguments: argparse.Namespace) -> Iterator[Row]:
    with tempfile.TemporaryDirectory(prefix="unidle-detect-") as directory:
        root = Path(directory)
        found = sorted(latencies(root / "latency", arguments.lines, 5))
        p95 = found[min(int(0.95 * len(found)), len(found) - 1)]
        how = f"measured here, {len(found)} lines on {NODES} nodes, slowest {found[-1]:.2f} s"
        yield Row("log line to fault in the store, p95", "s", round(p95, 3), goal="<= 2 s", holds=p95 <= LATENCY_GOAL_S, how=how)  # fmt: skip
        yield Row("log line to fault in the store, median", "s", round(statistics.median(found), 3), how=how)
        (root / "rest").mkdir()
        on, off = at_rest(root / "rest", arguments.seconds)
        how = f"measured here, {arguments.seconds:g} s at rest; the same controller with all sources off uses {off:.2f} %"
        yield Row(f"watching {NODES} nodes, processor of one core", "%", round(on - off, 2), goal="<= 1 %", holds=on - off <= CPU_GOAL_PERCENT, how=how)  # fmt: skip
        percent, mib, late = flood(root / "flood", arguments.seconds)
        how = f"measured here, {arguments.seconds:g} s of {FLOOD_PER_S:,} lines a second into one log"
        yield Row("flood, processor of one core", "%", round(percent, 1), goal="<= 50 %", holds=percent <= FLOOD_GOAL_PERCENT, how=how)  # fmt: skip
        yield Row("flood, memory added", "MiB", round(mib, 1), goal="<= 64 MiB", holds=mib <= FLOOD_GOAL_MIB, how=how)  # fmt: skip
        yield Row("a fault behind the flood, line to store", "s", round(late, 2), goal="<= 2 s", holds=late <= LATENCY_GOAL_S, how=how)  # fmt: skip


def add_arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("--lines", type=int, default=40, help="faults to time")
    parser.add_argument(
        "--seconds", type=float, default=20.0, help="length of the measurements of processor time"
    )


if __name__ == "__main__":
    main("detect", rows, add_arguments)
