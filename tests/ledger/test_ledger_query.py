import itertools
import json
from collections import Counter

import pytest
from hypothesis import assume, given
from hypothesis import strategies as st

from ledger.ledgers import JOBS, Made, ledgers, plain_capacity, plain_ns, plain_rows, segmented, windows
from unidle.errors import BadInput, StoreDamaged
from unidle.ledger.columns import empty, from_entries
from unidle.ledger.money import Prices
from unidle.ledger.query import summary
from unidle.ledger.ratios import RATIOS
from unidle.ledger.rows import Entry
from unidle.ledger.select import DIMENSIONS, TimeRange
from unidle.ledger.sources import LiveRows
from unidle.ledger.tables import NO_JOB, SliceInfo
from unidle.ledger.taxonomy import GROUP_OF

JOB = {j.id: j for j in (NO_JOB, *JOBS)}
groupings = st.lists(st.sampled_from(DIMENSIONS), max_size=4, unique=True)


def labels_of(made: Made, k: int, e: Entry) -> dict[str, object]:
    s, j = made.slices[k], JOB[e.job]
    return {
        "leaf": e.leaf, "group": GROUP_OF[e.leaf], "how": e.how, "job": j.id or None, "queue": j.queue or None,
        "user": j.user or None, "attempt": e.attempt or None, "node": s.node, "device": s.device, "slice": s.id,
        "failure": (dict(enumerate(j.failures, 1)).get(e.attempt) or None),
    }  # fmt: skip


def plain_sums(made: Made, window: tuple[int, int], by: list[str]) -> dict[tuple[object, ...], int]:
    sums: Counter[tuple[object, ...]] = Counter()
    for k, e in plain_rows(made):
        labels = labels_of(made, k, e)
        sums[tuple(labels[d] for d in by)] += plain_ns(made.slices[k], e.start_ns, e.end_ns, window)
    return {labels: ns for labels, ns in sums.items() if ns}


@given(ledgers(), groupings, st.data())
def test_any_window_and_grouping_is_what_counting_by_hand_gives(made, by, data):
    window = data.draw(windows(made))
    answer = summary(made.live(), TimeRange(*window), by)
    assert answer.capacity_ns == plain_capacity(made, window) == sum(t.ns for t in answer.leaves)
    assert {(t.leaf, t.how): t.ns for t in answer.leaves} == plain_sums(made, window, ["leaf", "how"])
    if by:
        assert {g.labels: g.ns for g in answer.groups} == plain_sums(made, window, by)


@given(ledgers(), groupings, st.booleans(), st.data())
def test_an_answer_does_not_depend_on_where_segments_were_cut(made, by, through_rows, data):
    window = TimeRange(*data.draw(windows(made)))
    cuts = [data.draw(windows(made))[0] for _ in range(data.draw(st.integers(0, 3)))]
    source = segmented(made, cuts, through_rows=through_rows)
    prices = Prices({"H100": 3.0})
    assert source.extent() == made.live().extent()
    expected = summary(made.live(), window, by, prices=prices)
    assert summary(source, window, by, prices=prices).as_json() == expected.as_json()


@given(ledgers(), st.data())
def test_two_windows_that_meet_sum_to_the_window_of_both(made, data):
    start, end = data.draw(windows(made))
    cut = data.draw(st.integers(start, end))
    both, left, right = (
        {(t.leaf, t.how): t.ns for t in summary(made.live(), TimeRange(*w)).leaves}
        for w in ((start, end), (start, cut), (cut, end))
    )
    assert Counter(left) + Counter(right) == Counter(both)


@given(ledgers(), st.data())
def test_a_filter_keeps_the_rows_with_its_values_and_they_still_sum(made, data):
    window = data.draw(windows(made))
    by = data.draw(st.lists(st.sampled_from(DIMENSIONS), min_size=1, max_size=2, unique=True))
    everything = plain_sums(made, window, list(DIMENSIONS))
    found = plain_sums(made, window, by)
    assume(found)
    chosen = data.draw(st.sampled_from(sorted(found, key=str)))
    where = {
        d: [v if v is not None else (0 if d == "attempt" else "")] for d, v in zip(by, chosen, strict=True)
    }
    answer = summary(made.live(), TimeRange(*window), DIMENSIONS, where=where)
    kept = {
        labels: ns
        for labels, ns in everything.items()
        if tuple(labels[DIMENSIONS.index(d)] for d in by) == chosen
    }
    assert {g.labels: g.ns for g in answer.groups} == kept
    assert answer.capacity_ns == sum(t.ns for t in answer.leaves) == sum(kept.values())


