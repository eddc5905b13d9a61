"""Footnotes for rows whose boundaries a host's clock makes uncertain, and the same in exported traces."""

from __future__ import annotations

import io
import json

from unidle.ledger.clock_footnotes import clock_footnotes
from unidle.ledger.columns import from_entries
from unidle.ledger.perfetto import write_perfetto
from unidle.ledger.rows import Entry
from unidle.ledger.sources import LiveRows
from unidle.ledger.tables import JobInfo, SliceInfo

MS = 1_000_000
S = 1000 * MS


def source(*lengths_ms: int) -> LiveRows:
    """Rows of a job of these lengths on each of n0 and n1, and a second without a job after them."""
    entries, end = [], sum(lengths_ms) * MS + S
    for slice_ in (0, 1):
        at = 0
        for step, length_ms in enumerate(lengths_ms):
            entries.append(Entry((slice_,), at, at + length_ms * MS, "useful", "a", 1, step))
            at += length_ms * MS
        entries.append(Entry((slice_,), at, end, "no_demand", "", 0))
    slices = [SliceInfo(f"n{k}/0", f"n{k}/0", f"n{k}", 1_000_000, 0, end) for k in (0, 1)]
    return LiveRows(from_entries(entries, slices, [JobInfo("a")]))


def notes(rows: LiveRows, **errors_ms: float) -> list[str]:
    errors = {node: int(ms * MS) for node, ms in errors_ms.items()}
    return clock_footnotes(rows, rows.extent(), None, errors)


def test_rows_that_are_shorter_than_a_hundred_errors_are_counted() -> None:
    rows = source(50, 99, 100, 500)
    assert notes(rows, n1=1) == ["the clock of n1 is known within 1 ms: more than 1 % of 2 of 4 rows there"]
    assert notes(rows, n1=0.4) == []
    assert notes(rows) == []


def test_an_error_above_ten_milliseconds_concerns_every_row_and_the_least_known_clock_comes_first() -> None:
    rows = source(5000, 9000)
    assert notes(rows, n0=60, n1=70) == [
        "the clock of n1 is known within 70 ms, and so is each of 2 rows there",
        "the clock of n0 is known within 60 ms, and so is each of 2 rows there",
    ]
    where = {"node": ["n0"]}
    assert len(clock_footnotes(rows, rows.extent(), where, {"n0": 60 * MS, "n1": 70 * MS})) == 1


def test_a_trace_has_the_error_of_a_clock_as_a_label_of_its_node() -> None:
    out = io.BytesIO()
    rows = source(50)
    write_perfetto(rows, out, errors_ns={"n1": 12 * MS})
    trace = json.loads(out.getvalue())
    labels = [one for one in trace["traceEvents"] if one["name"] == "process_labels"]
    names = {one["pid"]: one["args"]["name"] for one in trace["traceEvents"] if one["name"] == "process_name"}
    assert [(names[one["pid"]], one["args"]["labels"]) for one in labels] == [
        ("n1", "clock known within 12 ms")
    ]
    assert trace["otherData"]["clock_error_ns"] == {"n1": 12 * MS}
