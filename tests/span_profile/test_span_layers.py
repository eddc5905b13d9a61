"""Measured layers: cut as brute force would, simulated and planned."""

from __future__ import annotations

import random
from dataclasses import replace
from itertools import combinations, pairwise
from pathlib import Path
from typing import Any

import pytest
import yaml
from hypothesis import given
from hypothesis import strategies as st
from jsonschema import Draft202012Validator

from span.reading import load_span, load_wanted, span_from_mapping, wanted_from_mapping
from unidle.errors import BadInput
from unidle.span.files.plan import as_file
from unidle.span.files.schema import span_schema
from unidle.span.model.layers import LayerCost, ModelCosts
from unidle.span.plan.alternatives import reconsidered
from unidle.span.plan.estimate import quick_ns
from unidle.span.plan.layouts import layouts
from unidle.span.plan.offer import setting_of
from unidle.span.plan.partition import balanced, balanced_cut
from unidle.span.plan.search import brute, greedy, plan
from unidle.span.simulate.bound import lower_bound_ns
from unidle.span.simulate.iteration import simulate
from unidle.span.simulate.schedules import SCHEDULES

MS = 1_000_000
ROOT = Path(__file__).parents[2]
LINK = {"from": "a", "to": "b", "latency_ms": 1, "capacity_gbps": 1, "egress_per_gb": 1}


def layer(scale: int, enters: int = 1000, **more: Any) -> dict[str, Any]:
    """A layer of ``scale`` milliseconds in each part."""
    times = dict.fromkeys(("forward_ns", "backward_ns", "weight_ns"), scale * MS)
    return {
        **times,
        "input_bytes": enters,
        "kept_bytes": 10,
        "parameters_bytes": 100,
        "optimizer_bytes": 200,
        **more,
    }


def two_sites(layers: list[dict[str, Any]], **more: Any) -> dict[str, Any]:
    return {
        "layers": layers, "stages": 2, "microbatches": 2,
        "sites": [{"name": "a", "stages": 1, "gpus": 4}, {"name": "b", "stages": 1, "gpus": 4}], "links": [LINK],
    } | more  # fmt: skip


def test_stages_have_the_times_and_bytes_of_their_layers() -> None:
    layers = [layer(1), layer(2, 500, keeps_input=False), layer(3, 700, recompute_ns=5, gradient_bytes=40)]
    one, two = span_from_mapping(two_sites(layers, cut=[1, 2], static_bytes=7)).stages
    assert (one.forward_ns, one.backward_ns, one.weight_ns, one.recompute_ns) == (MS, MS, MS, MS)
    assert (two.forward_ns, two.recompute_ns) == (5 * MS, 2 * MS + 5)
    assert (one.input_bytes, two.input_bytes) == (1000, 500)
    assert (one.kept_bytes, two.kept_bytes) == (10, 10 + 10 + 700)  # what lies between them is kept, too
    assert (one.static_bytes, two.static_bytes) == (400, 400 + 100 + 40 + 200)
    assert (one.gradient_bytes, two.gradient_bytes) == (100, 140)


def test_what_is_kept_already_is_not_counted_again() -> None:
    (one,) = span_from_mapping(
        {"layers": [layer(1), layer(1, 700, keeps_input=False)], "stages": 1, "microbatches": 1}
    ).stages
    assert one.kept_bytes == 20


@pytest.mark.parametrize("name", SCHEDULES)
def test_each_cut_carries_its_own_bytes(name: str) -> None:
    layers = [layer(1, 800), layer(1, 125_000), layer(1, 250_000), layer(1, 0)]
    sites = [{"name": "a", "stages": 1}, {"name": "b", "stages": 1}, {"name": "c", "stages": 2}]
    links = [LINK, {**LINK, "from": "b", "to": "c"}]
    setting = span_from_mapping(
        two_sites(layers, stages=4, sites=sites, links=links, local_gbps=10, chunks=1)
    )
    made = simulate(setting, SCHEDULES[name], checked=True)
    assert made.result.wan_bytes == 2 * 2 * (125_000 + 250_000)
    assert made.result.cost_per_iteration == pytest.approx(2 * 2 * 375_000 / 1e9)
    sent = {(row.stage, row.of): row.size_bytes for row in made.rows() if row.op == "send"}
    assert sent == {(0, "F"): 125_000, (1, "B"): 125_000, (1, "F"): 250_000, (2, "B"): 250_000}
    lasts = {row.end_ns - row.start_ns for row in made.rows() if row.op == "send" and row.stage == 0}
    assert lasts == {1_000_000}  # 125 kB at 1 Gbit/s


