"""Slow-downs of work that shares a GPU: modelled, and corrected by what was seen."""

from __future__ import annotations

from dataclasses import replace

import pytest
from hypothesis import given
from hypothesis import strategies as st

from unidle.errors import BadInput
from unidle.fleet import WHOLE_PPM
from unidle.share.interference import (
    Interference,
    Load,
    PairSlowdown,
    Tenant,
    known_loads,
    modelled_ppm,
    parse_loads,
)
from unidle.share.modes import Mode

TABLE = known_loads()
HALF = Load("half", 500_000, 300_000, 600_000)
MOST = Load("most", 900_000, 400_000, 900_000)


def table(*loads: Load) -> Interference:
    return Interference({load.name: load for load in (*loads, TABLE.loads["unknown"])}, {})


def test_nothing_is_slowed_down_where_demands_fit_together() -> None:
    assert modelled_ppm("mps", Tenant(HALF), [Tenant(HALF)]) == WHOLE_PPM
    assert modelled_ppm("mps", Tenant(HALF), [Tenant(MOST)]) == 1_400_000
    assert modelled_ppm("time", Tenant(HALF), [Tenant(HALF)]) == 1_200_000
    assert modelled_ppm("mig", Tenant(HALF, 500_000, 500_000), [Tenant(MOST)]) == WHOLE_PPM


def test_a_bound_slows_its_own_tenant_and_shields_the_others() -> None:
    assert modelled_ppm("mps", Tenant(MOST, 450_000), []) == 2_000_000
    assert modelled_ppm("mps", Tenant(HALF), [Tenant(MOST, 500_000)]) == WHOLE_PPM
    assert modelled_ppm("mig", Tenant(HALF, 142_857, 125_000), []) == pytest.approx(3_500_000, abs=5)


def test_what_was_seen_corrects_the_model_the_more_the_oftener() -> None:
    known = table(HALF, MOST)
    before = known.slowdown("mps", Tenant(HALF), [Tenant(MOST)])
    assert before == (1_400_000, "modelled")
    ppms = []
    for times in range(1, 21):
        known = replace(known, seen={("mps", "half", "most"): PairSlowdown(2_000_000, times)})
        ppms.append(known.slowdown("mps", Tenant(HALF), [Tenant(MOST)]))
    assert ppms[0].how == "inferred" and 1_400_000 < ppms[0].ppm < ppms[-1].ppm < 2_000_000
    assert known.slowdown("mps", Tenant(MOST), [Tenant(HALF)]) == (
        1_400_000,
        "modelled",
    )  # of this side nothing was seen
    assert known.slowdown("time", Tenant(HALF), [Tenant(MOST)]).how == "modelled"


def test_an_unknown_load_fills_what_it_is_given() -> None:
    load = TABLE.load("something new")
    assert load.name == "something new" and load.sm_ppm == WHOLE_PPM
    assert TABLE.slowdown("mps", Tenant(load), [Tenant(TABLE.load("llm-train"))]).ppm > 1_900_000


def test_published_pairs_count_against_the_model() -> None:
    small, large = (Tenant(TABLE.load(f"resnet18-train-{n}")) for n in (16, 256))
    one, other = TABLE.slowdown("mps", small, [large]), TABLE.slowdown("mps", large, [small])
    assert one.how == other.how == "inferred"
    assert one.ppm > other.ppm  # the smaller one suffers more, as was measured


def test_a_pair_of_a_load_that_is_missing_is_bad_input() -> None:
    with pytest.raises(BadInput, match="not in the table"):
        parse_loads('load = []\n[[pair]]\nmode = "mps"\nload = "a"\nother = "b"\nslowdown_ppm = 1\n')


ppm = st.integers(0, WHOLE_PPM)
tenants = st.builds(
    Tenant, st.builds(Load, st.just("x"), ppm, ppm, ppm), st.integers(1, WHOLE_PPM), st.integers(1, WHOLE_PPM)
)


@given(st.sampled_from(["whole", "mig", "mps", "time"]), tenants, st.lists(tenants, max_size=4), tenants)
def test_company_never_makes_anyone_faster(
    mode: Mode, own: Tenant, others: list[Tenant], one_more: Tenant
) -> None:
    before, after = modelled_ppm(mode, own, others), modelled_ppm(mode, own, [*others, one_more])
    assert WHOLE_PPM <= before <= after
