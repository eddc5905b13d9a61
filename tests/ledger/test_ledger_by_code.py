"""Time by the codes of slow code: a split that loses nothing, makes nothing, and does not depend on filters or groupings."""

from __future__ import annotations

from collections import Counter

import pytest
from hypothesis import given
from hypothesis import strategies as st

from ledger.ledgers import Made, ledgers, windows
from unidle.ledger.answers import LedgerSummary
from unidle.ledger.by_code import CODE, NEEDED, CodeWeights, leaves_with_time, split_by_code
from unidle.ledger.money import Prices
from unidle.ledger.query import summary
from unidle.ledger.rows import Entry
from unidle.ledger.select import DIMENSIONS, TimeRange
from unidle.ledger.sources import LiveRows
from unidle.ledger.tables import SliceInfo
from unidle.ledger.taxonomy import GROUP_OF, GROUPS

PRICES = Prices({"H100": 3.0})
PARTS = ("data", "forward", "backward", "optimizer", "checkpoint", "communication", "python")
codes = st.sampled_from(["", "UDL101", "UDL206", "UDL404"])
job_weights = st.dictionaries(st.tuples(st.sampled_from(PARTS), codes), st.integers(0, 10**12), max_size=6)
weights = st.dictionaries(st.sampled_from(["a", "b", "gone"]), job_weights)
groupings = st.lists(st.sampled_from(DIMENSIONS), max_size=3, unique=True)


def split(
    source: LiveRows, window: TimeRange, by: list[str], found: dict[str, CodeWeights], where: dict[str, list[str]] | None = None
) -> LedgerSummary:  # fmt: skip
    others = [name for name in dict.fromkeys([*by, *NEEDED]) if name != CODE]
    asked = summary(source, window, others, where=where, prices=PRICES)
    return split_by_code(asked, by, found, leaves_with_time(summary(source, window, NEEDED)))


def sums(answer: LedgerSummary, by: list[str]) -> tuple[dict[tuple[object, ...], int], int]:
    """By some of its dimensions, and all money."""
    places = [answer.by.index(name) for name in by]
    ns: Counter[tuple[object, ...]] = Counter()
    for one in answer.groups:
        ns[tuple(one.labels[at] for at in places)] += one.ns
    return dict(ns), sum(one.cost_micro or 0 for one in answer.groups)


@given(ledgers(), groupings, weights, st.data())
def test_codes_add_up_to_what_the_ledger_has_whatever_else_it_is_grouped_by(
    made: Made, by: list[str], found: dict[str, CodeWeights], data: st.DataObject
) -> None:
    window = TimeRange(*data.draw(windows(made)))
    answer = split(made.live(), window, [*by, CODE], found)
    plain = summary(made.live(), window, by or ["leaf"], prices=PRICES)
    assert sums(answer, by)[0] == (
        sums(plain, by)[0] if by else {(): plain.capacity_ns} if plain.capacity_ns else {}
    )
    assert sum(one.ns for one in answer.groups) == answer.capacity_ns == plain.capacity_ns
    assert all(one.ns > 0 for one in answer.groups)
    if answer.cost is not None:
        assert abs(sums(answer, by)[1] - answer.cost.total_micro) <= 1


@given(ledgers(), weights, st.data())
def test_a_filter_shows_a_part_of_the_same_split(made: Made, found: dict[str, CodeWeights], data: st.DataObject) -> None:  # fmt: skip
    window = TimeRange(*data.draw(windows(made)))
    group = data.draw(st.sampled_from(sorted(GROUPS)))
    by = ["leaf", "job", CODE]
    whole = sums(split(made.live(), window, by, found), by)[0]
    part = sums(split(made.live(), window, by, found, {"group": [group]}), by)[0]
    assert part == {labels: ns for labels, ns in whole.items() if GROUP_OF[str(labels[0])] == group}


def ledger(**leaves: int) -> LiveRows:
    """One job on one device, its leaves one after the other."""
    from unidle.ledger.columns import from_entries
    from unidle.ledger.tables import JobInfo

    entries, at = [], 0
    for leaf, ns in leaves.items():
        entries.append(Entry((0,), at, at + ns, leaf, "a", 1))
        at += ns
    device = SliceInfo("n/0", "n/0", "n", 1_000_000, 0, at, "H100")
    return LiveRows(from_entries(entries, [device], [JobInfo("a", "a", "q", "u")]))


SEEN: dict[str, CodeWeights] = {
    "a": {("data", "UDL101"): 30, ("python", "UDL206"): 20, ("forward", ""): 40, ("forward", "UDL404"): 10}
}


@pytest.mark.parametrize(
    ("leaves", "expected"),
    [
        # time that the ledger tells apart is split by what was seen in it
        ({"useful": 700, "data_stall": 300}, {"UDL101": 300, "UDL206": 200, "UDL404": 100, None: 400}),
        ({"useful": 70, "data_stall": 930}, {"UDL101": 930, "UDL206": 20, "UDL404": 10, None: 40}),
        # without it, all parts of a step are in its useful time
        ({"useful": 1000}, {"UDL101": 300, "UDL206": 200, "UDL404": 100, None: 400}),
        # set-up has no code, unless no step of the job was seen
        ({"start": 100, "useful": 100}, {"UDL101": 30, "UDL206": 20, "UDL404": 10, None: 140}),
        ({"start": 100}, {"UDL101": 30, "UDL206": 20, "UDL404": 10, None: 40}),
        # time that is lost, or in which nothing runs, has none
        ({"replayed": 50, "idle": 50, "hang": 50, "gang_wait": 50}, {None: 200}),
        # a nanosecond is not divided
        ({"useful": 3}, {"UDL101": 1, "UDL206": 1, None: 1}),
    ],
)
def test_a_code_gets_its_share_of_the_time_that_it_is_in(leaves: dict[str, int], expected: dict[str | None, int]) -> None:  # fmt: skip
    answer = split(ledger(**leaves), TimeRange(0, sum(leaves.values())), [CODE], SEEN)
    assert {one.labels[0]: one.ns for one in answer.groups} == expected
    assert answer.as_json()["groups"][0].keys() >= {"code", "ns"}
    assert answer.by == (CODE,)
