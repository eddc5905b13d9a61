"""A real `unidle up` with retention, short jobs for a long time: does anything grow?

Jobs are submitted in bursts. Memory, descriptors, files and disk of the last quarter are compared with those of
the first. The log of events is append-only, so the store is a row of its own, per job. Meant for every night. With
`--ended N`, N jobs have ended when `unidle up` starts, and files and disk are compared with those before.
"""

from __future__ import annotations

import argparse
import os
import shutil
import signal
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from contextlib import closing, contextmanager
from dataclasses import dataclass
from pathlib import Path

import msgspec

from _process import UNIDLE, environment
from _table import Row, main
from unidle.control.inbox import SubmitRequest
from unidle.control.retention.removal import size_of
from unidle.events import types as ev
from unidle.events.types import decode
from unidle.jobs import JobSpec
from unidle.login import login_name
from unidle.store.archives import ArchiveShelf
from unidle.store.open import open_store
from unidle.store.protocol import NewEvent, StoredEvent
from unidle.store.sql import SqlStore
from unidle.view.fold import FOLD_VERSION

KEPT = 40
FLEET = f"""
nodes: [{{id: n1, devices: {{count: 4, kind: cpu}}, watch: {{kernel_log: "off"}}}}]
retention: {{age: 10m, jobs: {KEPT}, size: 64MiB, compress: 1s}}
"""
WARM_UP_S, WARM_UP_MOST_S = 90.0, 600.0  # until the first jobs are gone, and a part of the ledger is sealed
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


@contextmanager
def serving(directory: Path) -> Iterator[subprocess.Popen[bytes]]:
    """`unidle up` with retention on the store of the directory."""
    path, fleet = directory / "store", directory / "fleet.yaml"
    fleet.write_text(FLEET)
    with (directory / "up.log").open("wb") as output:
        up = subprocess.Popen(
            [*UNIDLE, "up", "--store", str(path), "--fleet", str(fleet), "--progress", "off"],
            env=environment(), stdout=subprocess.DEVNULL, stderr=output,
        )  # fmt: skip
    try:
        yield up
    finally:
        up.send_signal(signal.SIGINT)
        try:
            up.wait(30)
        except subprocess.TimeoutExpired:
            up.kill()
            up.wait()


def soak(directory: Path, seconds: float, burst: int) -> list[Sample]:
    """Samples of the time after the warm-up."""
    path = directory / "store"
    with serving(directory) as up:
        while not path.exists() and up.poll() is None:
            time.sleep(0.05)
        return _drive(up, path, seconds, burst)


def _need_running(up: subprocess.Popen[bytes], path: Path) -> None:
    if up.poll() is not None:
        raise SystemExit(f"unidle up has ended with exit code {up.returncode}: see {path.parent}/up.log")


def _drive(up: subprocess.Popen[bytes], path: Path, seconds: float, burst: int) -> list[Sample]:
    """Bursts of jobs. A sample is taken when a burst has ended and is compressed, so that no load of the machine counts."""
    store, found = open_store(str(path), create=True), list[Sample]()
    begin, number, warm_s = time.monotonic(), 0, float("inf")
    while time.monotonic() - begin < warm_s + seconds:
        for _ in range(burst):
            request = SubmitRequest(f"soak-{number:06d}", job(number))
            store.request("submit", msgspec.json.encode(request))
            number += 1
        while store.requests(1) or not _settled(path, store, number):
            _need_running(up, path)
            time.sleep(0.1)
        now = time.monotonic() - begin
        if now > WARM_UP_MOST_S or (now > WARM_UP_S and store.segments(FOLD_VERSION)):
            warm_s = min(warm_s, now)
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


