"""Plans: as good as brute force, never worse than greedy, with a bound that holds."""

from __future__ import annotations

from typing import Any, cast

import pytest

from span.plans import small_case
from unidle.errors import BadInput
from unidle.files.span import span_from_mapping
from unidle.files.span_plan import as_file, rented, wanted_from_mapping
from unidle.span.bound import lower_bound_ns
from unidle.span.estimate import quick_ns
from unidle.span.layers import balanced
from unidle.span.layouts import layouts
from unidle.span.left_out import left_out
from unidle.span.offer import setting_of
from unidle.span.plan import Objective, brute, greedy, plan
from unidle.span.schedules import SCHEDULES
from unidle.span.simulate import simulate

WIDE = {
    "model": {"layers": 12, "hidden": 1024, "sequence": 1024}, "batch": 8, "device_tflops": 100, "local_gbps": 100,
    "sites": [{"name": "near", "gpus": 8, "price_per_gpu_hour": 2}, {"name": "far", "gpus": 1, "price_per_gpu_hour": 3}],
    "links": [{"from": "near", "to": "far", "latency_ms": 200, "capacity_gbps": 0.2, "egress_per_gb": 0.1}],
}  # fmt: skip


def wanted(**fields: Any) -> Any:
    return wanted_from_mapping({**WIDE, **fields})


@pytest.mark.parametrize("seed", range(40))
@pytest.mark.parametrize("objective", ["time", "cost"])
def test_a_plan_is_as_good_as_brute_force_and_never_worse_than_greedy(seed: int, objective: str) -> None:
    case, aim = small_case(seed), cast("Objective", objective)
    try:
        every = brute(case, aim, "zb-h1")
    except BadInput:
        with pytest.raises(BadInput):
            plan(case, aim, "zb-h1", work_most=None)
        return
    ours = plan(case, aim, "zb-h1", work_most=None)
    assert ours.value == every.value and ours.proved and ours.exhaustive
    assert ours.bound <= ours.value and ours.lower_bound_ns <= ours.result.iteration_ns
    assert ours.simulated <= every.simulated
    try:
        assert ours.value <= greedy(case, aim, "zb-h1").value
    except BadInput:
        pass  # greedy found no layout; ours did


@pytest.mark.parametrize("seed", range(0, 40, 4))
def test_bounds_hold_for_every_layout(seed: int) -> None:
    case = small_case(seed)
    for layout in list(layouts(case))[::7]:
        setting = setting_of(case, layout)
        quick, tight = quick_ns(case, layout), lower_bound_ns(setting)
        for name in ("zb-h1", "atlas"):
            try:
                found = simulate(setting, SCHEDULES[name]).result.iteration_ns
            except BadInput:
                continue
            assert max(quick, tight) <= found, (layout, name)


def test_equal_work_whatever_the_layout() -> None:
    case = small_case(7)
    for layout in layouts(case):
        assert layout.microbatches(case.batch) * layout.microbatch * layout.pipelines == case.batch
        assert sum(layout.layers) == case.layers


def test_a_small_far_site_is_left_out_with_the_reason_in_figures() -> None:
    made = plan(wanted(), "time", "zb-h1")
    (out,) = left_out(made)
    assert out.site == "far"
    assert "1 GPU" in out.because and "200 ms" in out.because and "without it" in out.because


def test_a_site_without_a_link_is_left_out() -> None:
    sites = [*cast("Any", WIDE["sites"]), {"name": "alone", "gpus": 2}]
    outs = dict(left_out(plan(wanted(sites=sites), "time", "zb-h1")))
    assert "no link" in outs["alone"]


def test_faster_devices_get_more_layers() -> None:
    assert balanced(9, [1.0, 2.0], 9) == (3, 6)
    assert balanced(5, [1.0, 2.0, 1.0], 9) == (1, 3, 1)
    assert balanced(9, [1.0, 2.0], 5) == (4, 5)
    assert balanced(9, [1.0, 1.0], 4) is None
    sites = [
        {"name": "old", "gpus": 1, "device_tflops": 50},
        {"name": "new", "gpus": 1, "device_tflops": 150},
    ]
    links = [{"from": "old", "to": "new", "latency_ms": 0.001, "capacity_gbps": 1000}]
    made = plan(
        wanted(sites=sites, links=links, model={"layers": 8, "hidden": 1024, "sequence": 1024}, batch=32)
    )
    by_name = dict(
        zip((made.wanted.offers[k].name for k in made.layout.order), made.layout.layers, strict=True)
    )
    assert by_name == {"old": 2, "new": 6}


def test_what_does_not_fit_says_by_how_many_bytes() -> None:
    state, kept, whole = 16 * 12 * 1024**2, 34 * 1024**2, 2 * 1024**2
    one = state + kept + whole
    with pytest.raises(BadInput, match=f"{one:,} bytes, {one - 1000:,} more"):
        plan(wanted(memory_cap_bytes=1000))
    with pytest.raises(BadInput, match=f"9 of 12 layers: {3 * (state + kept):,} bytes are missing"):
        plan(wanted(memory_cap_bytes=one))


def test_a_written_plan_is_simulated_to_the_same_nanosecond() -> None:
    for seed in range(12):
        case = small_case(seed)
        try:
            made = plan(case)
        except BadInput:
            continue
        again = simulate(span_from_mapping(as_file(case, made.layout)), SCHEDULES["unidle"]).result
        assert again.iteration_ns == made.result.iteration_ns
        assert again.cost_per_iteration == made.result.cost_per_iteration


def test_many_gpus_take_few_simulations() -> None:
    names = "abcde"
    links = [
        {"from": a, "to": b, "latency_ms": 30, "capacity_gbps": 5} for a in names for b in names if a < b
    ]
    made = plan(
        wanted(
            model={"layers": 60, "hidden": 8192, "sequence": 4096}, batch=128, memory_cap_bytes="80GB", links=links,
            sites=[{"name": name, "gpus": 600} for name in names],
        )
    )  # fmt: skip
    assert made.simulated <= 6 and not made.exhaustive
    assert made.lower_bound_ns <= made.result.iteration_ns


def test_what_if_more_were_rented() -> None:
    base = wanted()
    more = rented(base, "near:16:1.5")
    assert more.offers[0].gpus == 16 and more.offers[0].price_per_gpu_hour == 1.5
    assert plan(more, "time", "zb-h1").value <= plan(base, "time", "zb-h1").value
    for text in ("near", "near:0:1", "near:x:1", "near:1:-1", "other:4:1"):
        with pytest.raises(BadInput, match="--rent"):
            rented(base, text)


@pytest.mark.parametrize(
    ("change", "field"),
    [
        ({"batch": None}, "batch"), ({"model": None}, "model"), ({"sites": None}, "sites"),
        ({"sites": [{"name": "a"}], "links": []}, "gpus"), ({"device_tflops": None}, "device_tflops"),
        ({"batch": 0}, "batch"), ({"stage_ns": {"forward": 1, "backward": 1, "weight": 1}}, "stage_ns"),
    ],
)  # fmt: skip
def test_what_is_missing_or_wrong_is_one_error(change: dict[str, Any], field: str) -> None:
    given = {name: value for name, value in {**WIDE, **change}.items() if value is not None}
    if "links" in given and "sites" not in given:
        del given["links"]
    with pytest.raises(BadInput, match=field):
        wanted_from_mapping(given)


def test_simulate_still_demands_the_layout() -> None:
    with pytest.raises(BadInput, match="stages"):
        span_from_mapping(WIDE)
