"""Usage by department and month: exact sums, cut at local midnight, priced as the ledger prices."""

from __future__ import annotations

import datetime as dt

from hypothesis import given

from ledger.ledgers import Made, ledgers
from unidle.fleet.queues import UTC, Zone
from unidle.ledger.columns import from_entries
from unidle.ledger.money import Prices
from unidle.ledger.query import summary
from unidle.ledger.rows import Entry
from unidle.ledger.select import TimeRange
from unidle.ledger.sources import LiveRows
from unidle.ledger.tables import JobInfo, SliceInfo
from unidle.report.queue_usage import IN_USE, months, usage

HOUR = 3_600_000_000_000
BERLIN = Zone(
    "Europe/Berlin", ((0, 3600), (1_774_746_000_000_000_000, 7200), (1_792_890_000_000_000_000, 3600))
)


def at(year: int, month: int, day: int = 1, hour: int = 0) -> int:
    return int(dt.datetime(year, month, day, hour, tzinfo=dt.UTC).timestamp()) * 10**9


START, END = at(2026, 10, 31), at(2026, 11, 2)
QUEUES = {"vision": None, "night": "vision", "day": "vision"}


def source() -> LiveRows:
    """Two devices over two days: job a of queue night on the first, b of day on the second from noon on."""
    jobs = [JobInfo("a", "a", "night", "ann"), JobInfo("b", "b", "day", "bob", 4.0)]
    slices = [SliceInfo(f"n0/{k}", f"n0/{k}", "n0", 1_000_000, START, END, "H100") for k in range(2)]
    noon = START + 12 * HOUR
    entries = [
        entry((0,), START, START + HOUR, "start", "a"),
        entry((0,), START + HOUR, END, "useful", "a"),
        entry((1,), START, noon, "no_demand", ""),
        entry((1,), noon, END, "useful", "b"),
    ]
    return LiveRows(from_entries(entries, slices, jobs))


def entry(slices: tuple[int, ...], start: int, end: int, leaf: str, job: str) -> Entry:
    fields = dict.fromkeys(Entry._fields)
    fields.update(
        slices=slices, start_ns=start, end_ns=end, leaf=leaf, job=job, attempt=1 if job else 0, step=-1,
        how="measured", observer="test", revision=0, sign=1,
    )  # fmt: skip
    return Entry(**{name: fields[name] for name in Entry._fields})


def test_hours_and_money_by_queue_and_month_departments_with_all_below():
    rows = usage(source(), QUEUES, prices=Prices({"H100": 2.0}, "EUR"))
    got = {(r.month, r.queue): (r.device_hours, r.cost_micro) for r in rows}
    assert got == {
        ("2026-10", "day"): (12.0, 48_000_000),
        ("2026-10", "night"): (24.0, 48_000_000),
        ("2026-10", "vision"): (36.0, 96_000_000),
        ("2026-11", "day"): (24.0, 96_000_000),
        ("2026-11", "night"): (24.0, 48_000_000),
        ("2026-11", "vision"): (48.0, 144_000_000),
    }
    first = next(r for r in rows if r.queue == "night")
    assert first.groups_ns == {"held": HOUR, "step": 23 * HOUR}
    assert first.as_json()["cost"] == 48.0
    assert {r.queue: r.own for r in rows} == {"day": True, "night": True, "vision": False}


def test_months_begin_at_local_midnight():
    rows = usage(source(), QUEUES, zone=BERLIN)
    hours = {r.month: r.device_hours for r in rows if r.queue == "night"}
    assert hours == {"2026-10": 23.0, "2026-11": 25.0}
    day = next(r for r in rows if r.queue == "day")  # its job has a price of its own, of 4 an hour
    assert day.cost_micro == 11 * 4_000_000


def test_only_the_devices_asked_for_count():
    rows = usage(source(), QUEUES, devices=["n0/1"])
    assert {r.queue for r in rows} == {"day", "vision"}


def test_what_nobody_gave_a_price_costs_nothing_that_is_known():
    assert all(r.cost_micro is None for r in usage(source(), QUEUES, devices=["n0/0"]))


def test_a_window_is_cut_into_its_months():
    window = TimeRange(at(2026, 12, 15), at(2027, 3, 2))
    assert [name for name, _ in months(window)] == ["2026-12", "2027-01", "2027-02", "2027-03"]
    assert sum(end - start for _, (start, end) in months(window)) == window.end_ns - window.start_ns
    assert list(months(TimeRange(5, 5))) == []
    summer = dict(months(TimeRange(at(2026, 3), at(2026, 6)), BERLIN))
    assert summer["2026-04"].start_ns == at(2026, 3, 31, 22)


def test_a_queue_that_nobody_declared_stands_on_its_own():
    assert {r.queue for r in usage(source(), {})} == {"night", "day"}


@given(ledgers())
def test_the_queues_of_all_months_sum_to_what_the_ledger_has(made: Made):
    ledger = made.live()
    rows = usage(ledger, {"night": None, "day": "night"}, zone=UTC)
    total = summary(ledger, ledger.extent(), ("queue",), where={"group": IN_USE})
    want = {str(g.labels[0]): g.ns for g in total.groups if g.labels[0]}
    got: dict[str, int] = {}
    for row in rows:
        got[row.queue] = got.get(row.queue, 0) + row.ns
    want_night = want.get("night", 0) + want.get("day", 0)
    assert got.get("night", 0) == want_night
    assert got.get("day", 0) == want.get("day", 0)
