"""How fast events become durable and come back, compared with the plain ``sqlite3`` module with the same durability."""

from __future__ import annotations

import argparse
import resource
import sqlite3
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator
from contextlib import closing
from pathlib import Path

from _table import Row, main
from unidle.store.open import open_store
from unidle.store.protocol import NewEvent
from unidle.store.sql import SqlStore

BATCH = 500
SINGLE = 500
BODY = (
    b'{"job":"j00042","attempt":1,"rank":3,"first":%d,"marks":[{"k":"step","t":1700000000%09d,"n":%d,"o":"log"},'
    b'{"k":"span","t":1700000000%09d,"e":1700000001%09d,"w":"data"}]}'
)
TABLE = "CREATE TABLE events (seq INTEGER PRIMARY KEY, time_ns INTEGER, source TEXT, source_seq INTEGER, kind TEXT, body BLOB)"
INSERT = "INSERT INTO events (time_ns, source, source_seq, kind, body) VALUES (?, ?, ?, ?, ?)"
SELECT = (
    "SELECT seq, time_ns, source, source_seq, kind, body FROM events WHERE seq > ? ORDER BY seq LIMIT 1000"
)
OPEN = "from unidle.store.open import open_store; open_store({path!r}, create=False).last()"
READ = """
import sys
from pathlib import Path
from unidle.store.open import open_store

def peak_kib():
    return int(Path("/proc/self/status").read_text().split("VmHWM:")[1].split()[0])

store = open_store(sys.argv[1], create=False)
before = peak_kib()
assert sum(1 for _ in store.read())
print(peak_kib() - before)
"""


def arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("--events", type=int, default=100_000, help="events written per run (default 100000)")
    parser.add_argument("--read", type=int, default=1_000_000, help="events read per run (default 1000000)")
    parser.add_argument(
        "--runs", type=int, default=3, help="runs of each, ours and the peer's in turn (default 3)"
    )
    parser.add_argument(
        "--directory", default="/var/tmp", help="where the files go; a real disk (default /var/tmp)"
    )
    parser.add_argument("--postgres", metavar="URL", help="also measure an empty store on this server")


def rows(given: argparse.Namespace) -> Iterator[Row]:
    """Every figure in turn."""
    with tempfile.TemporaryDirectory(prefix="unidle-bench-", dir=given.directory) as name:
        directory = Path(name)
        yield written(given, directory, BATCH, given.events, "at least 20000", 20_000)
        yield written(given, directory, 1, SINGLE, "at least 500", 500)
        yield from read_back(given, directory)
        yield opened(given, directory)
    if given.postgres:
        with closing(open_store(given.postgres, create=True)) as store:
            yield on_postgres(given, store, BATCH, given.events)
            yield on_postgres(given, store, 1, SINGLE)


def on_postgres(given: argparse.Namespace, store: SqlStore, batch: int, count: int) -> Row:
    found = rates(lambda: append(store, batch, count), given.runs, count)
    what = f"durable events, {batch} at a time, PostgreSQL"
    return Row(what, "events/s", statistics.median(found), how=how(given.runs, found))


def written(
    given: argparse.Namespace, directory: Path, batch: int, count: int, goal: str, least: float
) -> Row:
    """Events per second until all are durable."""
    store = open_store(str(directory / f"ours{batch}.db"), create=True)
    plain = connect(directory / f"plain{batch}.db")
    ours, peer = [], []
    for _ in range(given.runs):
        ours += rates(lambda: append(store, batch, count), 1, count)
        peer += rates(lambda: insert(plain, batch, count), 1, count)
    store.close()
    plain.close()
    rate, peer_rate = statistics.median(ours), statistics.median(peer)
    return Row(
        f"durable events, {batch} at a time, SQLite", "events/s", rate, peer_rate, "sqlite3 module, WAL, synchronous=FULL",
        rate / peer_rate, goal, rate >= least, how(given.runs, ours),
    )  # fmt: skip


def read_back(given: argparse.Namespace, directory: Path) -> Iterator[Row]:
    """Seconds to read and verify a log, and the memory that it takes."""
    store = open_store(str(directory / "ours.db"), create=True)
    plain = connect(directory / "plain.db")
    append(store, 10_000, given.read)
    insert(plain, 10_000, given.read)
    ours, peer = [], []
    for _ in range(given.runs):
        ours.append(seconds(lambda: sum(1 for _ in store.read())))
        peer.append(seconds(lambda: plain_read(plain)))
    store.close()
    plain.close()
    took, peer_took = statistics.median(ours), statistics.median(peer)
    yield Row(
        f"read and verify {given.read} events, SQLite", "s", took, peer_took, "sqlite3 module, no checksums",
        peer_took / took, "at most 3", took <= 3 * max(1.0, given.read / 1_000_000), how(given.runs, ours),
    )  # fmt: skip
    done = subprocess.run(
        [sys.executable, "-c", READ, str(directory / "ours.db")], check=True, capture_output=True, text=True
    )
    grown = int(done.stdout) / 1024
    yield Row("memory added by that reading", "MiB", grown, goal="at most 16", holds=grown <= 16)


def opened(given: argparse.Namespace, directory: Path) -> Row:
    """CPU seconds of a process that opens a store."""
    ours = [cpu(OPEN.format(path=str(directory / "ours.db"))) for _ in range(given.runs)]
    took = statistics.median(ours)
    return Row(
        "open a store in a new process (CPU, beyond Python's own)",
        "s",
        took,
        goal="at most 0.1",
        holds=took <= 0.1,
        how=how(given.runs, ours),
    )


def append(store: SqlStore, batch: int, count: int) -> None:
    lease = store.acquire("bench")
    start = store.last()[0] + 1
    for first in range(start, start + count, batch):
        store.append(lease, [event(n) for n in range(first, first + batch)])
    store.release(lease)


def insert(plain: sqlite3.Connection, batch: int, count: int) -> None:
    for first in range(1, count + 1, batch):
        plain.execute("BEGIN IMMEDIATE")
        plain.executemany(INSERT, [event(n) for n in range(first, first + batch)])
        plain.execute("COMMIT")


def plain_read(plain: sqlite3.Connection) -> None:
    after = 0
    while page := plain.execute(SELECT, (after,)).fetchall():
        after = page[-1][0]


def event(n: int) -> NewEvent:
    return NewEvent(n, "rank 3", n, "rank_saw", BODY % (n, n, n, n, n))


def connect(path: Path) -> sqlite3.Connection:
    plain = sqlite3.connect(path, isolation_level=None)
    for statement in ("PRAGMA journal_mode = WAL", "PRAGMA synchronous = FULL", TABLE):
        plain.execute(statement)
    return plain


def rates(work: Callable[[], None], runs: int, count: int) -> list[float]:
    return [count / seconds(work) for _ in range(runs)]


def seconds(work: Callable[[], object]) -> float:
    start = time.perf_counter()
    work()
    return time.perf_counter() - start


def cpu(program: str) -> float:
    """CPU seconds of a Python process that runs ``program``, less those of one that runs nothing."""
    spent = []
    for source in ("pass", program):
        before = resource.getrusage(resource.RUSAGE_CHILDREN)
        subprocess.run([sys.executable, "-c", source], check=True)
        after = resource.getrusage(resource.RUSAGE_CHILDREN)
        spent.append(after.ru_utime + after.ru_stime - before.ru_utime - before.ru_stime)
    return spent[1] - spent[0]


def how(runs: int, found: list[float]) -> str:
    return f"measured here, median of {runs} ({min(found):.3g} to {max(found):.3g})"


if __name__ == "__main__":
    main("store", rows, arguments)
