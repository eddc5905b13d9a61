"""Parquet files of the ledger: read back by the reader, by Polars, and from what Polars wrote for earlier versions."""

from __future__ import annotations

import io
import json
import random
from pathlib import Path

import numpy as np
import polars as pl
import pytest
from hypothesis import given
from hypothesis import strategies as st

from unidle.errors import StoreDamaged
from unidle.ledger.columns import DTYPES, LEAVES, from_entries
from unidle.ledger.parquet import pages
from unidle.ledger.parquet.reader import read
from unidle.ledger.parquet.writer import NumberColumn, ParquetWriter, TextColumn
from unidle.ledger.rows import Entry
from unidle.ledger.segments import seal, unseal
from unidle.ledger.tables import SliceInfo

OLD = Path(__file__).with_name("polars_segment.parquet")
"""A segment that unidle 0.1.0 sealed with Polars 1.30: two row groups, plain pages and dictionaries."""
STORED = tuple(name for name in DTYPES if name != "sign")


def numbers(dtype: type[np.integer]) -> st.SearchStrategy[list[int]]:
    limits = np.iinfo(dtype)
    few = st.sampled_from([int(limits.min), -1 if limits.min else 1, 0, 7, int(limits.max)])
    return st.lists(few | st.integers(int(limits.min), int(limits.max)), max_size=70)


def file_of(*groups: dict[str, NumberColumn | TextColumn], **metadata: str) -> bytes:
    out = io.BytesIO()
    writer = ParquetWriter(out, metadata)
    for group in groups:
        writer.group(group)
    writer.close()
    return out.getvalue()


@pytest.mark.parametrize("dtype", [np.uint8, np.uint16, np.int32, np.int64])
@given(data=st.data())
def test_numbers_are_read_back_exactly(dtype, data):
    parts = [np.array(data.draw(numbers(dtype)), dtype) for _ in range(data.draw(st.integers(1, 3)))]
    body = file_of(*({"a": NumberColumn(part), "b": NumberColumn(part)} for part in parts), key="value")
    found = read(body, ["a"])
    expected = np.concatenate(parts)
    assert found.columns["a"].astype(dtype).tolist() == expected.tolist()
    assert (found.rows, found.metadata) == (len(expected), {"key": "value"})
    frame = pl.read_parquet(io.BytesIO(body))
    assert frame["b"].to_list() == expected.tolist()
    assert frame["b"].dtype == pl.Series(expected).dtype


@given(st.lists(st.integers(-(2**63), 2**63 - 1) | st.none(), max_size=70), st.data())
def test_polars_reads_names_and_absent_values(values, data):
    names = data.draw(st.lists(st.text() | st.none(), min_size=1, max_size=20))
    codes = data.draw(st.lists(st.integers(0, len(names) - 1), min_size=len(values), max_size=len(values)))
    absent = np.array([value is None for value in values], bool)
    body = file_of(
        {
            "number": NumberColumn(np.array([value or 0 for value in values], np.int64), absent),
            "name": TextColumn(np.array(codes, np.int32), names),
        }
    )
    frame = pl.read_parquet(io.BytesIO(body))
    assert frame.schema == {"number": pl.Int64, "name": pl.String}
    assert frame["number"].to_list() == values
    assert frame["name"].to_list() == [names[code] for code in codes]


def test_row_groups_are_skipped_by_their_statistics_and_only_then():
    groups = [{"a": NumberColumn(np.arange(10 * k, 10 * k + 10, dtype=np.int64))} for k in range(-3, 3)]
    scan = pl.scan_parquet(io.BytesIO(file_of(*groups)))
    for least in (-31, -30, -11, 0, 9, 29, 30):
        found = scan.filter(pl.col("a") >= least).collect()["a"].to_list()
        assert found == list(range(max(least, -30), 30))


@given(st.integers(1, 20), st.lists(st.tuples(st.integers(0, 2**20 - 1), st.integers(1, 20)), max_size=40))
def test_runs_of_packed_and_of_repeated_numbers_may_alternate(bits, runs):
    body, expected = b"", []
    for value, length in runs:
        number = value % 2**bits
        if length % 2:
            body += pages.unsigned(length << 1) + number.to_bytes(-(-bits // 8), "little")
            expected += [number] * length
        else:
            packed = [(number + k) % 2**bits for k in range(8 * length)]
            body += pages.pack(np.array(packed), bits)
            expected += packed
    assert pages.unpack(body, bits, len(expected)).tolist() == expected


def test_a_segment_of_polars_is_read_as_polars_reads_it():
    body = OLD.read_bytes()
    frame = pl.read_parquet(io.BytesIO(body))
    columns = unseal(body)
    assert len(columns) == 1600
    then = json.loads(read(body, []).metadata["unidle.names"])["leaves"]
    for name in STORED:
        assert columns[name].dtype == DTYPES[name]
        stored = frame[name].to_list()
        if name == "leaf":  # there are more causes now: the same name has another code
            stored = [LEAVES.index(then[code]) for code in stored]
        assert columns[name].tolist() == stored
    assert [info.id for info in columns.slices.infos()] == [f"node-0000/{k}" for k in range(8)]
    again = unseal(seal(columns))
    assert all((again[name] == columns[name]).all() for name in STORED)
    assert again.slices.infos() == columns.slices.infos() and again.jobs == columns.jobs


def test_numbers_of_no_bits_are_all_zero():
    assert pages.unpack(b"", 0, 3).tolist() == [0, 0, 0]


def own_segment() -> bytes:
    entries = [Entry((0,), t, t + 1, "useful", "a", 1, t) for t in range(500)]
    return seal(from_entries(entries, [SliceInfo("n/0", "n/0", "n", 1_000_000, 0, 500)]))


@pytest.mark.parametrize("body", [own_segment(), OLD.read_bytes()], ids=["own", "polars"])
def test_damaged_bytes_are_read_or_are_one_clear_error(body):
    chance = random.Random(7)
    refused = 0
    for _ in range(600):
        damaged = bytearray(body)
        for _ in range(chance.randint(1, 4)):
            # mostly in the footer, where a wrong number leads astray
            back = min(len(body), 1 + int(chance.expovariate(1 / 400)))
            damaged[chance.choice([-back, chance.randrange(len(body))])] = chance.randrange(256)
        if chance.random() < 0.1:
            del damaged[chance.randrange(len(damaged)) :]
        try:
            unseal(bytes(damaged))
        except StoreDamaged:
            refused += 1
    assert refused > 400
