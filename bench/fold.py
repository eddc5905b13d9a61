"""Folding a log: a million events from SQLite, and the same view from a snapshot; its size per job.

The log is what the loop writes while it drives simulated gangs: about two thirds are marks of ranks (mostly
steps), the others submissions, placements, ends and retries. Events are read from the store's file, checked,
decoded and applied. The time of jobs that have ended is posted when the ledger is asked for it, or when
it is sealed next to a snapshot: that is a row of its own. The ledgers of both views are compared.

A change of one label or of one node's health on a large fleet is folded next to the same change as a whole fleet, which
is how a label was logged before; both with the next look at what is free. ``--events 0`` measures only these.
"""

from __future__ import annotations

import argparse
import itertools
import json
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

from _fleets import mixed
from _table import Row, main
from loop import NODES, Load, arrivals, fleet
from unidle.control.replay.simulate import simulate
from unidle.engine.sim.workload import seeded
from unidle.events import types as ev
from unidle.jobs import Reason
from unidle.place.policy import FirstFit
from unidle.store.memory import MemoryStore
from unidle.store.open import open_store
from unidle.store.protocol import NewEvent
from unidle.store.sql import SqlStore
from unidle.view.fold import FOLD_VERSION, apply, fold
from unidle.view.snapshot import load_view
from unidle.view.source import ledger_source, save_snapshot
from unidle.view.state import View

EVENTS = 1_000_000
EVENTS_PER_JOB = 15  # a little less than the loop writes
FOLD_S, SNAPSHOT_S = 10.0, 1.0
FLEET_NODES = 10_000
CHANGE_S, CHANGE_BYTES = 0.001, 1_000
LOAD = Load("", 0.4)
BATCH = 10_000