@given(ledgers())
def test_coverage_availability_and_the_goodputs_multiply_to_utilisation(made):
    ratios = summary(made.live()).ratios
    chain = ["coverage", "availability", "scheduling_goodput", "runtime_goodput"]
    for one, after in itertools.pairwise(chain):
        assert ratios[one].numerator_ns == ratios[after].denominator_ns
    assert ratios["utilisation"].numerator_ns == ratios["runtime_goodput"].numerator_ns
    assert ratios["utilisation"].denominator_ns == ratios["coverage"].denominator_ns


def ledger_of(*leaves: tuple[str, int, str], **slice_fields: object) -> LiveRows:
    at, entries = 0, []
    for leaf, ns, job in leaves:
        entries.append(Entry((0,), at, at + ns, leaf, job, 1 if job else 0))
        at += ns
    fields = {"share_ppm": 1_000_000, "model": "H100", **slice_fields}
    return LiveRows(
        from_entries(entries, [SliceInfo("n/0", "n/0", "n", first_ns=0, last_ns=at, **fields)], JOBS)
    )


def test_ratios_are_sums_of_leaves():
    source = ledger_of(
        ("unseen", 10, ""), ("fault", 10, ""), ("no_demand", 20, ""), ("gathering", 10, "a"), ("start", 10, "a"),
        ("useful", 30, "a"), ("recompute", 10, "a"), ("within_slo", 5, "b"), ("filled", 5, "c"),
    )  # fmt: skip
    ratios = {name: (r.numerator_ns, r.denominator_ns) for name, r in summary(source).ratios.items()}
    assert ratios == {
        "coverage": (100, 110),
        "availability": (90, 100),
        "scheduling_goodput": (60, 90),
        "runtime_goodput": (40, 60),
        "utilisation": (40, 110),
        "ettr": (40, 70),
    }


def test_ettr_is_told_per_job_when_grouped_by_job():
    source = ledger_of(("no_demand", 5, ""), ("start", 10, "a"), ("useful", 30, "a"), ("useful", 7, "b"))
    answer = summary(source, by=["leaf", "job"])
    assert {job: (r.numerator_ns, r.denominator_ns) for job, r in answer.ettr.items()} == {
        "a": (30, 40),
        "b": (7, 7),
    }
    assert summary(source, where={"job": ["a"]}).ratios["ettr"].value == 0.75
    assert summary(source, by=["queue"]).ettr == {}


def test_a_ratio_of_nothing_has_no_value():
    answer = summary(LiveRows(empty()))
    assert {r.value for r in answer.ratios.values()} == {None}
    assert answer.as_json()["capacity_ns"] == 0 and answer.as_json()["leaves"] == []


def test_every_ratio_is_defined_by_leaves_that_exist():
    for name, r in RATIOS.items():
        assert name == r.name and r.text and r.formula
        assert set(r.numerator) <= set(r.denominator) <= set(GROUP_OF)


HOUR = 3_600_000_000_000


def test_a_devices_hour_costs_its_models_price_and_a_slice_its_share():
    for share, total in ((1_000_000, 4.0), (250_000, 1.0)):
        source = ledger_of(("useful", HOUR, "a"), ("no_demand", HOUR, ""), share_ppm=share)
        cost = summary(source, prices=Prices({"H100": 2.0}, "EUR")).as_json()["cost"]
        assert cost == {
            "currency": "EUR",
            "total": total,
            "leaves": {"no_demand": total / 2, "useful": total / 2},
        }


def test_a_jobs_own_price_overrules_the_models():
    source = ledger_of(("useful", HOUR, "a"), ("useful", HOUR, "b"))  # b pays 2.5
    answer = summary(source, by=["job"], prices=Prices({"H100": 2.0}))
    assert answer.as_json()["groups"] == [
        {"job": "a", "ns": HOUR, "cost": 2.0},
        {"job": "b", "ns": HOUR, "cost": 2.5},
    ]


