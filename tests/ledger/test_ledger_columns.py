import numpy as np
from hypothesis import given
from hypothesis import strategies as st

from ledger.ledgers import JOBS, Made, ledgers, plain_rows, split_at, split_closed, windows
from unidle.ledger.columns import (
    DTYPES,
    clip,
    coalesce,
    concat,
    empty,
    from_entries,
    in_order,
    rows,
)
from unidle.ledger.current import check, current
from unidle.ledger.rows import Entry, LedgerRow
from unidle.ledger.sources import span
from unidle.ledger.tables import JobInfo, SliceInfo
from unidle.ledger.weights import exact_sum, row_ns


def one_slice(*entries: Entry, last_ns: int = 30) -> Made:
    return Made(list(entries), [SliceInfo("n/0", "n/0", "n", 1_000_000, 0, last_ns)], [])


def test_an_entry_becomes_one_row_per_slice_with_all_its_names():
    slices = [SliceInfo(f"d#{k}", "d", "n", 500_000, 0, 5) for k in range(2)]
    entry = Entry((0, 1), 0, 5, "useful", "j", 2, 7, "inferred", "output", 3)
    found = list(rows(from_entries([entry], slices, [JobInfo("j")])))
    assert found == [
        LedgerRow("d", f"d#{k}", 0, 5, "useful", "j", 2, 7, 500_000, "inferred", "output", 3)
        for k in range(2)
    ]


def test_what_there_is_not_is_none():
    (row,) = rows(one_slice(Entry((0,), 0, 30, "no_demand")).columns())
    assert (row.job, row.attempt, row.step) == (None, None, None)


def test_step_zero_is_a_step():
    (row,) = rows(one_slice(Entry((0,), 0, 30, "useful", "j", 1, 0)).columns())
    assert row.step == 0


def test_a_job_that_nobody_described_still_has_its_name():
    assert [r.job for r in rows(one_slice(Entry((0,), 0, 30, "useful", "x", 1)).columns())] == ["x"]


def test_a_row_takes_no_more_than_60_bytes():
    assert sum(np.dtype(dtype).itemsize for dtype in DTYPES.values()) <= 60


@given(ledgers())
def test_rows_are_the_postings_that_stand(made):
    columns = current(made.columns())
    found = [
        (s, r.start_ns, r.end_ns, r.leaf, r.job or "", r.revision)
        for s, r in zip(columns["slice"].tolist(), rows(columns), strict=True)
    ]
    assert found == [(k, e.start_ns, e.end_ns, e.leaf, e.job, e.revision) for k, e in plain_rows(made)]


@given(ledgers(), st.data())
def test_cutting_and_joining_rows_changes_nothing(made, data):
    columns = coalesce(current(made.columns()))
    (cut, _) = data.draw(windows(made))
    before, after = split_at(columns, cut)
    again = coalesce(in_order(concat([before, after])))
    assert list(rows(again)) == list(rows(columns))
    assert exact_sum(row_ns(before)) + exact_sum(row_ns(after)) == exact_sum(row_ns(columns))
    assert check(before) == check(after) == check(again) == []


@given(ledgers(), st.data())
def test_splitting_behind_whole_rows_leaves_two_ledgers_that_add_up(made, data):
    columns = current(made.columns())
    (cut, _) = data.draw(windows(made))
    sealed, rest = split_closed(columns, cut)
    assert check(sealed) == check(rest) == []
    assert (sealed["end_ns"] <= cut).all() and (rest["end_ns"] > cut).all()
    assert list(rows(in_order(concat([sealed, rest])))) == list(rows(columns))


@given(ledgers(), ledgers())
def test_tables_are_merged_by_name(one, other):
    both = concat([one.columns(), other.columns()])
    assert list(rows(both)) == list(rows(one.columns())) + list(rows(other.columns()))
    assert len({j.id for j in both.jobs}) == len(both.jobs) <= len(JOBS) + 1


def test_a_slice_seen_in_two_parts_was_seen_from_the_first_to_the_last():
    a = one_slice(Entry((0,), 0, 30, "boot")).columns()
    before, after = split_at(a, 10)
    assert concat([after, before]).slices.infos() == a.slices.infos()
    assert span(concat([before, after])) == (0, 30)


def test_neighbours_that_differ_in_anything_are_not_joined():
    base = Entry((0,), 0, 10, "useful", "j", 1, 1, "measured", "control", 0)
    for change in (
        {"leaf": "bubble"}, {"job": "k"}, {"attempt": 2}, {"step": 2}, {"how": "inferred"},
        {"observer": "helper"}, {"revision": 1}, {"start_ns": 11},
    ):  # fmt: skip
        after = base._replace(**{"start_ns": 10, "end_ns": 30, **change})
        assert len(coalesce(one_slice(base, after).columns())) == 2
    assert len(coalesce(one_slice(base, base._replace(start_ns=10, end_ns=30)).columns())) == 1


def test_an_empty_window_holds_nothing():
    columns = one_slice(Entry((0,), 0, 30, "boot")).columns()
    for at in (-1, 0, 7, 30, 31):
        assert len(clip(columns, at, at)) == 0 and check(clip(columns, at, at)) == []


def test_an_empty_ledger_is_a_ledger():
    nothing = empty()
    assert len(nothing) == 0 and check(nothing) == [] and span(nothing) == (0, 0)
    assert list(rows(coalesce(current(clip(concat([nothing, nothing]), 0, 5))))) == []
