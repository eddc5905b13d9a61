import csv
import io
import itertools
import json
import subprocess
import sys

import jsonschema
import polars as pl
import pytest
from hypothesis import given
from hypothesis import strategies as st

from ledger.ledgers import Made, ledgers, segmented, windows
from unidle.ledger import export
from unidle.ledger.columns import clip, coalesce, empty, from_entries, rows
from unidle.ledger.current import current
from unidle.ledger.export import FIELDS, standing_rows, write_csv, write_jsonl, write_parquet
from unidle.ledger.perfetto import COLOURS, write_perfetto
from unidle.ledger.rows import Entry, LedgerRow
from unidle.ledger.select import TimeRange
from unidle.ledger.sources import LiveRows
from unidle.ledger.tables import JobInfo, SliceInfo
from unidle.ledger.taxonomy import GROUP_OF, GROUPS

# The parts of the trace event format that are used: complete events ("X") and metadata ("M").
TRACE_SCHEMA = {
    "type": "object",
    "required": ["traceEvents"],
    "properties": {
        "displayTimeUnit": {"enum": ["ms", "ns"]},
        "otherData": {"type": "object"},
        "traceEvents": {
            "type": "array",
            "items": {
                "type": "object",
                "required": ["ph", "name", "pid", "tid", "ts", "args"],
                "properties": {
                    "ph": {"enum": ["X", "M"]},
                    "pid": {"type": "integer", "minimum": 1},
                    "tid": {"type": "integer", "minimum": 0},
                    "ts": {"type": "number", "minimum": 0},
                    "name": {"type": "string"},
                    "args": {"type": "object"},
                },
                "if": {"properties": {"ph": {"const": "X"}}},
                "then": {
                    "required": ["dur", "cat", "cname"],
                    "properties": {
                        "dur": {"type": "number", "minimum": 0},
                        "cat": {"enum": list(GROUPS)},
                        "name": {"enum": list(GROUP_OF)},
                        "cname": {"enum": list(COLOURS.values())},
                    },
                },
                "else": {
                    "properties": {"name": {"enum": ["process_name", "thread_name", "thread_sort_index"]}}
                },
            },
        },
    },
}


def written(write, source, window=None, where=None) -> bytes:
    out = io.BytesIO()
    write(source, out, window, where)
    return out.getvalue()


def from_jsonl(text: bytes) -> list[LedgerRow]:
    found = [json.loads(line) for line in text.splitlines()]
    assert all(tuple(row) == FIELDS for row in found)
    return [LedgerRow(**row) for row in found]


def from_csv(text: bytes) -> list[LedgerRow]:
    numbers = {"start_ns", "end_ns", "attempt", "step", "share_ppm", "revision"}
    lines = csv.DictReader(io.StringIO(text.decode(), newline=""))
    assert tuple(lines.fieldnames or ()) == FIELDS
    return [
        LedgerRow(**{k: int(v) if k in numbers and v else (v or None) for k, v in line.items()})
        for line in lines
    ]


def from_parquet(body: bytes) -> list[LedgerRow]:
    return [LedgerRow(**row) for row in pl.read_parquet(io.BytesIO(body)).to_dicts()]


READERS = [(write_jsonl, from_jsonl), (write_csv, from_csv), (write_parquet, from_parquet)]


@pytest.mark.parametrize(("write", "read"), READERS)
@given(made=ledgers(), through_rows=st.booleans(), data=st.data())
def test_a_format_read_back_is_the_rows_that_stand_wherever_segments_were_cut(
    write, read, made, through_rows, data
):
    window = TimeRange(*data.draw(windows(made)))
    cuts = [data.draw(windows(made))[0] for _ in range(data.draw(st.integers(0, 2)))]
    source = segmented(made, cuts, through_rows=through_rows)
    expected = list(rows(clip(coalesce(current(made.columns())), *window)))
    found = read(written(write, source, window))
    assert sorted(found, key=lambda r: (r.slice, r.start_ns)) == sorted(
        expected, key=lambda r: (r.slice, r.start_ns)
    )
    for name in {r.slice for r in found}:
        times = [(r.start_ns, r.end_ns) for r in found if r.slice == name]
        assert all(a[1] == b[0] for a, b in itertools.pairwise(times))


@given(ledgers())
def test_a_trace_has_a_process_per_node_a_track_per_slice_and_an_event_per_row(made):
    trace = json.loads(written(write_perfetto, made.live()))
    jsonschema.validate(trace, TRACE_SCHEMA)
    start = trace["otherData"]["start_ns"]
    names = {k: {} for k in ("process_name", "thread_name")}
    for e in trace["traceEvents"]:
        if e["ph"] == "M" and e["name"] in names:
            names[e["name"]][e["pid"], e["tid"]] = e["args"]["name"]
    found = []
    for e in trace["traceEvents"]:
        if e["ph"] == "X":
            track = names["thread_name"][e["pid"], e["tid"]]
            found.append((names["process_name"][e["pid"], 0], track, e["name"], e["cat"], e["args"]["step"]))
    node = {s.id: s.node for s in made.slices}
    expected = list(rows(coalesce(current(made.columns()))))
    assert found == [(node[r.slice], r.slice, r.leaf, GROUP_OF[r.leaf], r.step) for r in expected]
    assert start == made.live().extent().start_ns
    assert len(set(names["thread_name"].values())) == len(names["thread_name"])