def test_without_any_price_there_is_no_money():
    answer = summary(ledger_of(("useful", HOUR, "a")), by=["job"]).as_json()
    assert answer["cost"] == {} and answer["groups"] == [{"job": "a", "ns": HOUR}]


def test_time_without_a_price_is_told_beside_the_cost():
    source = ledger_of(("useful", HOUR, "b"), ("no_demand", 7, ""), model="unheard of")
    assert summary(source).as_json()["cost"] == {
        "currency": "USD",
        "total": 2.5,
        "leaves": {"useful": 2.5},
        "unpriced_ns": 7,
    }


@given(ledgers(), st.sampled_from([["leaf"], ["job"], ["slice", "how"]]))
def test_money_of_leaves_and_of_groups_sums_to_the_same_total(made, by):
    answer = summary(made.live(), by=by, prices=Prices({"H100": 1.234567, "A100": 0.5}))
    if answer.cost is not None:
        assert sum(answer.cost.leaves_micro.values()) == answer.cost.total_micro
        assert sum(g.cost_micro for g in answer.groups) == answer.cost.total_micro


def test_groups_come_in_the_order_of_the_taxonomy_and_of_names():
    source = ledger_of(("useful", 1, "b"), ("start", 2, "a"), ("useful", 4, "a"), ("no_demand", 8, ""))
    assert [g.labels for g in summary(source, by=["job", "leaf"]).groups] == [
        ("a", "start"), ("a", "useful"), ("b", "useful"), (None, "no_demand"),
    ]  # fmt: skip
    assert [g.labels for g in summary(source, by=["leaf"]).groups] == [
        ("no_demand",),
        ("start",),
        ("useful",),
    ]


def test_the_json_is_the_contract():
    source = ledger_of(("useful", 3, "a"), ("no_demand", 1, ""))
    answer = json.loads(json.dumps(summary(source, by=["job"]).as_json()))
    assert list(answer) == [
        "window", "capacity_ns", "slices", "leaves", "ratios", "ratio_sums", "cost", "groups", "ettr",
    ]  # fmt: skip
    assert answer["window"] == {"start_ns": 0, "end_ns": 4} and answer["slices"] == 1
    assert answer["leaves"] == [
        {"leaf": "no_demand", "group": "free", "ns": 1, "how": "measured"},
        {"leaf": "useful", "group": "step", "ns": 3, "how": "measured"},
    ]
    assert answer["ratios"]["utilisation"] == 0.75
    assert answer["ratio_sums"]["utilisation"] == {"numerator_ns": 3, "denominator_ns": 4}


def test_what_does_not_exist_is_named_with_the_closest_that_does():
    source = ledger_of(("useful", 3, "a"))
    with pytest.raises(BadInput, match=r"by: .*'devise'.*did you mean device\?"):
        summary(source, by=["devise"])
    with pytest.raises(BadInput, match=r"leaf: .*'usefull'.*did you mean useful\?"):
        summary(source, where={"leaf": ["usefull"]})
    with pytest.raises(BadInput, match=r"filter: .*'gpu'.*known are leaf, group"):
        summary(source, where={"gpu": ["n/0"]})


def test_rows_that_do_not_add_up_are_never_summed_silently():
    slices = [SliceInfo("n/0", "n/0", "n", 1_000_000, 0, 10)]
    broken = LiveRows(from_entries([Entry((0,), 0, 9, "useful", "a", 1)], slices))
    with pytest.raises(StoreDamaged, match="9 of 10"):
        summary(broken)


def test_a_months_sum_of_a_large_fleet_is_exact():
    month = 30 * 24 * HOUR
    slices = [SliceInfo(f"n/{k}", f"n/{k}", "n", 1_000_000, 0, month + k) for k in range(80_000)]
    entries = [Entry((k,), 0, month + k, "no_demand") for k in range(80_000)]
    expected = 80_000 * month + 80_000 * 79_999 // 2
    assert expected > 2**63
    answer = summary(LiveRows(from_entries(entries, slices)))
    assert answer.capacity_ns == answer.leaves[0].ns == expected
