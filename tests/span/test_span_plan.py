"""Plans: as good as brute force, never worse than greedy, with a bound that holds."""

from __future__ import annotations

from typing import Any, cast

import pytest

from span.plans import small_case
from span.reading import span_from_mapping, wanted_from_mapping
from unidle.errors import BadInput
from unidle.span.files.plan import as_file, rented
from unidle.span.plan.alternatives import compare, reconsidered
from unidle.span.plan.estimate import quick_ns
from unidle.span.plan.layouts import greedy_layouts, layouts
from unidle.span.plan.offer import setting_of
from unidle.span.plan.partition import balanced
from unidle.span.plan.search import Objective, brute, greedy, plan
from unidle.span.simulate.bound import lower_bound_ns
from unidle.span.simulate.iteration import simulate
from unidle.span.simulate.schedules import SCHEDULES

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
    _, (out,) = reconsidered(made)
    assert out.site == "far"
    assert "1 GPU" in out.because and "200 ms" in out.because and "without it" in out.because


def test_a_site_without_a_link_is_left_out() -> None:
    sites = [*cast("Any", WIDE["sites"]), {"name": "alone", "gpus": 2}]
    outs = dict(reconsidered(plan(wanted(sites=sites), "time", "zb-h1"))[1])
    assert "no link" in outs["alone"]


def test_a_site_with_too_few_devices_or_too_little_memory_says_by_how_much() -> None:
    sites = [*cast("Any", WIDE["sites"]), {"name": "tiny", "gpus": 4, "memory_cap_bytes": 1000}]
    links = [*cast("Any", WIDE["links"]), {"from": "near", "to": "tiny", "latency_ms": 1, "capacity_gbps": 1}]
    one = {"layers": 1, "hidden": 1024, "sequence": 1024}
    made, outs = reconsidered(plan(wanted(sites=sites, links=links, model=one), "time", "zb-h1"))
    told = dict(outs)
    assert made.layout.pipelines == 8 and "7 fewer than the 8 pipelines" in told["far"]
    assert "does not hold one layer" in told["tiny"] and "bytes are missing" in told["tiny"]
    assert f"{made.result.peak_memory_bytes - 1000:,} fewer than those of this plan need" in told["tiny"]


def test_a_site_that_is_joined_to_none_and_too_small_alone_says_by_how_many_bytes() -> None:
    state, kept = 16 * 12 * 1024**2, 34 * 1024**2
    sites = [{"name": "near", "gpus": 12}, {"name": "alone", "gpus": 9}, {"name": "off", "gpus": 1}]
    links = [{"from": "near", "to": "off", "latency_ms": 1, "capacity_gbps": 1}]
    given = wanted(sites=sites, links=links, memory_cap_bytes=state + kept + 2 * 1024**2)
    _, outs = reconsidered(plan(given, "time", "zb-h1"))
    assert f"alone it holds 9 of 12 layers: {3 * (state + kept):,} bytes are missing" in dict(outs)["alone"]


@pytest.mark.parametrize("seed", range(0, 40, 3))
def test_what_is_simulated_for_the_reasons_is_worse_or_becomes_the_plan(seed: int) -> None:
    case = small_case(seed)
    try:
        first = plan(case, "time", "zb-h1", work_most=0)
    except BadInput:
        return
    made, outs = reconsidered(first)
    assert made.value <= first.value and made.bound == first.bound <= made.value
    assert {each.site for each in outs} == {
        case.offers[k].name for k in range(len(case.offers)) if k not in made.layout.order
    }
    for k in range(len(case.offers)):
        if k not in made.layout.order:
            assert all(value >= made.value for layout, value in made.done.items() if k in layout.order)


@pytest.mark.parametrize("seed", range(0, 40, 5))
def test_the_chosen_layout_is_compared_with_all_schedules_at_equal_memory(seed: int) -> None:
    case = small_case(seed)
    try:
        made = plan(case)
    except BadInput:
        return
    found = compare(made)
    assert found.results[0] is made.result
    names = [each.schedule for each in found.results] + [each.schedule for each in found.missing]
    assert sorted(names) == sorted(SCHEDULES)
    setting = setting_of(case, made.layout)
    for each in found.results[1:]:
        assert each.iteration_ns == simulate(setting, SCHEDULES[each.schedule]).result.iteration_ns
        assert setting.memory_cap_bytes is None or each.peak_memory_bytes <= setting.memory_cap_bytes
        assert each.schedule == "interleaved" or made.result.iteration_ns <= each.iteration_ns


def test_a_large_layout_is_not_compared_and_says_why() -> None:
    one = {"layers": 1, "hidden": 64, "sequence": 64}
    given = wanted(model=one, batch=2**18, sites=[{"name": "near", "gpus": 1}], links=[])
    made = plan(given, "time", "zb-h1")
    found = compare(made)
    assert found.results == (made.result,)
    assert all("take less than a second" in each.because for each in found.missing)


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


def test_greedy_layouts_fill_the_largest_sites_first() -> None:
    request = wanted()
    layouts = greedy_layouts(request)
    assert layouts
    for layout in layouts:
        gpus = [request.offers[k].gpus for k in layout.order]
        assert gpus == sorted(gpus, reverse=True)
        assert min(gpus) >= layout.pipelines