def test_a_trace_keeps_nanoseconds_of_a_time_since_1970():
    start = 1_700_000_000_123_456_789
    slices = [SliceInfo("n/0", "n/0", "n", 1_000_000, start, start + 3_000_001)]
    entries = [
        Entry((0,), start, start + 1001, "start", "a", 1),
        Entry((0,), start + 1001, start + 3_000_001, "useful", "a", 1, 0),
    ]
    text = written(write_perfetto, LiveRows(from_entries(entries, slices))).decode()
    assert '"ts":0.000,"dur":1.001' in text and '"ts":1.001,"dur":2999.000' in text


def test_every_group_has_a_colour_of_its_own():
    assert set(COLOURS) == set(GROUPS) and len(set(COLOURS.values())) == len(GROUPS)


@pytest.mark.parametrize(("write", "read"), READERS)
def test_an_empty_ledger_is_an_empty_file_of_the_format(write, read):
    assert read(written(write, LiveRows(empty()))) == []


def test_an_empty_trace_is_a_trace():
    assert json.loads(written(write_perfetto, LiveRows(empty())))["traceEvents"] == []


AWKWARD = 'quote " comma , newline \n \r slash \\ tab \t </script> \u202e \U0001f525 é \x01'


@pytest.mark.parametrize(("write", "read"), READERS)
def test_awkward_names_survive(write, read):
    slices = [SliceInfo(AWKWARD, AWKWARD, "n", 1_000_000, 0, 9)]
    source = LiveRows(from_entries([Entry((0,), 0, 9, "useful", AWKWARD, 1)], slices, [JobInfo(AWKWARD)]))
    (row,) = read(written(write, source))
    assert (row.device, row.job) == (AWKWARD, AWKWARD)


def test_awkward_names_survive_in_a_trace():
    slices = [SliceInfo(AWKWARD, AWKWARD, AWKWARD, 1_000_000, 0, 9)]
    source = LiveRows(from_entries([Entry((0,), 0, 9, "useful", AWKWARD, 1)], slices))
    events = json.loads(written(write_perfetto, source))["traceEvents"]
    assert events[0]["args"]["name"] == events[1]["args"]["name"] == events[-1]["args"]["job"] == AWKWARD


@given(ledgers())
def test_a_filter_applies_to_rows(made):
    where = {"leaf": ["useful", "no_demand"], "how": ["measured"]}
    found = from_jsonl(written(write_jsonl, made.live(), where=where))
    everything = from_jsonl(written(write_jsonl, made.live()))
    assert found == [r for r in everything if r.leaf in where["leaf"] and r.how == "measured"]


def test_long_ledgers_leave_in_parts(monkeypatch):
    monkeypatch.setattr(export, "ROWS_AT_ONCE", 1000)
    entries = [Entry((0,), t, t + 1, "useful", "a", 1, t) for t in range(5000)]
    source = LiveRows(from_entries(entries, [SliceInfo("n/0", "n/0", "n", 1_000_000, 0, 5000)]))
    assert [len(part) for part in standing_rows(source)] == [1000] * 5
    assert len(from_csv(written(write_csv, source))) == 5000


PIPED = """
import sys
from unidle.ledger.columns import from_entries
from unidle.ledger.rows import Entry
from unidle.ledger.sources import LiveRows
from unidle.ledger.tables import SliceInfo
from unidle.ledger import export, perfetto
export.ROWS_AT_ONCE = 1000
entries = [Entry((0,), t, t + 1, "useful", "a", 1, t) for t in range(5000)]
source = LiveRows(from_entries(entries, [SliceInfo("n/0", "n/0", "n", 1_000_000, 0, 5000)]))
write = getattr(perfetto if sys.argv[1] == "perfetto" else export, "write_" + sys.argv[1])
write(source, sys.stdout.buffer)
"""


@pytest.mark.parametrize(
    ("form", "read"),
    [("jsonl", from_jsonl), ("csv", from_csv), ("parquet", from_parquet), ("perfetto", None)],
)
def test_a_pipe_gets_the_same_bytes(form, read):
    done = subprocess.run([sys.executable, "-c", PIPED, form], capture_output=True, check=True)
    if read is None:
        assert len(json.loads(done.stdout)["traceEvents"]) == 5003
    else:
        assert [r.step for r in read(done.stdout)] == list(range(5000))


def test_a_csv_file_has_a_header_and_a_line_per_row(tmp_path):
    made = Made([Entry((0,), 0, 9, "useful")], [SliceInfo("n", "n", "n", 1_000_000, 0, 9)], [])
    path = tmp_path / "rows.csv"
    with path.open("wb") as out:
        write_csv(made.live(), out)
    assert path.read_text().splitlines() == [",".join(FIELDS), "n,n,0,9,useful,,,,1000000,measured,control,0"]
