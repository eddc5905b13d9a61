import io
import json
from dataclasses import replace

import polars as pl
import pytest
from hypothesis import given
from hypothesis import strategies as st

from ledger.ledgers import Made, Sealed, ledgers, segmented, windows
from unidle.errors import StoreDamaged, UnidleError
from unidle.ledger import segments as segments_module
from unidle.ledger.columns import LEAVES, clip, from_entries, in_order, rows
from unidle.ledger.current import check_batches, current
from unidle.ledger.query import summary
from unidle.ledger.rows import Entry
from unidle.ledger.segments import seal, unseal
from unidle.ledger.select import TimeRange
from unidle.ledger.sources import LiveRows, SegmentedRows, span
from unidle.ledger.tables import JobInfo, SliceInfo


@given(ledgers())
def test_a_sealed_ledger_is_read_back_row_by_row(made):
    columns = current(made.columns())
    read = unseal(seal(columns))
    assert list(rows(read)) == list(rows(columns))
    assert read.slices.infos() == columns.slices.infos() and read.jobs == columns.jobs


@given(ledgers(), st.booleans(), st.data())
def test_segments_and_live_rows_are_one_ledger(made, through_rows, data):
    cuts = [data.draw(windows(made))[0] for _ in range(2)]
    source = segmented(made, cuts, through_rows=through_rows)
    assert check_batches(source.batches(source.extent())) == []


def three_hours() -> SegmentedRows:
    class Counted(SegmentedRows):
        read: list[int]

    slices = [SliceInfo("n/0", "n/0", "n", 1_000_000, 0, 30)]
    made = Made([Entry((0,), t, t + 10, "useful", "a", 1, t) for t in (0, 10, 20)], slices, [])
    columns = current(made.columns())
    bodies = [seal(clip(columns, 10 * k, 10 * k + 10)) for k in range(3)]
    read: list[int] = []

    def body(k: int) -> bytes:
        read.append(k)
        return bodies[k]

    source = Counted([Sealed(k, 10 * k, 10 * k + 10) for k in range(3)], body)
    source.read = read
    return source


def test_segments_outside_the_window_are_not_read():
    source = three_hours()
    assert summary(source, TimeRange(10, 20)).capacity_ns == 10
    assert source.read == [1]
    assert summary(source).capacity_ns == 30


def test_sums_do_not_read_what_they_do_not_need():
    (batch,) = three_hours().batches(TimeRange(0, 10), detail=False)
    assert batch["step"].tolist() == [-1] and batch["step"].strides == (0,)


def test_a_segment_explains_itself_to_another_reader():
    slices = [SliceInfo("n/0", "n/0", "n", 1_000_000, 5, 15, "H100")]
    body = seal(from_entries([Entry((0,), 5, 15, "useful", "a", 1, 3)], slices))
    frame = pl.read_parquet(io.BytesIO(body))
    tables = json.loads(pl.read_parquet_metadata(io.BytesIO(body))["unidle.names"])
    row = frame.to_dicts()[0]
    assert (row["start_ns"], row["end_ns"], row["step"]) == (5, 15, 3)
    assert tables["leaves"][row["leaf"]] == "useful" and tables["jobs"][row["job"]][0] == "a"
    assert [column[row["slice"]] for column in tables["slices"]] == ["n/0", "n/0", "n", "H100"]


def test_a_segment_of_an_older_version_has_no_failures():
    slices = [SliceInfo("n/0", "n/0", "n", 1_000_000, 5, 15, "H100")]
    job = JobInfo("a", "first", "night", "ann", 2.5, ("code",))
    body = seal(from_entries([Entry((0,), 5, 15, "useful", "a", 1, 3)], slices, [job]))
    assert unseal(body).jobs[1] == job
    metadata = pl.read_parquet_metadata(io.BytesIO(body))
    tables = json.loads(metadata["unidle.names"])
    tables["jobs"] = [fields[:5] for fields in tables["jobs"]]
    out = io.BytesIO()
    names = {"unidle.names": json.dumps(tables), "unidle.sightings": metadata["unidle.sightings"]}
    pl.read_parquet(io.BytesIO(body)).write_parquet(out, metadata=names)
    assert unseal(out.getvalue()).jobs[1] == replace(job, failures=())


def test_a_segment_of_a_taxonomy_in_another_order_is_read_by_name(monkeypatch):
    columns = from_entries([Entry((0,), 0, 9, "useful")], [SliceInfo("n", "n", "n", 1_000_000, 0, 9)])
    turned = columns.with_data({"leaf": len(LEAVES) - 1 - columns["leaf"]})
    monkeypatch.setattr(segments_module, "LEAVES", LEAVES[::-1])
    body = seal(turned)
    assert [r.leaf for r in rows(unseal(body))] == ["useful"]


def test_postings_that_are_not_netted_cannot_be_sealed():
    slices = [SliceInfo("n", "n", "n", 1_000_000, 0, 9)]
    entry = Entry((0,), 0, 9, "useful")
    undo = entry._replace(sign=-1, revision=1)
    with pytest.raises(UnidleError, match="sign"):
        seal(from_entries([entry, undo, entry._replace(leaf="hang", revision=1)], slices))


@pytest.mark.parametrize("damage", ["cut", "noise", "empty", "another file"])
def test_bytes_that_are_no_segment_are_one_clear_error(damage):
    body = seal(from_entries([Entry((0,), 0, 9, "useful")], [SliceInfo("n", "n", "n", 1_000_000, 0, 9)]))
    if damage == "another file":
        out = io.BytesIO()
        pl.DataFrame({"a": [1]}).write_parquet(out)
        body = out.getvalue()
    else:
        body = {"cut": body[: len(body) // 2], "noise": b"PAR1" + bytes(64) + b"PAR1", "empty": b""}[damage]
    with pytest.raises(StoreDamaged, match="store compact"):
        unseal(body)


def test_live_postings_may_come_in_any_order():
    slices = [SliceInfo(f"n/{k}", f"n/{k}", "n", 1_000_000, 0, 20) for k in range(2)]
    late_first = from_entries([Entry((1, 0), 10, 20, "useful"), Entry((0, 1), 0, 10, "boot")], slices)
    (batch,) = LiveRows(late_first).batches(TimeRange(0, 20))
    assert list(rows(batch)) == list(rows(in_order(late_first)))
    assert span(late_first) == (0, 20)
