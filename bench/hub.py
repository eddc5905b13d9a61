"""What the hub of a controller costs with many boxes: real TLS connections of other processes, each with pings and marks.

The CPU time is that of the hub's process, with a control loop that does nothing but poll. The clients run on the same
machine: its cores are shared, so that times of the clock depend on them, and CPU seconds do not.
"""

from __future__ import annotations

import argparse
import os
import select
import signal
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from pathlib import Path

from _table import Row, main
from unidle.clock import RealClock, boottime_ns
from unidle.hub import frames
from unidle.hub.protocol import Joined, Left, Received
from unidle.hub.server import HubServer, open_hub

CLIENTS = Path(__file__).with_name("_hub_clients.py")
JOIN_WITHIN_S = 120.0
EVERY = 7  # of so many marks one is timed: the loop should cost what the hub does, not what the clock does


def arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument(
        "--clients", type=int, default=10_000, help="boxes that are connected (default 10000)"
    )
    parser.add_argument(
        "--rate", type=float, default=20_000, help="marks per second of all of them (default 20000)"
    )
    parser.add_argument("--seconds", type=float, default=20, help="how long marks are counted (default 20)")
    parser.add_argument("--processes", type=int, default=2, help="processes of clients (default 2)")


class Loop:
    """A control loop that polls, and counts what comes."""

    def __init__(self, hub: HubServer) -> None:
        self.hub = hub
        self.present: set[int] = set()
        self.marks = 0
        self.delays_ns: list[int] = []

    def run(self, until: float, clients: int | None = None) -> bool:
        """Until that time of the clock, or until so many clients are there; whether they are."""
        fd = [self.hub.wake_fd]
        while (left := until - time.monotonic()) > 0:
            if len(self.present) == clients:
                return True
            select.select(fd, [], [], left)
            for event in self.hub.poll():
                if isinstance(event, Received):
                    self._received(event.frame)
                elif isinstance(event, Joined):
                    self.present.add(event.peer.id)
                elif isinstance(event, Left):
                    self.present.discard(event.peer)
        return False

    def _received(self, frame: object) -> None:
        assert isinstance(frame, frames.Marks)
        self.marks += 1
        if not self.marks % EVERY:
            mark = bytes(frame.marks[0])
            begin = mark.index(b'"t":') + 4
            self.delays_ns.append(boottime_ns() - int(mark[begin : mark.index(b",", begin)]))


def start_clients(hub: HubServer, parsed: argparse.Namespace, authority: Path) -> list[subprocess.Popen[str]]:
    """They dial at once. The addresses are all of this machine."""
    port = str(hub.addresses[0][1])
    authority.write_text(hub.authority)
    lines = []
    for number in range(parsed.clients):
        node = f"n{number}"
        address = f"127.{1 + number // 62_500}.{number // 250 % 250}.{1 + number % 250}"
        lines.append(f"{address} {node} {hub.box_token(node, 'job-1')}\n")
    begun = []
    rate = str(parsed.rate / parsed.processes)
    for part in range(parsed.processes):
        command = [sys.executable, str(CLIENTS), port, rate, str(authority)]
        process = subprocess.Popen(command, stdin=subprocess.PIPE, text=True)
        assert process.stdin is not None
        process.stdin.writelines(lines[part :: parsed.processes])
        process.stdin.close()
        begun.append(process)
    return begun


def resident_mib() -> float:
    status = Path("/proc/self/status").read_text()
    return int(status.split("VmRSS:")[1].split()[0]) / 1024


def rows(parsed: argparse.Namespace) -> Iterator[Row]:
    full = parsed.clients == 10_000 and parsed.rate == 20_000
    how = f"measured here: {parsed.clients:,} clients, {parsed.rate:,.0f} marks/s, {parsed.seconds:g} s, {os.cpu_count()} cores"
    with tempfile.TemporaryDirectory(prefix="unidle-bench-hub.") as scratch:
        clock = RealClock()
        before_mib = resident_mib()
        hub = open_hub("127.0.0.1:0", scratch, clock, 1)
        address = f"127.0.0.1:{hub.addresses[0][1]}"
        processes = start_clients(hub, parsed, Path(scratch) / "authority.pem")
        try:
            loop = Loop(hub)
            if not loop.run(time.monotonic() + JOIN_WITHIN_S, parsed.clients):
                sys.exit(f"only {len(loop.present)} of {parsed.clients} joined: {hub.refusals.counts()}")
            for process in processes:
                process.send_signal(signal.SIGUSR1)
            yield from steady(loop, parsed, how, full=full, before_mib=before_mib)
            for process in processes:
                process.send_signal(signal.SIGUSR2)
            hub.close()
            hub = open_hub(address, scratch, clock, 2)
            yield from again(Loop(hub), parsed, how, full=full)
        finally:
            for process in processes:
                process.send_signal(signal.SIGKILL)
                process.wait()
            hub.close()


def steady(
    loop: Loop, parsed: argparse.Namespace, how: str, *, full: bool, before_mib: float
) -> Iterator[Row]:
    """All are connected, and send marks."""
    loop.run(time.monotonic() + 2)
    loop.marks = 0
    loop.delays_ns.clear()
    began, cpu = time.monotonic(), time.process_time()
    loop.run(began + parsed.seconds)
    wall, used = time.monotonic() - began, time.process_time() - cpu
    cores, mib = used / wall, resident_mib()
    delays = statistics.quantiles(loop.delays_ns, n=100)
    goal = "at most 0.5 with 20,000 marks/s" if full else None
    holds = cores <= 0.5 and loop.marks / wall >= 0.95 * parsed.rate if full else None
    yield Row("CPU of the hub", "cores", cores, goal=goal, holds=holds, how=how)
    yield Row("CPU of the hub, for each mark", "us", used / loop.marks * 1e6, how=how)
    yield Row("marks that arrived", "1/s", loop.marks / wall, how=how)
    goal = "at most 400" if full else None
    yield Row(
        "resident memory of the process", "MiB", mib, goal=goal, holds=mib <= 400 if full else None, how=how
    )
    yield Row("memory for each client", "KiB", (mib - before_mib) * 1024 / parsed.clients, how=how)
    yield Row("write at the client to poll, p50", "ms", delays[49] / 1e6, how=how)
    p99 = delays[98] / 1e6
    yield Row("write at the client to poll, p99", "ms", p99, goal="at most 50", holds=p99 <= 50, how=how)


def again(loop: Loop, parsed: argparse.Namespace, how: str, *, full: bool) -> Iterator[Row]:
    """The hub was closed and opened again: all dial, and send no marks until they are there."""
    began, cpu = time.monotonic(), time.process_time()
    if not loop.run(began + JOIN_WITHIN_S, parsed.clients):
        sys.exit(f"only {len(loop.present)} of {parsed.clients} came back: {loop.hub.refusals.counts()}")
    wall, used = time.monotonic() - began, time.process_time() - cpu
    goal = "at most 15" if full else None
    yield Row("all connect again", "s", wall, goal=goal, holds=wall <= 15 if full else None, how=how)
    yield Row("CPU of the hub for it", "s", used, how=how)


if __name__ == "__main__":
    main("hub", rows, arguments)
