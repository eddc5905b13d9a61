"""A real `unidle up` with retention, short jobs for a long time: does anything grow?

Jobs are submitted in bursts. Memory, descriptors, files and disk of the last quarter are compared with those of
the first. The log of events is append-only, so the store is a row of its own, per job. Meant for every night.
"""

from __future__ import annotations

import argparse
import os
import signal
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

import msgspec

from _process import UNIDLE, environment
from _table import Row, main
from unidle.control.inbox import SubmitRequest
from unidle.control.removal import size_of
from unidle.jobs import JobSpec
from unidle.login import login_name
from unidle.store.archives import ArchiveShelf
from unidle.store.open import open_store
from unidle.store.sql import SqlStore

KEPT = 40
FLEET = f"""
nodes: [{{id: n1, devices: {{count: 4, kind: cpu}}}}]
retention: {{age: 10m, jobs: {KEPT}, size: 64MiB, compress: 1s}}
"""
WARM_UP_S = 90.0  # until the first jobs are gone
GROWTH = 1.05
STORE_BYTES_PER_JOB = 16_384  # measured: see the row of the store
TALKS_EVERY = 20  # every so many jobs, one prints a megabyte


@dataclass(frozen=True, slots=True)
class Sample:
    at_s: float
    memory_bytes: int
    descriptors: int
    files: int
    disk_bytes: int
    store_bytes: int
    jobs: int


def job(number: int) -> JobSpec:
    lines = 20_000 if number % TALKS_EVERY == 0 else 10
    command = ("sh", "-c", f"yes 'step of a job that prints a line of usual length' | head -n {lines}")
    return JobSpec(
        command, name="soak", ranks=1 + number % 2, device="cpu", user=login_name(), rendezvous="none"
    )


def sample(pid: int, path: Path, store: SqlStore, begin_s: float, jobs: int) -> Sample:
    status = Path(f"/proc/{pid}/status").read_text()
    memory = next(int(line.split()[1]) for line in status.splitlines() if line.startswith("VmRSS:"))
    state = Path(f"{path}.d")
    # results of checks of nodes are few, whatever the number of jobs, but come slowly: they would count as growth
    places = [one for one in state.iterdir() if one.name != "remedies"]
    files = len(places) + sum(len(n) + len(d) for place in places for _, d, n in os.walk(place))
    of_store = [Path(f"{path}{suffix}") for suffix in ("", "-wal")]
    return Sample(
        time.monotonic() - begin_s, memory * 1024, len(list(Path(f"/proc/{pid}/fd").iterdir())), files,
        size_of(places) + sum(ArchiveShelf(store).sizes().values()), size_of(of_store), jobs,
    )  # fmt: skip


def soak(directory: Path, seconds: float, burst: int) -> list[Sample]:
    """Samples of the time after the warm-up."""
    path, fleet = directory / "store", directory / "fleet.yaml"
    fleet.write_text(FLEET)
    with (directory / "up.log").open("wb") as output:
        up = subprocess.Popen(
            [*UNIDLE, "up", "--store", str(path), "--fleet", str(fleet), "--progress", "off"],
            env=environment(), stdout=subprocess.DEVNULL, stderr=output,
        )  # fmt: skip
    try:
        while not path.exists() and up.poll() is None:
            time.sleep(0.05)
        return _drive(up, path, seconds, burst)
    finally:
        up.send_signal(signal.SIGINT)
        try:
            up.wait(30)
        except subprocess.TimeoutExpired:
            up.kill()
            up.wait()


def _drive(up: subprocess.Popen[bytes], path: Path, seconds: float, burst: int) -> list[Sample]:
    """Bursts of jobs. A sample is taken when a burst has ended and is compressed, so that no load of the machine counts."""
    store, found = open_store(str(path), create=True), list[Sample]()
    begin, number = time.monotonic(), 0
    while time.monotonic() - begin < WARM_UP_S + seconds:
        for _ in range(burst):
            request = SubmitRequest(f"soak-{number:06d}", job(number))
            store.request("submit", msgspec.json.encode(request))
            number += 1
        while store.requests(1) or not _settled(path, store, number):
            if up.poll() is not None:
                raise SystemExit(
                    f"unidle up has ended with exit code {up.returncode}: see {path.parent}/up.log"
                )
            time.sleep(0.1)
        if (now := time.monotonic() - begin) > WARM_UP_S:
            found.append(sample(up.pid, path, store, begin, number))
            print(f"{now:.0f} s: {found[-1]}", file=sys.stderr, flush=True)
    store.close()
    return found


def _settled(path: Path, store: SqlStore, jobs: int) -> bool:
    """Whether all jobs have ended, are in the store, and are as many as retention keeps."""
    runs = Path(f"{path}.d/runs")
    if not runs.is_dir() or any(one.name[0] != "." for one in runs.iterdir()):
        return False
    return len(ArchiveShelf(store).sizes()) == min(jobs, KEPT)


def compared(samples: list[Sample], seconds: float) -> Iterator[Row]:
    quarter = max(len(samples) // 4, 1)
    first, last = samples[:quarter], samples[-quarter:]
    how = f"measured here, {samples[-1].jobs} jobs in {seconds / 60:.0f} min, medians of {quarter} samples"
    for what, unit, name, scale in (
        ("memory of `unidle up`", "MiB", "memory_bytes", 2**20), ("open descriptors", "", "descriptors", 1),
        ("files next to the store", "", "files", 1), ("disk of ended jobs, with archives", "MiB", "disk_bytes", 2**20),
    ):  # fmt: skip
        before, after = (
            statistics.median(getattr(one, name) for one in part) / scale for part in (first, last)
        )
        holds = after <= before * GROWTH
        yield Row(
            what, unit, after, before, "first quarter", before / after, f"at most {GROWTH:g} of the first quarter",
            holds, how,
        )  # fmt: skip
    jobs = samples[-1].jobs - samples[0].jobs
    grown = (samples[-1].store_bytes - samples[0].store_bytes) / max(jobs, 1)
    yield Row(
        "store (append-only log, ledger, archives), growth per job", "KiB", grown / 2**10,
        goal=f"at most {STORE_BYTES_PER_JOB / 2**10:g} KiB", holds=grown <= STORE_BYTES_PER_JOB,
        how=f"measured here, {samples[-1].store_bytes / 2**20:.1f} MiB at the end",
    )  # fmt: skip


def rows(given: argparse.Namespace) -> Iterator[Row]:
    with tempfile.TemporaryDirectory(prefix="unidle-soak-", dir=given.directory) as place:
        yield from compared(soak(Path(place), given.minutes * 60, given.burst), given.minutes * 60)


def arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("--minutes", type=float, default=30.0, help="length, without a warm-up of 90 s")
    parser.add_argument("--burst", type=int, default=20, help="jobs that are submitted at once")
    parser.add_argument(
        "--directory", type=Path, help="where the store is (default: the temporary directory)"
    )


if __name__ == "__main__":
    main("soak", rows, arguments)
