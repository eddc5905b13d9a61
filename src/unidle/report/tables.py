"""The report's tables as shown text with sort keys; the page's script and the static rows share them."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Final

from unidle.ledger.taxonomy import GROUP_OF
from unidle.page.frame import visible
from unidle.report.bars import PackedBars
from unidle.report.model import AttemptLine, EventLine, JobLine, ReportData
from unidle.report.palette import group_order
from unidle.report.text import clock_time, device_time, number
from unidle.words import counted, duration

MAX_ROWS: Final = 20_000
PROSE: Final = frozenset({"reason", "cause", "exit codes", "devices", "what"})  # columns that may wrap
NAME_LIMIT: Final = 200
TEXT_LIMIT: Final = 500

# Shown text, or shown text and what it sorts by.
Cell = str | tuple[str, float]


@dataclass(frozen=True, slots=True)
class TableRow:
    """One row. Filters use ``job`` and ``attempt``; ``device`` is a track's label."""

    cells: tuple[Cell, ...]
    job: str = ""
    attempt: int | None = None
    device: str = ""


@dataclass(frozen=True, slots=True)
class Table:
    """``numeric`` are the indexes of right-aligned columns; ``left_out`` rows did not fit."""

    id: str
    title: str
    columns: tuple[str, ...]
    numeric: frozenset[int]
    rows: tuple[TableRow, ...]
    empty: str
    command: tuple[str, ...]
    left_out: int = 0


def tables(data: ReportData, packed: PackedBars) -> tuple[Table, ...]:
    return _jobs(data), _attempts(data), _events(data), _devices(data, packed)


def _jobs(data: ReportData) -> Table:
    names = ["job", "name", "state", "user", "queue", "ranks", "attempts", "steps"]
    columns = (*names, "lost steps", "submitted (UTC)", "waited", "ran", "reason")
    lines = sorted(data.jobs, key=lambda line: (line.submitted_ns, line.job))
    return _table(
        "jobs",
        "Jobs",
        columns,
        (*range(5, 9), 10, 11),
        [_job_row(line, data.window_end_ns) for line in lines],
        "No job in this window yet. Start one:",
        ("unidle", "run", "--ranks", "4", "--store", data.store, "--", "python", "train.py"),
    )


def _job_row(line: JobLine, window_end_ns: int) -> TableRow:
    ended_ns = window_end_ns if line.ended_ns is None else line.ended_ns
    started_ns = ended_ns if line.started_ns is None else line.started_ns
    cells = (
        *(_name(text) for text in (line.job, line.name, line.state, line.user, line.queue)),
        *(_count(n) for n in (line.ranks, line.attempts, line.steps, line.lost_steps)),
        _time(line.submitted_ns),
        _lasted(line.submitted_ns, started_ns),
        _lasted(started_ns, ended_ns),
        visible(line.reason, TEXT_LIMIT),
    )
    return TableRow(cells, line.job)


def _attempts(data: ReportData) -> Table:
    names = ("job", "attempt", "placed (UTC)", "lasted", "outcome", "cause", "exit codes")
    columns = (*names, "first step", "last step", "durable step", "devices")
    lines = sorted(data.attempts, key=lambda line: (line.placed_ns, line.job, line.attempt))
    return _table(
        "attempts",
        "Attempts",
        columns,
        (1, 3, 7, 8, 9),
        [_attempt_row(line, data.window_end_ns) for line in lines],
        "No attempt in this window. See why jobs wait:",
        ("unidle", "list", "--store", data.store),
    )


def _attempt_row(line: AttemptLine, window_end_ns: int) -> TableRow:
    ended_ns = window_end_ns if line.ended_ns is None else line.ended_ns
    cells = (
        _name(line.job),
        _count(line.attempt),
        _time(line.placed_ns),
        _lasted(line.placed_ns, ended_ns),
        _name(line.outcome),
        visible(line.cause, TEXT_LIMIT),
        _exit_codes(line.exit_codes),
        *(_count(n) for n in (line.first_step, line.last_step, line.durable_step)),
        _some([_name(device) for device in line.devices]),
    )
    return TableRow(cells, line.job, line.attempt)


def _events(data: ReportData) -> Table:
    lines = sorted(data.events, key=lambda line: line.time_ns)
    return _table(
        "events",
        "Events",
        ("time (UTC)", "kind", "job", "attempt", "rank", "what"),
        (3, 4),
        [_event_row(line) for line in lines],
        "No event in this window. See what the store holds:",
        ("unidle", "list", "--store", data.store),
        keep_last=True,
    )


def _event_row(line: EventLine) -> TableRow:
    cells = (
        _time(line.time_ns),
        _name(line.kind),
        _name(line.job),
        _count(line.attempt),
        _count(line.rank),
        visible(line.text, TEXT_LIMIT),
    )
    return TableRow(cells, line.job, line.attempt)


def _devices(data: ReportData, packed: PackedBars) -> Table:
    by_track = [_group_sums(sums) for sums in packed.leaf_ns]
    groups = [group for group in group_order() if any(group in sums for sums in by_track)]
    rows = []
    for track, sums in zip(data.devices, by_track, strict=True):
        names = tuple(_name(text) for text in (track.label, track.node, track.model))
        times = tuple((device_time(sums.get(g, 0), data.time_unit), sums.get(g, 0)) for g in groups)
        rows.append(TableRow((*names, *times), device=track.label))
    return _table(
        "devices",
        "Devices",
        ("device", "node", "model", *groups),
        range(3, 3 + len(groups)),
        rows,
        "No device in this window. See what this machine has:",
        ("unidle", "fleet", "--store", data.store),
    )


def _group_sums(leaf_ns: dict[str, int]) -> dict[str, int]:
    sums: Counter[str] = Counter()
    for leaf, ns in leaf_ns.items():
        sums[GROUP_OF.get(leaf, "unseen")] += ns
    return dict(sums)


def _table(
    table_id: str,
    title: str,
    columns: tuple[str, ...],
    numeric: Sequence[int],
    rows: Sequence[TableRow],
    empty: str,
    command: tuple[str, ...],
    *,
    keep_last: bool = False,
) -> Table:
    kept = rows[-MAX_ROWS:] if keep_last else rows[:MAX_ROWS]
    left_out = len(rows) - len(kept)
    return Table(table_id, title, columns, frozenset(numeric), tuple(kept), empty, command, left_out)


def _name(text: str) -> str:
    return visible(text, NAME_LIMIT)


def _count(value: int | None) -> Cell:
    return ("", -1) if value is None else (number(value), value)


def _time(ns: int | None) -> Cell:
    return (clock_time(ns), -1 if ns is None else ns)


def _lasted(start_ns: int, end_ns: int) -> Cell:
    return (duration(max(end_ns - start_ns, 0)), end_ns - start_ns)


def _exit_codes(codes: tuple[int | None, ...]) -> str:
    """Each rank's code for a small gang, else how often each code came."""
    if len(codes) <= 8:
        return " ".join("?" if code is None else str(code) for code in codes)
    counts = Counter("?" if code is None else str(code) for code in codes)
    return _some([f"{code} ({counted(count, 'rank')})" for code, count in counts.most_common()])


def _some(names: Sequence[str], shown: int = 8) -> str:
    more = f" and {number(len(names) - shown)} more" if len(names) > shown else ""
    return ", ".join(names[:shown]) + more
