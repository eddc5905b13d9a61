"""The ledger's reading side: rows of 10,000 devices into groupings, live and from sealed segments.

`--rows` rows are held in memory and summed by several groupings; `--sealed-rows` rows are sealed
into segments in a temporary directory (about 12 bytes a row) and summed from there, one segment in
memory at a time, in a process of its own so that its peak memory is its own.
"""

from __future__ import annotations

import argparse
import io
import json
import resource
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterable, Iterator
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import polars as pl

from _table import Row, main
from unidle.ledger.columns import LEAF_CODE, RowColumns
from unidle.ledger.export import write_csv, write_jsonl, write_parquet
from unidle.ledger.perfetto import write_perfetto
from unidle.ledger.query import summary
from unidle.ledger.segments import seal, unseal
from unidle.ledger.select import TimeRange
from unidle.ledger.sources import LiveRows, SegmentedRows, span
from unidle.ledger.tables import NO_JOB, JobInfo, SliceInfo, SliceTable

DEVICES = 10_000
PER_NODE = 8
GANG = 64  # neighbouring devices that one job holds
JOBS = 2_000
START_NS = 1_700_000_000_000_000_000
GROUPINGS = (
    ("leaf",),
    ("job",),
    ("node", "leaf"),
    ("device", "leaf"),
    ("queue", "user", "leaf"),
    ("job", "attempt", "leaf"),
    ("device", "job"),
)
SEALED_GROUPINGS = (("leaf",), ("queue", "user", "leaf"), ("device", "leaf"))
SECONDS, BYTES = 3.0, 2_000_000_000
EXPORTED_ROWS = 500_000
SEGMENT_ROWS, SEGMENT_RUNS = 1_000_000, 5
LIVE_RUNS = 2
PEER = "Polars group_by of codes in the same files, without window, weights, names or check"

_MIX = [LEAF_CODE[n] for n in ("useful", "useful", "useful", "exposed_local", "data_stall", "checkpoint")]


class SealedFile(NamedTuple):
    """What a segment is filed under."""

    id: int
    start_ns: int
    end_ns: int


