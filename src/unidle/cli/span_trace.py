"""Rows of a span timeline as a trace that https://ui.perfetto.dev reads: Chrome's JSON form."""

from __future__ import annotations

import json
from collections.abc import Iterable, Iterator
from typing import Any, BinaryIO, Final

from unidle.span.timeline import Row

_COLOURS: Final = {
    "F": "rail_response", "B": "rail_idle", "W": "rail_load", "R": "grey", "send": "rail_animation", "scatter": "generic_work",
    "gather": "generic_work", "allreduce": "terrible",
}  # fmt: skip


def write_trace(stream: BinaryIO, timelines: Iterable[tuple[str, Iterable[Row]]]) -> None:
    """Timelines with their names: a process for each site of each, a track for each device and wire.

    Times are microseconds from the timeline's start, with three decimals.
    """
    stream.write(b'{"displayTimeUnit":"ns","traceEvents":[')
    separator = b"\n"
    pids: dict[str, int] = {}
    for name, rows in timelines:
        for event in _events(name, rows, pids):
            stream.write(separator + json.dumps(event).encode())
            separator = b",\n"
    stream.write(b"\n]}\n")


def _events(name: str, rows: Iterable[Row], pids: dict[str, int]) -> Iterator[dict[str, Any]]:
    tracks: dict[str, tuple[int, int]] = {}
    for row in rows:
        place = row.device_or_link
        if place not in tracks:
            process = f"{name}: {place.split('/')[0]}"
            if process not in pids:
                pids[process] = len(pids) + 1
                yield _named("process_name", pids[process], 0, process)
            tracks[place] = (pids[process], len(tracks) + 1)
            yield _named("thread_name", *tracks[place], place)
        pid, tid = tracks[place]
        yield {
            "ph": "X", "name": f"{row.op}{row.microbatch}" if row.microbatch >= 0 else row.op, "cat": row.op,
            "cname": _COLOURS[row.op], "pid": pid, "tid": tid, "ts": round(row.start_ns / 1e3, 3),
            "dur": round((row.end_ns - row.start_ns) / 1e3, 3),
            "args": {"microbatch": row.microbatch, "stage": row.stage, "chunk": row.chunk, "bytes": row.size_bytes, "of": row.of},
        }  # fmt: skip


def _named(what: str, pid: int, tid: int, name: str) -> dict[str, Any]:
    return {"ph": "M", "name": what, "pid": pid, "tid": tid, "ts": 0, "args": {"name": name}}
