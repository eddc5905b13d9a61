"""A ledger as a trace: one process per node, one track per slice, one event per row.

The Chrome trace event format in its JSON form, as https://ui.perfetto.dev reads it. Times are
microseconds with three decimals since the window's start (readers hold them as float64, which has
no room for nanoseconds since 1970); ``otherData.start_ns`` is that start.
"""

from __future__ import annotations

import json
from collections.abc import Collection, Iterator, Mapping
from typing import Any, BinaryIO, Final

from unidle.ledger.columns import rows as named
from unidle.ledger.export import standing_rows
from unidle.ledger.select import TimeRange
from unidle.ledger.sources import LedgerSource
from unidle.ledger.tables import SliceInfo
from unidle.ledger.taxonomy import GROUP_OF, TAXONOMY_VERSION
from unidle.words import length

# Reserved colour names of the format, as near to the groups' colours as it has them.
COLOURS: Final[dict[str, str]] = {
    "step": "rail_load",
    "fill": "thread_state_running",
    "serve": "rail_response",
    "held": "rail_idle",
    "lost": "terrible",
    "down": "detailed_memory_dump",
    "free": "grey",
    "unseen": "white",
}


def write_perfetto(
    source: LedgerSource,
    out: BinaryIO,
    window: TimeRange | None = None,
    where: Mapping[str, Collection[str | int]] | None = None,
    errors_ns: Mapping[str, int] | None = None,
) -> None:
    """One JSON object with ``traceEvents``, written event by event.

    ``errors_ns``: by how much times of a node may be wrong, as its own clock is known no better. It is a label of the
    node's process, and in ``otherData.clock_error_ns``.
    """
    window, errors = window or source.extent(), errors_ns or {}
    other: dict[str, Any] = {
        "start_ns": window.start_ns, "end_ns": window.end_ns, "taxonomy_version": TAXONOMY_VERSION
    }  # fmt: skip
    if errors:
        other["clock_error_ns"] = dict(errors)
    out.write(b'{"displayTimeUnit":"ns","otherData":' + json.dumps(other).encode() + b',"traceEvents":[')
    separator = b"\n"
    for lines in _events(source, window, where, errors):
        if lines:
            out.write(separator + ",\n".join(lines).encode())
            separator = b",\n"
    out.write(b"\n]}\n")


def _events(
    source: LedgerSource,
    window: TimeRange,
    where: Mapping[str, Collection[str | int]] | None,
    errors_ns: Mapping[str, int],
) -> Iterator[list[str]]:
    tracks = _Tracks(errors_ns)
    heads = {leaf: _head(leaf) for leaf in GROUP_OF}
    for part in standing_rows(source, window, where):
        there = set(part["slice"].tolist())
        yield tracks.introduce(s for k, s in enumerate(part.slices.infos()) if k in there)
        lines = []
        jobs: dict[str | None, str] = {}
        for row in named(part):
            if row.job not in jobs:
                jobs[row.job] = json.dumps(row.job)
            lines.append(
                f'{heads[row.leaf]}{tracks.at[row.slice]},"ts":{microseconds(row.start_ns - window.start_ns)}'
                f',"dur":{microseconds(row.end_ns - row.start_ns)},"args":{{"job":{jobs[row.job]}'
                f',"attempt":{_number(row.attempt)},"step":{_number(row.step)},"how":"{row.how}"'
                f',"share_ppm":{row.share_ppm}}}}}'
            )
        yield lines


class _Tracks:
    """Numbers nodes as processes and slices as threads, in the order in which they turn up."""

    def __init__(self, errors_ns: Mapping[str, int]) -> None:
        self._errors_ns = errors_ns
        self.at: dict[str, str] = {}
        self._processes: dict[str, int] = {}

    def introduce(self, slices: Iterator[SliceInfo]) -> list[str]:
        """The metadata events of slices not met before."""
        told = []
        for s in slices:
            if s.id in self.at:
                continue
            pid = self._processes.get(s.node)
            if pid is None:
                pid = self._processes[s.node] = len(self._processes) + 1
                told.append(metadata("process_name", pid, 0, {"name": s.node}))
                if s.node in self._errors_ns:
                    label = f"clock known within {length(self._errors_ns[s.node])}"
                    told.append(metadata("process_labels", pid, 0, {"labels": label}))
            tid = len(self.at) + 1
            self.at[s.id] = f'"pid":{pid},"tid":{tid}'
            told.append(metadata("thread_name", pid, tid, {"name": s.id}))
            told.append(metadata("thread_sort_index", pid, tid, {"sort_index": tid}))
        return told


def metadata(name: str, pid: int, tid: int, args: dict[str, Any]) -> str:
    """An event that names a process or a thread."""
    return json.dumps({"ph": "M", "name": name, "pid": pid, "tid": tid, "ts": 0, "args": args})


def _head(leaf: str) -> str:
    group = GROUP_OF[leaf]
    return f'{{"ph":"X","name":"{leaf}","cat":"{group}","cname":"{COLOURS[group]}",'


def microseconds(ns: int) -> str:
    """The format's unit of time, to the nanosecond."""
    return f"{ns // 1000}.{ns % 1000:03d}"


def _number(value: int | None) -> str:
    return "null" if value is None else str(value)
