"""The accounts of failures: exact intervals, rates, lemons, labels."""

from __future__ import annotations

import math
from dataclasses import replace

import pytest
from hypothesis import given
from hypothesis import strategies as st

from unidle.cli.failures import _lines, as_object
from unidle.guard.failure_statistics import (
    DAY_NS,
    HOUR_NS,
    Exposure,
    FaultLabel,
    Harm,
    Outage,
    Stretch,
    accounts,
    causes,
    components,
    judged,
    kinds,
    removals,
    sizes,
    worst,
)
from unidle.guard.rates import EventRate, at_least, limits


def at_most(events: int, mean: float) -> float:
    return math.fsum(math.exp(k * math.log(mean) - mean - math.lgamma(k + 1)) for k in range(events + 1))


@given(st.integers(1, 400))
def test_the_bounds_are_the_means_at_which_so_few_and_so_many_are_rare(events: int) -> None:
    low, high = limits(events)
    assert at_most(events, high) == pytest.approx(0.025, rel=1e-6)
    assert 1 - at_most(events - 1, low) == pytest.approx(0.025, rel=1e-6)
    assert low < events < high


@pytest.mark.parametrize(
    ("events", "bounds"), [(0, (0, 3.6889)), (1, (0.02532, 5.5716)), (10, (4.7954, 18.3904))]
)
def test_the_bounds_are_those_of_the_tables(events: int, bounds: tuple[float, float]) -> None:
    assert limits(events) == pytest.approx(bounds, rel=1e-4)


@given(st.integers(1, 60), st.floats(0.01, 80))
def test_the_chance_of_at_least_so_many_is_poissons(events: int, mean: float) -> None:
    assert at_least(events, mean) == pytest.approx(1 - at_most(events - 1, mean), abs=1e-9)


def test_no_event_still_says_how_rare_it_is_and_no_exposure_says_nothing() -> None:
    assert (EventRate(0, 100).value, EventRate(0, 100).low) == (0, 0)
    assert EventRate(0, 100).high == pytest.approx(0.036889, rel=1e-4)
    assert EventRate(3, 0).value is None and EventRate(3, 0).high is None


def seen(nodes: int, days: float = 100, devices: int = 8, model: str = "H100") -> list[Exposure]:
    return [Exposure(f"n{k}", model, devices, int(days * DAY_NS)) for k in range(nodes)]


def out(
    node: str, day: float, hours: float = 1, component: str = "GPU", model: str = "H100", **more: bool
) -> Outage:
    start_ns = int(day * DAY_NS)
    return Outage(node, model, component, start_ns, start_ns + int(hours * HOUR_NS), **more)


def test_rates_are_by_component_and_model_with_those_that_never_failed() -> None:
    rows = components(
        [out("n0", 1), out("n1", 2), out("n1", 5, component="NIC")], [*seen(10), *seen(5, model="A100")]
    )
    found = {(r.model, r.component): r.rate.events for r in rows}
    assert found == {("H100", "any"): 3, ("H100", "GPU"): 2, ("H100", "NIC"): 1, ("A100", "any"): 0}
    gpu = next(r for r in rows if r.component == "GPU")
    assert gpu.rate.value == pytest.approx(2 / 1000)
    assert gpu.yearly.value == pytest.approx(2 / (10 * 8 * 100 / 365.25))
    assert gpu.down_ns == 2 * HOUR_NS


def test_devices_of_a_node_that_are_out_together_are_one_removal_and_maintenance_is_none() -> None:
    both = [out("n0", 1, 5), out("n0", 1.01, 1), out("n0", 9), out("n1", 3, planned=True)]
    found = accounts(both, seen(2), [], [])
    assert found.removals.events == 2 and len(removals(both)["n0"]) == 2