def _copies(template: Path, path: Path, count: int) -> None:
    """A store of ``count`` ended jobs, one after another: log and files are those of the one in ``template``."""
    with closing(open_store(str(template), create=False, read_only=True)) as opened:
        events = [(event, decode(event.kind, event.body, event.seq)) for event in opened.read()]
    [job] = {event.job for _, event in events if isinstance(event, ev.JobSubmitted)}
    own = [(stored, event) for stored, event in events if getattr(event, "job", "") == job]
    span_ns = own[-1][0].time_ns - own[0][0].time_ns + 1
    runs = Path(f"{path}.d/runs")
    runs.mkdir(parents=True, mode=0o700)
    runs.parent.chmod(0o700)
    with closing(open_store(str(path), create=True)) as store:
        lease = store.acquire("bench")
        first = [stored for stored, event in events if isinstance(event, ev.ControllerStarted | ev.FleetSeen)]
        store.append(
            lease,
            [NewEvent(*stored[1:])._replace(time_ns=stored.time_ns - count * span_ns) for stored in first],
        )
        for number in range(count):
            name, shift_ns = f"soak-{number:06d}", (number - count) * span_ns
            shutil.copytree(Path(f"{template}.d/runs/{job}"), runs / name)
            store.append(lease, [_moved(stored, event, job, name, shift_ns) for stored, event in own])
        store.release(lease)


def _moved(stored: StoredEvent, event: ev.Event, job: str, name: str, shift_ns: int) -> NewEvent:
    changed = msgspec.structs.replace(event, job=name)
    if isinstance(changed, ev.RankSaw):
        marks = tuple(msgspec.structs.replace(mark, t=mark.t + shift_ns) for mark in changed.marks)
        changed = msgspec.structs.replace(changed, marks=marks)
    source = stored.source.replace(job, name)
    return NewEvent(stored.time_ns + shift_ns, source, stored.source_seq, *ev.encode(changed))


def of_ended(directory: Path, count: int) -> Iterator[Row]:
    """What retention leaves of many jobs that ended before it was on."""
    template, path = directory / "template", directory / "store"
    words = ["run", "--store", str(template), "--cpu-devices", "4", "--progress", "off", "sh", "-c", "seq 10"]
    subprocess.run([*UNIDLE, *words], env=environment(), check=True, stdout=subprocess.DEVNULL)
    _copies(template, path, count)
    state = Path(f"{path}.d")
    before = sum(len(names) for _, _, names in os.walk(state)), size_of([state / "runs"])
    begin = time.monotonic()
    with serving(directory) as up, closing(open_store(str(path), create=True)) as store:
        while not _settled(path, store, count):
            _need_running(up, path)
            time.sleep(0.1)
        seconds = time.monotonic() - begin
        files = sum(len(names) for _, _, names in os.walk(state))
        disk = size_of([state / "runs"]) + sum(ArchiveShelf(store).sizes().values())
    how = f"measured here, {count:,} jobs that had ended; {seconds:.0f} s until {KEPT} were left, compressed"
    per_job = max(before[0] // count, 1)
    for what, unit, old, new, most in (
        ("files of ended jobs", "", before[0], files, KEPT * per_job),
        (
            "disk of ended jobs, with archives",
            "MiB",
            before[1] / 2**20,
            disk / 2**20,
            before[1] / 2**20 * KEPT / count,
        ),
    ):
        yield Row(
            what,
            unit,
            new,
            old,
            "before",
            old / max(new, 1e-9),
            f"at most what {KEPT} jobs took before",
            new <= most,
            how,
        )


def rows(given: argparse.Namespace) -> Iterator[Row]:
    with tempfile.TemporaryDirectory(prefix="unidle-soak-", dir=given.directory) as place:
        if given.ended:
            yield from of_ended(Path(place), given.ended)
            return
        yield from compared(soak(Path(place), given.minutes * 60, given.burst), given.minutes * 60)


def arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("--minutes", type=float, default=30.0, help="length, without the warm-up")
    parser.add_argument(
        "--ended",
        type=int,
        default=0,
        help="instead: so many jobs that have ended are there when retention begins",
    )
    parser.add_argument("--burst", type=int, default=20, help="jobs that are submitted at once")
    parser.add_argument(
        "--directory", type=Path, help="where the store is (default: the temporary directory)"
    )


if __name__ == "__main__":
    main("soak", rows, arguments)