def test_memory_by_hand_differs_by_stage() -> None:
    layers = [layer(1, 800), layer(1, 100, parameters_bytes=5000)]
    told = simulate(span_from_mapping(two_sites(layers, links=[])), SCHEDULES["1f1b"]).result
    assert told.peak_memory_by_stage == (400 + 2 * (800 + 10), 5000 * 2 + 200 + 100 + 10)


def test_a_faster_site_takes_less_time() -> None:
    sites = [{"name": "a", "stages": 1}, {"name": "b", "stages": 1, "device_tflops": 20}]
    one, two = span_from_mapping(two_sites([layer(1), layer(1)], sites=sites, device_tflops=10)).stages
    assert (one.forward_ns, two.forward_ns) == (MS, MS // 2)


def test_without_a_cut_the_first_stages_have_what_is_over() -> None:
    setting = span_from_mapping(two_sites([layer(k) for k in (1, 2, 4)]))
    assert [stage.forward_ns for stage in setting.stages] == [3 * MS, 4 * MS]


def test_given_times_may_have_bytes_at_each_cut() -> None:
    times = {"forward": [1, 2], "backward": [3, 4], "weight": [5, 6], "recompute": [0, 1]}
    fields = {"stages": 2, "microbatches": 2, "stage_ns": times, "input_bytes": [5, "1kB"]}
    one, two = span_from_mapping(fields).stages
    assert (one.input_bytes, two.input_bytes, two.useful_ns) == (5, 1000, 12)


@pytest.mark.parametrize(
    ("fields", "words"),
    [
        ({"cut": [1]}, "cut: gives 1 of 2 stages"),
        ({"cut": [1, 1]}, "cut: has 2 layers, and the model 3 (got [1, 1]); let them sum to 3"),
        ({"cut": [0, 3]}, "cut[0]"),
        ({"layers": []}, "layers"),
        ({"layers": [layer(1)]}, "stages: are more than the 1 layer"),
        ({"layers": [layer(0), layer(1)]}, "layers[0].forward_ns: all its times are 0"),
        ({"layers": [{**layer(1), "kept_bytes": -1}, layer(1)]}, "layers[0].kept_bytes"),
        ({"layers": [{"forward_ns": 1}, layer(1)]}, "layers[0].backward_ns: the field is missing"),
        ({"layers": None, "cut": [1, 1]}, "cut: cuts measured layers, and there are none"),
        ({"stage_ns": {"forward": 1, "backward": 1, "weight": 1}}, "stage_ns: is there together with layers"),
        ({"activation_bytes": 5}, "activation_bytes: is there together with layers"),
        ({"sites": [{"name": "a", "stages": 1, "device_tflops": 5}, {"name": "b", "stages": 1}]}, "sites[0].device_tflops"),
        ({"memory_cap_bytes": 1000}, "stage 0 (site a) needs 2,820 bytes for one microbatch, 1,820 more"),
    ],
)  # fmt: skip
def test_layers_that_do_not_fit_are_one_error(fields: dict[str, Any], words: str) -> None:
    given = {**two_sites([layer(1), layer(1), layer(1)]), **fields}
    with pytest.raises(BadInput) as refused:
        span_from_mapping({name: value for name, value in given.items() if value is not None})
    assert words in str(refused.value)
    assert refused.value.remedy


def test_a_list_of_bytes_has_one_for_each_stage() -> None:
    times = {"forward": 1, "backward": 1, "weight": 1}
    with pytest.raises(BadInput, match="gives 1 of 2 stages"):
        span_from_mapping({"stages": 2, "microbatches": 2, "stage_ns": times, "input_bytes": [5]})


@st.composite
def models(draw: st.DrawFn) -> ModelCosts:
    number, size = st.integers(0, 30), st.integers(0, 20)
    layers = [
        LayerCost(
            1 + draw(number),
            draw(number),
            draw(number),
            1,
            draw(size),
            draw(size),
            draw(st.booleans()),
            draw(size),
        )
        for _ in range(draw(st.integers(1, 7)))
    ]
    return ModelCosts(tuple(layers))


@given(
    measured=models(),
    speeds=st.lists(st.sampled_from([1.0, 2.0, 0.5]), min_size=1, max_size=4),
    room=st.one_of(st.none(), st.integers(0, 120)),
    chance=st.randoms(use_true_random=False),
    slack=st.sampled_from([1.0, 1.25, 2.0]),
)
def test_the_cut_is_the_one_of_brute_force(
    measured: ModelCosts, speeds: list[float], room: int | None, chance: random.Random, slack: float
) -> None:
    borders = [s for s in range(1, len(speeds)) if chance.random() < 0.5]
    there = len(measured.layers)
    every = list[tuple[float, int, tuple[int, ...]]]()
    for inner in combinations(range(1, there), len(speeds) - 1):
        ends = (0, *inner, there)
        stages = [measured.stage(a, b - a, 1.0) for a, b in pairwise(ends)]
        held = [s.static_bytes + s.kept_bytes + (s.input_bytes or 0) for s in stages]
        if room is not None and max(held) > room:
            continue
        times = [
            sum(sum((x.forward_ns, x.backward_ns, x.weight_ns)) for x in measured.layers[a:b]) / speed
            for (a, b), speed in zip(pairwise(ends), speeds, strict=True)
        ]
        over = sum(measured.layers[ends[s]].input_bytes for s in borders)
        every.append((max(times), over, tuple(b - a for a, b in pairwise(ends))))
    found = balanced_cut(measured, speeds, room, borders, slack)
    if not every:
        assert found is None
        return
    least = min(every)[0]
    fewest = min(over for slowest, over, _ in every if slowest <= least * slack)
    slowest, over, _ = next(each for each in every if each[2] == found)
    assert slowest <= least * slack
    assert over == fewest


def test_layers_that_are_alike_are_cut_as_without_a_measurement() -> None:
    for count, speeds in ((9, [1.0, 2.0]), (12, [1.0] * 5), (7, [1.0, 1.0, 3.0])):
        measured = ModelCosts((LayerCost(10, 10, 10, 10, 0, 0),) * count)
        cut, even = balanced_cut(measured, speeds), balanced(count, speeds, count)
        assert cut is not None and even is not None
        assert max(n / s for n, s in zip(cut, speeds, strict=True)) == max(
            n / s for n, s in zip(even, speeds, strict=True)
        )


def case(seed: int) -> dict[str, Any]:
    """Something small to plan for, of uneven layers, by chance."""
    chance = random.Random(seed)
    layers = [
        {
            "forward_ns": chance.randint(1, 90_000), "backward_ns": chance.randint(0, 90_000),
            "weight_ns": chance.randint(0, 90_000), "input_bytes": chance.randint(0, 90_000),
            "kept_bytes": chance.randint(0, 90_000), "keeps_input": chance.random() < 0.7,
            "parameters_bytes": chance.randint(0, 50_000), "optimizer_bytes": chance.randint(0, 50_000),
        }
        for _ in range(chance.randint(2, 6))
    ]  # fmt: skip
    names = "abc"[: chance.randint(1, 3)]
    sites = [
        {"name": name, "gpus": chance.randint(1, 4), "price_per_gpu_hour": chance.choice([1, 5])}
        | ({"device_tflops": chance.choice([50, 200])} if chance.random() < 0.5 else {})
        for name in names
    ]
    links = [
        {
            "from": a,
            "to": b,
            "latency_ms": chance.choice([0, 0.05]),
            "capacity_gbps": chance.choice([0.5, 20]),
        }
        for a, b in combinations(names, 2)
    ]
    microbatch = chance.choice([1, 2])
    return {
        "layers": layers, "measured": {"microbatch": microbatch}, "device_tflops": 100, "sites": sites, "links": links,
        "batch": microbatch * chance.choice([1, 2, 4]), "local_gbps": 10,
        "memory_cap_bytes": chance.choice([300_000, 10**9]),
    }  # fmt: skip


@pytest.mark.parametrize("seed", range(24))
def test_a_plan_of_measured_layers_is_as_good_as_brute_force(seed: int) -> None:
    wanted = wanted_from_mapping(case(seed))
    try:
        every = brute(wanted, "time", "zb-h1")
    except BadInput:
        with pytest.raises(BadInput):
            plan(wanted, "time", "zb-h1", work_most=None)
        return
    ours = plan(wanted, "time", "zb-h1", work_most=None)
    assert ours.value == every.value and ours.proved
    again, reasons = reconsidered(ours)
    assert again.value == ours.value
    assert {each.site for each in reasons} == {
        o.name for k, o in enumerate(wanted.offers) if k not in again.layout.order
    }
    for layout in list(layouts(wanted))[::5]:
        setting = setting_of(wanted, layout)
        try:
            found = simulate(setting, SCHEDULES["zb-h1"], checked=True).result.iteration_ns
        except BadInput:
            continue
        assert max(quick_ns(wanted, layout), lower_bound_ns(setting)) <= found
        assert sum(layout.layers) == wanted.layers
    again = simulate(span_from_mapping(as_file(wanted, ours.layout)), SCHEDULES["zb-h1"]).result
    assert again.iteration_ns == ours.result.iteration_ns
    assert again.peak_memory_by_stage == ours.result.peak_memory_by_stage
    assert again.cost_per_iteration == ours.result.cost_per_iteration


def test_the_border_between_sites_lies_where_few_bytes_cross() -> None:
    layers = [layer(10, size) for size in (100, 9_000_000, 9_000_000, 1000, 9_000_000, 9_000_000)]
    sites = [{"name": "a", "gpus": 1}, {"name": "b", "gpus": 1}]
    wanted = wanted_from_mapping({"layers": layers, "batch": 4, "sites": sites, "links": [LINK]})
    assert plan(wanted).layout.layers == (3, 3)
    uneven = [layer(10, size) for size in (100, 9_000_000, 1000, 9_000_000, 9_000_000)]
    wanted = wanted_from_mapping({"layers": uneven, "batch": 4, "sites": sites, "links": [LINK]})
    assert plan(wanted).layout.layers == (2, 3)


def test_what_cannot_be_planned_says_why() -> None:
    fields = {
        "layers": [layer(1), layer(1, parameters_bytes=5000)],
        "sites": [{"name": "a", "gpus": 2}],
        "batch": 4,
    }
    with pytest.raises(BadInput, match=r"layer 1 with one microbatch needs 11,210 bytes, 2,210 more"):
        plan(wanted_from_mapping({**fields, "memory_cap_bytes": 9000}))
    with pytest.raises(BadInput, match="is no multiple of the 3 sequences"):
        plan(wanted_from_mapping({**fields, "measured": {"microbatch": 3}}))
    few = {**fields, "sites": [{"name": "a", "gpus": 1}], "layers": [layer(1, parameters_bytes=3000)] * 2}
    with pytest.raises(
        BadInput, match="all devices together hold 9,000 bytes of layers, and 3,420 are missing"
    ):
        plan(wanted_from_mapping({**few, "memory_cap_bytes": 9000}))
    tight = replace(wanted_from_mapping({**few, "memory_cap_bytes": 9000}), static_bytes=1000)
    with pytest.raises(
        BadInput, match="all devices together hold 8,000 bytes of layers, and 4,420 are missing"
    ):
        plan(tight)
    unequal = wanted_from_mapping({**fields, "sites": [{"name": "a", "gpus": 1}, {"name": "b", "gpus": 1}]})
    offers = tuple(
        replace(offer, cap_bytes=cap) for offer, cap in zip(unequal.offers, (9000, 5000), strict=True)
    )
    with pytest.raises(BadInput, match="2,210 more than the largest device holds") as refused:
        plan(replace(unequal, offers=offers))
    assert refused.value.value == 9000
    assert greedy(wanted_from_mapping(fields)).layout.layers == (1, 1)


def test_the_example_fits_its_schema_and_is_simulated_and_planned() -> None:
    example = ROOT / "examples" / "span" / "profiled.yaml"
    Draft202012Validator(span_schema()).validate(yaml.safe_load(example.read_text()))
    assert simulate(load_span(example), SCHEDULES["zb-h1"], checked=True).result.iteration_ns > 0
    assert sum(plan(load_wanted(example), "time", "zb-h1").layout.layers) == 8


def test_the_layers_of_the_how_to_are_read() -> None:
    page = (ROOT / "docs" / "how-to" / "span-profile.md").read_text()
    blocks = [yaml.safe_load(part.partition("```")[0]) for part in page.split("```yaml\n")[1:]]
    (shown,) = [block for block in blocks if "layers" in block]
    setting = span_from_mapping({**shown, "stages": 2, "microbatches": 2})
    assert [stage.input_bytes for stage in setting.stages] == [4096, 524288]