def test_a_node_far_above_the_others_is_a_lemon_and_one_bad_day_makes_none() -> None:
    many = [out("n0", day) for day in range(1, 9)] + [out(f"n{k}", k) for k in range(1, 10)]
    rows = worst(many, [], seen(100))
    assert [r.node for r in rows if r.lemon] == ["n0"]
    assert rows[0].share == pytest.approx(8 / 17)
    assert not any(r.lemon for r in worst([out("n0", 1)], [], seen(100)))


def harm(node: str, day: float, cost: int | None = 5) -> Harm:
    return Harm("j", "hang", node, int(day * DAY_NS), 3, HOUR_NS, cost, True)


def test_an_incident_that_an_outage_explains_is_not_counted_twice() -> None:
    rows = worst([out("n0", 1)], [harm("n0", 1.001), harm("n0", 7), harm("", 8)], seen(4))
    assert [(r.node, r.events) for r in rows] == [("n0", 2)]


def test_costs_are_summed_by_kind_and_what_has_no_price_is_said() -> None:
    (row,) = kinds([harm("n0", 1), harm("n1", 2), harm("n1", 3, None)])
    assert (row.incidents, row.lost_steps, row.device_ns, row.cost_micro, row.unpriced) == (
        3,
        9,
        3 * HOUR_NS,
        10,
        1,
    )


def test_the_costs_are_split_by_the_kind_of_failure_too() -> None:
    code, unknown = replace(harm("n0", 1), cause="code"), replace(harm("n1", 2), cause="unknown")
    rows = causes([code, code, unknown, harm("n2", 3)])
    assert [(row.kind, row.incidents, row.cost_micro) for row in rows] == [("code", 2, 10), ("unknown", 1, 5)]


@given(st.lists(st.tuples(st.integers(1, 5000), st.integers(1, 10**6), st.booleans()), max_size=40))
def test_every_stretch_is_in_exactly_one_size(given_: list[tuple[int, int, bool]]) -> None:
    rows = sizes([Stretch(f"j{k}", devices, ns, hurt) for k, (devices, ns, hurt) in enumerate(given_)])
    assert sum(r.jobs for r in rows) == len(given_)
    assert sum(r.rate.events for r in rows) == sum(hurt for _, _, hurt in given_)
    for devices, _, _ in given_:
        assert sum(r.least <= devices <= r.most for r in rows) == 1


def test_removals_without_a_label_are_false_and_labels_without_a_sign_are_missed() -> None:
    labels = [
        FaultLabel("n0", DAY_NS, 2 * DAY_NS),
        FaultLabel("n1", DAY_NS, 2 * DAY_NS),
        FaultLabel("n2", DAY_NS, 2 * DAY_NS),
    ]
    found = judged([out("n0", 1), out("n3", 1), out("n0", 50)], [harm("n1", 1.5)], labels, 500)
    assert (found.removals, found.false.events, found.noticed, found.labels) == (3, 2, 2, 3)
    assert found.recall == pytest.approx(2 / 3)
    assert found.false.value == pytest.approx(2 / 500)


def test_a_rate_is_told_only_where_enough_time_was_observed() -> None:
    """A minute with one failure is no annual failure rate; the count and what it was counted in stay."""
    short = accounts([out("n0", 0.0001)], seen(1, days=0.01), [], [])
    row = as_object(short)["components"][0]
    assert (row["failures"], row["device_h"]) == (1, pytest.approx(0.01 * 8 * 24))
    assert row["afr_percent"] == row["per_1000_node_days"] == {"value": None, "low": None, "high": None}
    text = "\n".join(_lines(short, "USD"))
    assert "rates need 30 node-days, AFR 1 device-year of a model; below that, only counts are shown" in text
    assert "e+" not in text and "USD" not in text
    days = accounts([out("n0", 1)], seen(1, days=31), [], [])  # enough for the one, not for the other
    row = as_object(days)["components"][0]
    assert row["per_1000_node_days"]["value"] == pytest.approx(1000 / 31)
    assert row["afr_percent"]["value"] is None
    assert as_object(accounts([], seen(1, days=46), [], []))["components"][0]["afr_percent"]["value"] == 0.0
