import re

from hypothesis import given
from hypothesis import strategies as st

from ledger.ledgers import Made, ledgers, split_at
from unidle.ledger.columns import from_entries
from unidle.ledger.current import check, check_batches, current
from unidle.ledger.query import summary
from unidle.ledger.rows import Entry
from unidle.ledger.sources import LiveRows
from unidle.ledger.tables import SliceInfo
from unidle.ledger.weights import exact_sum, row_ns, slice_ns

SLICES = [SliceInfo(f"n/{k}", f"n/{k}", "n", 1_000_000, 0, 30) for k in range(2)]
WHOLE = Entry((0, 1), 0, 30, "useful", "j", 1, 4)


def problems(*entries: Entry) -> list[str]:
    return check(from_entries(entries, SLICES))


@given(ledgers())
def test_every_nanosecond_has_exactly_one_cause(made):
    columns = made.columns()
    assert check(columns) == []
    standing = current(columns)
    assert exact_sum(row_ns(standing)) == exact_sum(slice_ns(standing.slices))
    assert (standing["sign"] == 1).all()


@given(ledgers(), st.data())
def test_a_correction_moves_time_between_leaves_and_changes_no_capacity(made, data):
    original = [e for e in made.entries if e.revision == 0]
    before = summary(Made(original, made.slices, []).live())
    after = summary(made.live())
    assert after.capacity_ns == before.capacity_ns
    moved = {leaf.leaf: 0 for leaf in before.leaves + after.leaves}
    for sign, answer in ((-1, before), (1, after)):
        for t in answer.leaves:
            moved[t.leaf] += sign * t.ns
    assert sum(moved.values()) == 0


@given(ledgers(), st.randoms())
def test_the_order_of_postings_does_not_matter(made, random):
    shuffled = made.entries[:]
    random.shuffle(shuffled)
    again = Made(shuffled, made.slices, [])
    assert summary(again.live()).leaves == summary(made.live()).leaves


def test_a_reversal_may_name_only_some_of_the_slices():
    fixed = WHOLE._replace(slices=(1,), revision=1)
    columns = from_entries([WHOLE, fixed._replace(sign=-1), fixed._replace(leaf="hang")], SLICES)
    assert check(columns) == []
    assert sorted((t.leaf, t.ns) for t in summary(LiveRows(columns)).leaves) == [
        ("hang", 30),
        ("useful", 30),
    ]


def test_a_reversal_needs_the_posting_of_the_revision_before_its_own():
    undo = WHOLE._replace(revision=2, sign=-1)
    found = problems(WHOLE, undo, WHOLE._replace(leaf="hang", revision=2))
    assert sum("reversal without a posting" in p for p in found) == 2


def test_a_reversal_cancels_once():
    undo = WHOLE._replace(revision=1, sign=-1)
    assert sum("reversal without a posting" in p for p in problems(WHOLE, undo, undo)) == 2


def test_a_gap_is_found():
    (found,) = [p for p in problems(WHOLE._replace(end_ns=10), WHOLE._replace(start_ns=12)) if "n/1: " in p]
    assert found == "slice n/1: a gap before the row (useful from 12 to 30 ns)"


def test_an_overlap_is_found_even_where_a_gap_makes_up_for_it():
    found = problems(
        WHOLE._replace(end_ns=10), WHOLE._replace(start_ns=8, end_ns=20), WHOLE._replace(start_ns=22)
    )
    assert any("an overlap" in p for p in found) and any("a gap" in p for p in found)
    assert not any("capacity" in p for p in found)


def test_rows_must_begin_and_end_with_the_sightings():
    found = problems(WHOLE._replace(start_ns=1, end_ns=29))
    assert any("first sighting" in p for p in found) and any("last sighting" in p for p in found)
    assert found[-1] == "the leaves sum to 56 ns, the capacity is 60 ns"


def test_a_sighted_slice_without_a_row_is_found():
    assert "slice n/1: sighted, but it has no row" in problems(WHOLE._replace(slices=(0,)))


def test_an_empty_interval_is_found():
    assert any("does not end after" in p for p in problems(WHOLE, WHOLE._replace(start_ns=30)))


def test_many_findings_are_counted_rather_than_listed():
    found = problems(*(WHOLE._replace(start_ns=2 * k, end_ns=2 * k + 1) for k in range(15)))
    assert any(re.fullmatch(r"and 8 more like it", p) for p in found)


def test_parts_of_a_ledger_must_continue_each_other():
    columns = from_entries([WHOLE], SLICES)
    first, rest = split_at(columns, 10)
    assert check_batches([first, rest]) == []
    assert "slice n/0: a gap between parts of the ledger, from 10 to 20 ns" in check_batches(
        [first, split_at(rest, 20)[1]]
    )
    assert any("an overlap between parts" in p for p in check_batches([first, columns]))