def write_log(path: Path, events: int) -> None:
    """The first ``events`` events of a simulation, into a SQLite store."""
    memory = MemoryStore()
    given = arrivals(LOAD, NODES, events // EVENTS_PER_JOB)
    work = seeded(1, mean_work_s=600, step_s=60, checkpoint_every=4, failures_per_rank_hour=0.2)
    simulate(memory, fleet(NODES), given, work, FirstFit())
    store = open_store(str(path), create=True)
    lease = store.acquire("bench")
    log = memory.read(limit=events)
    while batch := [NewEvent(*event[1:]) for event in itertools.islice(log, BATCH)]:
        store.append(lease, batch)
    store.release(lease)
    store.close()


def save(path: Path) -> None:
    """Keep a snapshot of the whole log, its final postings sealed as the loop does."""
    store = open_store(str(path), create=False)
    view = fold(View(), store.read())
    lease = store.acquire("bench")
    save_snapshot(store, lease, view)
    store.release(lease)
    store.close()


def timed(path: Path, load: Callable[[SqlStore], View]) -> dict[str, float]:
    """What loading a view took, in this process, and what it is."""
    store = open_store(str(path), create=False, read_only=True)
    before = _resident_bytes()
    begin = time.perf_counter()
    view = load(store)
    took_s = time.perf_counter() - begin
    grown = _resident_bytes() - before
    begin = time.perf_counter()
    source = ledger_source(store, view)
    digest, ledger_rows = 0, 0
    for batch in source.batches(source.extent()):
        weights = (batch["end_ns"] - batch["start_ns"]) * (1 + batch["leaf"].astype("int64"))
        digest += int(weights.sum() & 0xFFFFFFFFFFFF)
        ledger_rows += len(batch)
    ledger_s = time.perf_counter() - begin
    snapshot = store.load_snapshot(FOLD_VERSION)
    store.close()
    return {
        "took_s": took_s, "grown_bytes": grown, "events": view.seq, "jobs": len(view.jobs),
        "ledger_s": ledger_s, "rows": ledger_rows, "digest": digest & 0xFFFFFFFFFFFF,
        "snapshot_bytes": len(snapshot.body) if snapshot else 0,
    }  # fmt: skip


def _resident_bytes() -> int:
    return int(Path("/proc/self/statm").read_text().split()[1]) * 4096


LOADS: dict[str, Callable[[SqlStore], View]] = {
    "fold": lambda store: fold(View(), store.read()),
    "snapshot": load_view,
}


def _apart(how: str, path: Path) -> dict[str, Any]:
    """As :func:`timed`, in a process of its own: nothing is warm, and its memory is its own."""
    done = subprocess.run([sys.executable, __file__, "--load", how, path], capture_output=True, check=True)
    found: dict[str, Any] = json.loads(done.stdout)
    return found


def changes(nodes: int, runs: int) -> Iterator[Row]:
    """One label of a node: time of the fold and bytes in the log, next to the whole fleet; then one node's health."""
    whole = mixed(nodes)
    view = View()
    apply(view, ev.FleetSeen(whole), 1, 1)
    _ = view.occupancy
    at = nodes // 2
    name = whole.nodes[at].id

    def label(k: int) -> ev.Event:
        return ev.FleetChanged(edits=(ev.NodeEdit(name, {"zone": f"z{k}"}),))

    def seen(k: int) -> ev.Event:
        node = replace(whole.nodes[at], labels={**whole.nodes[at].labels, "zone": f"z{k}"})
        return ev.FleetSeen(replace(whole, nodes=(*whole.nodes[:at], node, *whole.nodes[at + 1 :])))

    def health(k: int) -> ev.Event:
        return ev.HealthSet(name, "healthy" if k % 2 else "fault", Reason("test", "changed"))

    few, many = _folded(view, label, 20 * runs), _folded(view, seen, runs)
    about = f"{20 * runs} labels one by one; the peer {runs} whole fleets"
    for what, unit, k, goal in (("fold", "s", 0, CHANGE_S), ("log", "bytes", 1, float(CHANGE_BYTES))):
        ours, peer = few[k], many[k]
        yield Row(
            f"{what} of one changed label of {nodes:,} nodes", unit, ours, peer, "whole fleet", peer / ours,
            f"at most {goal:g} {unit} ({goal / ours:.3g}x)", ours <= goal, f"measured here, median of {about}",
        )  # fmt: skip
    took_s = _folded(view, health, 20 * runs)[0]
    how = f"measured here, median of {20 * runs} changes"
    yield Row(f"fold of one node's health of {nodes:,} nodes", "s", took_s, how=how)


def _folded(view: View, made: Callable[[int], ev.Event], count: int) -> tuple[float, float]:
    """Medians: seconds to fold an event as it is in the log and look at what is free, and its bytes."""
    times, sizes = [], []
    for k in range(count):
        kind, body = ev.encode(made(k))
        event = ev.decode(kind, body)
        begin = time.perf_counter()
        apply(view, event, view.seq + 1, view.time_ns + 1)
        _ = view.occupancy
        times.append(time.perf_counter() - begin)
        sizes.append(len(body))
    return sorted(times)[count // 2], float(sorted(sizes)[count // 2])


def rows(arguments: argparse.Namespace) -> Iterator[Row]:
    yield from changes(arguments.nodes, arguments.runs)
    if not arguments.events:
        return
    with tempfile.TemporaryDirectory() as place:
        path = Path(place) / "store"
        write_log(path, arguments.events)
        folded = [_apart("fold", path) for _ in range(arguments.runs)]
        save(path)
        loaded = [_apart("snapshot", path) for _ in range(arguments.runs)]
    if {run["digest"] for run in folded} != {run["digest"] for run in loaded}:
        raise SystemExit("the snapshot's ledger is not the log's")
    events, jobs = folded[0]["events"], folded[0]["jobs"]
    yield _row(f"fold of {events:,} events from SQLite", folded, FOLD_S * events / EVENTS, f"{jobs:,} jobs")
    size = f"{loaded[0]['snapshot_bytes'] / 1e6:.1f} MB"
    yield _row(f"view after {events:,} events from a snapshot", loaded, SNAPSHOT_S, size)
    for what, runs in (("bare log", folded), ("sealed", loaded)):
        took_s = sorted(run["ledger_s"] for run in runs)[len(runs) // 2]
        how = f"measured here, median of {len(runs)} runs, {runs[0]['rows']:,} rows: posted, netted and in order"
        yield Row(f"ledger of that view ({what})", "s", took_s, how=how)
    for what, runs in (("fold", folded), ("snapshot", loaded)):
        grown = sorted(run["grown_bytes"] for run in runs)[len(runs) // 2]
        how = f"measured here, growth of the resident memory over {len(runs)} runs"
        yield Row(f"memory of the view per job ({what})", "bytes", grown / jobs, how=how)


def _row(what: str, runs: list[dict[str, Any]], goal_s: float, about: str) -> Row:
    times = sorted(run["took_s"] for run in runs)
    took_s = times[len(times) // 2]
    return Row(
        what, "s", took_s, goal=f"at most {goal_s:g} s ({goal_s / took_s:.2f}x)", holds=took_s <= goal_s,
        how=f"measured here, median of {len(times)} runs ({times[0]:.2f} to {times[-1]:.2f}), {about}",
    )  # fmt: skip


def add_arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("--events", type=int, default=EVENTS)
    parser.add_argument("--runs", type=int, default=3)
    parser.add_argument("--nodes", type=int, default=FLEET_NODES, help="of the fleet in which one changes")


if __name__ == "__main__":
    if sys.argv[1:2] == ["--load"]:
        print(json.dumps(timed(Path(sys.argv[3]), LOADS[sys.argv[2]])))
    else:
        main("fold", rows, add_arguments)
