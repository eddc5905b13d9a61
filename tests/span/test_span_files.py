"""Span files: what fits is read, what does not is one error with field, value and remedy."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
import yaml
from jsonschema import Draft202012Validator

from span.reading import load_span, span_from_mapping
from unidle.errors import BadInput
from unidle.span.files.schedule import schedules_named
from unidle.span.files.schema import span_schema
from unidle.span.simulate.iteration import simulate
from unidle.span.simulate.schedules import SCHEDULES

EXAMPLE = Path(__file__).parents[2] / "examples" / "span" / "three-sites.yaml"
TIMES = {"forward": 200, "backward": 200, "weight": 200}
LEAST = {"stages": 4, "microbatches": 8, "stage_ns": TIMES}
MODEL = {"layers": 5, "hidden": 64, "sequence": 32, "microbatch": 2}
A, B, C = ({"name": name, "stages": 2} for name in "abc")
AB, BC = ({"from": a, "to": b, "latency_ms": 40, "capacity_gbps": 5} for a, b in ("ab", "bc"))


def read(**fields: Any) -> Any:
    given = {**LEAST, **fields}
    return span_from_mapping({name: value for name, value in given.items() if value is not None})


def test_the_example_is_read_fits_its_schema_and_is_simulated() -> None:
    setting = load_span(EXAMPLE)
    Draft202012Validator(span_schema()).validate(yaml.safe_load(EXAMPLE.read_text()))
    ours, theirs = (simulate(setting, SCHEDULES[name]).result for name in ("unidle", "atlas"))
    assert ours.iteration_ns <= theirs.iteration_ns
    assert ours.peak_memory_bytes <= 40 * 10**9


def test_the_schema_is_one_and_its_example_is_read() -> None:
    schema = span_schema()
    Draft202012Validator.check_schema(schema)
    span_from_mapping(schema["examples"][0])


def test_times_and_bytes_follow_from_the_model() -> None:
    setting = read(stage_ns=None, model=MODEL, device_tflops=0.001)
    tokens = 2 * 32 * 64
    assert setting.input_bytes == 2 * tokens
    assert [stage.kept_bytes for stage in setting.stages] == [n * 34 * tokens for n in (2, 1, 1, 1)]
    whole, scores = 24 * 2 * 32 * 64**2, 4 * 2 * 32**2 * 64
    first = setting.stages[0]
    assert first.forward_ns == first.recompute_ns == 2 * (whole + scores)
    assert first.backward_ns + first.weight_ns == 2 * first.forward_ns
    assert first.gradient_bytes == 2 * 12 * 64**2 * 2


def test_measured_times_replace_the_formulas_and_may_differ_by_stage() -> None:
    setting = read(model=MODEL, stage_ns={**TIMES, "forward": [1, 2, 3, 4]})
    assert [stage.forward_ns for stage in setting.stages] == [1, 2, 3, 4]
    assert setting.stages[0].recompute_ns == 0
    assert setting.stages[0].kept_bytes > 0


def test_a_flow_is_limited_by_its_window_unless_it_is_said() -> None:
    setting = read(sites=[A, B], links=[AB])
    assert setting.links[0].rate_gbps(1) == pytest.approx(0.3)
    assert setting.links[0].rate_gbps(10) == pytest.approx(3)
    assert setting.links[0].rate_gbps(None) == 5
    assert read(sites=[A, B], links=[{**AB, "flow_mbps": 293}]).links[0].rate_gbps(1) == pytest.approx(0.293)


@pytest.mark.parametrize(
    ("fields", "words"),
    [
        ({"stages": 0}, "stages: must be a whole number from 1"),
        ({"stages": -3}, "(got -3)"),
        ({"microbatches": 0}, "microbatches: must be"),
        ({"pipelines": 0}, "pipelines: must be"),
        ({"stages": None}, "stages: the field is missing"),
        ({"stage_ns": None}, "neither a model nor stage_ns"),
        ({"stage_ns": {**TIMES, "forward": 0}}, "stage_ns.forward"),
        ({"stage_ns": {**TIMES, "forward": [1, 2]}}, "gives 2 of 4 stages"),
        ({"stage_ns": {"forward": 1, "backward": 1}}, "stage_ns.weight: the field is missing"),
        ({"stage_ns": None, "model": MODEL}, "device_tflops: the field is missing"),
        ({"stage_ns": None, "model": MODEL, "device_tflops": 0}, "device_tflops: must be a number over 0"),
        ({"stage_ns": None, "model": {**MODEL, "layers": 3}, "device_tflops": 1}, "model.layers: are fewer than 4 stages"),
        ({"stage_ns": None, "model": {**MODEL, "layers": [1, 2]}, "device_tflops": 1}, "gives 2 of 4 stages"),
        ({"stage_ns": None, "model": {**MODEL, "hidden": -1}, "device_tflops": 1}, "model.hidden"),
        ({"pipelines": 4, "cell": 3}, "cell: does not divide 4 pipelines (got 3)"),
        ({"sites": [A, {**B, "stages": 3}]}, "the sites have 5 in all (got 4)"),
        ({"sites": [A, A]}, "sites[1].name: is there twice (got 'a')"),
        ({"sites": [A, {**B, "gpus": 1}]}, "sites[1].gpus: 2 devices are needed"),
        ({"sites": [A, {**B, "price_per_gpu_hour": -1}]}, "sites[1].price_per_gpu_hour"),
        ({"sites": [A, B], "links": [BC]}, "links[0].to: there is no such site (got 'c'); the sites are a, b"),
        ({"stages": 6, "sites": [A, B, C], "links": [AB]}, "no link between b and c"),
        ({"sites": [A, B], "links": [AB, {**AB, "from": "b", "to": "a"}]}, "linked already"),
        ({"sites": [A, B], "links": [{**AB, "to": "a"}]}, "the site it begins at"),
        ({"sites": [A, B], "links": [{**AB, "latency_ms": -1}]}, "links[0].latency_ms"),
        ({"sites": [A, B], "links": [{**AB, "capacity_gbps": 0}]}, "links[0].capacity_gbps: must be a number over 0"),
        ({"sites": [A, B], "links": [{**AB, "flow_mbps": 0}]}, "links[0].flow_mbps"),
        ({"links": [AB]}, "sites: the field is missing"),
        ({"baseline_flows": 2}, "baseline_flows: must be 1 or max (got 2)"),
        ({"local_gbps": 0}, "local_gbps"),
        ({"memory_cap_bytes": 0}, "memory_cap_bytes"),
        ({"memory_cap_bytes": 900, "static_bytes": 1000}, "stage 0 (site here) needs 1,000 bytes for one microbatch, 100 more"),
        ({"model": MODEL, "activation_bytes": 5}, "follows from the model"),
        ({"stages": 9_000, "microbatches": 9_000}, "are 162,000,000, and at most"),
        ({"stage": 4}, "the closest known field is stages"),
    ],
)  # fmt: skip
def test_what_does_not_fit_is_one_error(fields: dict[str, Any], words: str) -> None:
    with pytest.raises(BadInput) as refused:
        read(**fields)
    assert words in str(refused.value)
    assert refused.value.remedy
    assert refused.value.field is not None or "neither" in words
    assert refused.value.exit_code == 2


def test_a_file_is_named_with_its_line(tmp_path: Path) -> None:
    path = tmp_path / "span.yaml"
    path.write_text("stages: 4\nmicrobatches: 0\nstage_ns: {forward: 1, backward: 1, weight: 1}\n")
    with pytest.raises(BadInput, match=r"span.yaml:2: microbatches"):
        load_span(path)
    path.write_text(json.dumps([1]))
    with pytest.raises(BadInput, match="must be a mapping"):
        load_span(path)


@pytest.mark.parametrize(
    ("text", "words"),
    [
        ("gpipe,zb", "no such schedule"),
        ("gpipe,gpipe", "is there twice"),
        ("", "no such schedule"),
        ("./nowhere.py:mine", "no such file"),
    ],
)
def test_a_schedule_that_is_not_known_is_refused(text: str, words: str) -> None:
    with pytest.raises(BadInput, match=words):
        schedules_named(text)


def test_a_schedule_comes_from_a_file(tmp_path: Path) -> None:
    path = tmp_path / "mine.py"
    path.write_text(
        "def mine(setting):\n    return [[(op, m) for op in 'FBW' for m in range(setting.microbatches)] for _ in setting.stages]\n"
        "def bad(setting):\n    return 1 / 0\n"
    )
    (found,) = schedules_named(f"{path}:mine")
    assert simulate(read(), found).result.iteration_ns == 11 * 400 + 8 * 200
    with pytest.raises(BadInput, match="no such function"):
        schedules_named(f"{path}:other")
    (bad,) = schedules_named(f"{path}:bad")
    with pytest.raises(BadInput, match="ZeroDivisionError"):
        simulate(read(), bad)