def made_rows(rows: int, start_ns: int, seed: int) -> RowColumns:
    """A stretch of a fleet's life: every device has the same number of rows, which tile the stretch."""
    random = np.random.default_rng(seed)
    each = max(1, rows // DEVICES)
    n = each * DEVICES
    which = np.repeat(np.arange(DEVICES, dtype=np.int32), each)
    gaps = random.integers(200_000_000, 900_000_000, (DEVICES, each))
    gaps[:, -1] += gaps.sum(axis=1).max() - gaps.sum(axis=1)
    end = (start_ns + np.cumsum(gaps, axis=1)).ravel()
    leaf = random.choice(np.array(_MIX, np.uint8), n)
    job = ((which // GANG * 7 + seed) % JOBS + 1).astype(np.int32)
    free = random.random(n) < 0.05
    leaf[free], job[free] = LEAF_CODE["no_demand"], 0
    data = {
        "slice": which,
        "start_ns": end - gaps.ravel(),
        "end_ns": end,
        "leaf": leaf,
        "job": job,
        "attempt": np.where(free, 0, 1 + job % 3).astype(np.int32),
        "step": np.where(free, -1, np.tile(np.arange(each), DEVICES)),
        "how": (job % 2).astype(np.uint8),
        "observer": np.zeros(n, np.uint16),
        "revision": np.zeros(n, np.int32),
        "sign": np.ones(n, np.int8),
    }
    return RowColumns(data, _slices(start_ns, int(end[-1])), _jobs(), ("helper",))


def _slices(start_ns: int, end_ns: int) -> SliceTable:
    infos = []
    for k in range(DEVICES):
        node = f"node-{k // PER_NODE:04d}"
        name = f"{node}/{k % PER_NODE}"
        infos.append(SliceInfo(name, name, node, 1_000_000, start_ns, end_ns, "NVIDIA H100"))
    return SliceTable.of(infos)


def _jobs() -> tuple[JobInfo, ...]:
    names = [f"job-{k:05d}" for k in range(JOBS)]
    return (NO_JOB, *(JobInfo(n, n, f"queue-{k % 12}", f"user-{k % 90}") for k, n in enumerate(names)))


def seconds(run: Callable[[], object], tries: int = 1) -> float:
    """The shortest of ``tries`` wall times."""
    found = []
    for _ in range(tries):
        began = time.perf_counter()
        run()
        found.append(time.perf_counter() - began)
    return min(found)


def peak_bytes() -> int:
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * 1024


def live(arguments: argparse.Namespace) -> Iterator[dict[str, Any]]:
    """Groupings of rows in memory; runs in a process of its own."""
    columns = made_rows(arguments.rows, START_NS, 0)
    source = LiveRows(columns)
    yield {"rows": len(columns), "row_bytes": columns.nbytes / len(columns), "base_bytes": peak_bytes()}
    for by in GROUPINGS:
        yield {"by": by, "s": seconds(partial(summary, source, None, by), LIVE_RUNS), "bytes": peak_bytes()}
    whole = source.extent()
    middle = TimeRange(whole.start_ns + 10**9, whole.end_ns - 10**9)
    took = seconds(partial(summary, source, middle, ("leaf",)), LIVE_RUNS)
    yield {"by": ("leaf", "in a window that cuts every slice's rows"), "s": took, "bytes": peak_bytes()}


def sealed(arguments: argparse.Namespace) -> Iterator[dict[str, Any]]:
    """Groupings of sealed segments, and plain Polars over the same files; runs in a process of its own."""
    folder = Path(arguments.folder)
    files = [SealedFile(*item) for item in json.loads((folder / "index.json").read_text())]
    source = SegmentedRows(files, lambda k: (folder / f"{k}.parquet").read_bytes())
    for by in SEALED_GROUPINGS:
        yield {"by": by, "s": seconds(partial(summary, source, None, by)), "bytes": peak_bytes()}
    first = TimeRange(files[0].start_ns, files[0].end_ns)
    took = seconds(partial(summary, source, first, ("leaf",)))
    yield {"by": ("leaf", "in the first segment's window"), "s": took, "bytes": peak_bytes()}


def polars_alone(arguments: argparse.Namespace) -> Iterator[dict[str, Any]]:
    """The peer: group_by over the same files by code; no window, weights, names or check."""
    scan = pl.scan_parquet(str(Path(arguments.folder) / "*.parquet"))
    ns = (pl.col("end_ns") - pl.col("start_ns")).cast(pl.Int128).sum()
    for keys in (["leaf", "how"], ["job", "leaf"], ["slice", "leaf"]):
        took = seconds(partial(scan.group_by(keys).agg(ns).collect, engine="streaming"))
        yield {"s": took, "bytes": peak_bytes()}


def make_segments(folder: Path, rows: int, rows_each: int) -> int:
    """Seal ``rows`` rows into files and return their size in bytes."""
    index, start, size = [], START_NS, 0
    for k in range(max(1, rows // rows_each)):
        columns = made_rows(min(rows, rows_each), start, k)
        body = seal(columns)
        (folder / f"{k}.parquet").write_bytes(body)
        found = span(columns)
        index.append(SealedFile(k, *found))
        start, size = found.end_ns, size + len(body)
    (folder / "index.json").write_text(json.dumps(index))
    return size


def _alone(part: str, arguments: argparse.Namespace, folder: str = "") -> list[dict[str, Any]]:
    """Run one part of this file in a process of its own and read its figures."""
    command = [sys.executable, __file__, "--part", part, "--rows", str(arguments.rows), "--folder", folder]
    done = subprocess.run(command, check=True, stdout=subprocess.PIPE, text=True)
    return [json.loads(line) for line in done.stdout.splitlines()]


def _row(
    what: str,
    unit: str,
    ours: float,
    goal: str | None = None,
    *,
    holds: bool | None = None,
    peer: float | None = None,
    runs: int = 1,
) -> Row:
    return Row(
        what=what,
        unit=unit,
        ours=ours,
        peer=peer,
        peer_name=PEER if peer else None,
        ratio=peer / ours if peer else None,
        goal=goal,
        holds=holds,
        how=f"measured here, best of {runs}" if runs > 1 else "measured here, 1 run",
    )


def bench(arguments: argparse.Namespace) -> Iterable[Row]:
    head, *figures = _alone("live", arguments)
    millions = f"{head['rows'] / 1e6:g} M rows of {DEVICES:,} devices"
    size = head["row_bytes"]
    yield _row("bytes per row in memory", "B", size, "<= 60 B", holds=size <= 60)
    for f in figures:
        goal, holds = f"<= {SECONDS:g} s", f["s"] <= SECONDS
        yield _row(f"{millions} by {', '.join(f['by'])}", "s", f["s"], goal, holds=holds, runs=LIVE_RUNS)
    yield _memory(f"{millions}: peak memory", figures)
    yield from _segment_rows()
    yield from _sealed_rows(arguments)
    yield from _export_rows()


def _memory(what: str, figures: list[dict[str, Any]], peers: list[dict[str, Any]] | None = None) -> Row:
    most = max(f["bytes"] for f in figures)
    peer = max(f["bytes"] for f in peers) / 1e9 if peers else None
    return _row(what, "GB", most / 1e9, f"<= {BYTES / 1e9:g} GB", holds=most <= BYTES, peer=peer)


def _segment_rows() -> Iterator[Row]:
    """One segment, compared with Polars writing and reading the same columns."""
    columns = made_rows(SEGMENT_ROWS, START_NS, 0)
    body, millions = seal(columns), f"{SEGMENT_ROWS / 1e6:g} M rows"
    frame = pl.read_parquet(io.BytesIO(body))
    peers = (
        lambda: frame.write_parquet(io.BytesIO(), compression="zstd", row_group_size=1 << 18),
        lambda: pl.read_parquet(io.BytesIO(body)),
    )
    ours: tuple[Callable[[], object], ...] = (partial(seal, columns), partial(unseal, body))
    for what, own, peer in zip(("seal", "read the segment of"), ours, peers, strict=True):
        took, peer_took = seconds(own, SEGMENT_RUNS), seconds(peer, SEGMENT_RUNS)
        row = _row(f"{what} {millions}", "s", took, peer=peer_took, runs=SEGMENT_RUNS)
        yield replace(row, peer_name="Polars")


def _sealed_rows(arguments: argparse.Namespace) -> Iterator[Row]:
    with tempfile.TemporaryDirectory() as folder:
        size = make_segments(Path(folder), arguments.sealed_rows, arguments.segment_rows)
        ours = _alone("sealed", arguments, folder)
        peers = _alone("polars", arguments, folder)
    millions = f"{arguments.sealed_rows / 1e6:g} M sealed rows"
    yield _row(f"{millions}: bytes per row on disk", "B", size / arguments.sealed_rows)
    for k, f in enumerate(ours):
        peer = peers[k]["s"] if k < len(peers) else None
        yield _row(f"{millions} by {', '.join(f['by'])}", "s", f["s"], peer=peer)
    yield _memory(f"{millions}: peak memory", ours, peers)


def _export_rows() -> Iterator[Row]:
    columns = made_rows(EXPORTED_ROWS, START_NS, 0)
    source = LiveRows(columns)
    for write in (write_jsonl, write_csv, write_parquet, write_perfetto):
        rate = len(columns) / seconds(partial(write, source, io.BytesIO()))
        word = write.__name__.removeprefix("write_")
        yield _row(f"export as {word}", "rows/s", rate, ">= 100,000 rows/s", holds=rate >= 100_000)


PARTS = {"live": live, "sealed": sealed, "polars": polars_alone}


def add_arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("--rows", type=int, default=10_000_000, help="rows in memory")
    parser.add_argument("--sealed-rows", type=int, default=100_000_000, help="rows in sealed segments")
    parser.add_argument("--segment-rows", type=int, default=2_000_000, help="rows of one segment")
    parser.add_argument("--part", choices=PARTS, help=argparse.SUPPRESS)
    parser.add_argument("--folder", default="", help=argparse.SUPPRESS)


if __name__ == "__main__":
    if "--part" in sys.argv:
        own = argparse.ArgumentParser()
        add_arguments(own)
        chosen = own.parse_args()
        for figure in PARTS[chosen.part](chosen):
            print(json.dumps(figure), flush=True)
    else:
        main("ledger", bench, add_arguments)
