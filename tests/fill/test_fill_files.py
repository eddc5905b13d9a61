"""Fill files: what fits is read, what does not is one error with field, value and remedy."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
import yaml
from hypothesis import given, settings
from hypothesis import strategies as st
from jsonschema import Draft202012Validator

from fill.worlds import MODEL, fill_file, span_file
from unidle.errors import BadInput
from unidle.files.document import Document
from unidle.fill.files.schema import fill_schema
from unidle.fill.files.setting import FillRequestFile, fill_of, load_fill
from unidle.fill.files.trace import load_lengths, load_trace
from unidle.fill.simulate.arrivals import TracedPrompt

EXAMPLE = Path(__file__).parents[2] / "examples" / "fill" / "headline.yaml"
PROMPTS = {"process": "poisson", "rate_per_s": 60, "tokens": {"min": 16, "max": 2048}}


def read(base: Path | str = ".", **more: Any) -> FillRequestFile:
    data = {name: value for name, value in fill_file(**more).items() if value is not None}
    return fill_of(Document(data, "fill"), str(base))


def test_the_example_is_read_and_fits_its_schema() -> None:
    found = load_fill(EXAMPLE)
    Draft202012Validator(fill_schema()).validate(yaml.safe_load(EXAMPLE.read_text()))
    assert (found.model.pp, found.model.tflops, found.jitter, found.setting.devices) == (2, 156, 0, 48)


def test_the_schema_is_one_and_its_example_is_read() -> None:
    Draft202012Validator.check_schema(fill_schema())
    fill_of(Document(fill_schema()["examples"][0], "fill"), ".")


def test_fields_reach_what_is_simulated() -> None:
    found = read(
        jitter_pct=15, seed=9, inference={"model": MODEL, "pp": 1, "tflops": 20, "chunk_tokens": 64, "gives_way_us": 50,
                                          "dedicated_gpus": 3, "decode_batch": 2, "memory_gb_per_s": 500},
    )  # fmt: skip
    assert (found.jitter, found.seed, found.seconds, found.chunk_tokens, found.gives_way_ns) == (
        0.15,
        9,
        2,
        64,
        50_000,
    )
    assert (
        found.dedicated_gpus,
        found.model.tflops,
        found.model.decode_batch,
        found.model.memory_gb_per_s,
    ) == (3, 20, 2, 500)
    assert found.model.local_gbps == 400
    assert (found.prompts.slo_ttft_ms, found.prompts.least, found.prompts.most) == (1500, 16, 2048)


BAD = [
    ({"prompts": None}, "prompts", "the field is missing"),
    ({"inference": None}, "inference", "the field is missing"),
    ({"jitter_pct": -1}, "jitter_pct", "from 0 to 300"),
    ({"jitter_pct": 301}, "jitter_pct", "from 0 to 300"),
    ({"seconds": 0}, "seconds", "over 0"),
    ({"seed": "x"}, "seed", "must be a whole number"),
    ({"seconds": 99_999}, "seconds", "operations of training"),
    ({"prompts": PROMPTS | {"process": "steady"}}, "prompts.process", "must be one of"),
    ({"prompts": PROMPTS | {"rate_per_s": None}}, "prompts.rate_per_s", ""),
    (
        {"prompts": {"process": "poisson", "tokens": {"min": 1, "max": 2}}},
        "prompts.rate_per_s",
        "the field is missing",
    ),
    ({"prompts": PROMPTS | {"rate_per_s": 10**6}, "seconds": 10}, "prompts.rate_per_s", "prompts"),
    ({"prompts": PROMPTS | {"tokens": {"min": 9, "max": 8}}}, "prompts.tokens.max", "less than min"),
    ({"prompts": PROMPTS | {"tokens": 7}}, "prompts.tokens", ""),
    ({"prompts": PROMPTS | {"slo_ttft_ms": 0}}, "prompts.slo_ttft_ms", "over 0"),
    ({"prompts": PROMPTS | {"process": "trace"}}, "prompts.rate_per_s", "follows from the trace"),
    (
        {"prompts": {"process": "trace", "tokens": {"min": 1, "max": 2}}},
        "prompts.tokens",
        "must name the file",
    ),
    ({"inference": {"model": MODEL, "pp": 9}}, "inference.pp", "from 1 to 8"),
    ({"inference": {"model": MODEL, "pp": 5}}, "inference.pp", "devices of the largest site"),
    ({"inference": {"model": MODEL | {"layers": 1}, "pp": 2}}, "inference.pp", "layers of the model"),
    ({"inference": {"model": "llama", "pp": 2}}, "inference.model", ""),
    ({"inference": {"model": MODEL, "pp": 2, "speed": 1}}, "inference.speed", ""),
    ({"microbatches": [3, 2]}, "microbatches", "unequal pipelines"),
    ({"stages": 5}, "stages", "the sites have 6"),
]


@pytest.mark.parametrize(("more", "field", "problem"), BAD)
def test_a_bad_field_is_one_error(more: dict[str, Any], field: str, problem: str) -> None:
    with pytest.raises(BadInput) as caught:
        read(**more)
    assert caught.value.field == field
    assert problem in caught.value.line()
    assert caught.value.remedy


def test_the_error_has_the_line_of_a_span_field_too(tmp_path: Path) -> None:
    path = tmp_path / "fill.yaml"
    path.write_text(yaml.safe_dump(fill_file(cell=7)))
    with pytest.raises(BadInput, match=r"fill\.yaml:\d+: cell") as caught:
        load_fill(path)
    assert caught.value.value == 7


def test_a_rate_of_prefill_is_needed_where_training_has_measured_times() -> None:
    times = {"forward": 200, "backward": 200, "weight": 200}
    with pytest.raises(BadInput) as caught:
        read(model=None, device_tflops=None, stage_ns=times, seconds=1e-6, prompts=PROMPTS)
    assert caught.value.field == "inference.tflops"


@settings(max_examples=100)
@given(st.data())
def test_any_value_anywhere_is_read_or_refused_in_one_line(data: st.DataObject) -> None:
    changed = json.loads(json.dumps(fill_file()))
    at, keys = changed, data.draw(st.lists(st.integers(0, 20), min_size=1, max_size=4))
    for key in keys[:-1]:
        inner = list(at.values())[key % len(at)]
        if isinstance(inner, dict) and inner:
            at = inner
    name = list(at)[keys[-1] % len(at)]
    scalar = (
        st.none() | st.booleans() | st.integers(-5, 10**9) | st.floats(allow_nan=True) | st.text(max_size=6)
    )
    value = (
        scalar
        | st.lists(scalar, max_size=3)
        | st.dictionaries(st.sampled_from(["min", "max", "x"]), scalar, max_size=2)
    )
    at[name] = data.draw(value)
    told = refusal(changed)
    assert told is None or ("\n" not in told.line() and (told.remedy or told.field))


def refusal(data: object) -> BadInput | None:
    try:
        fill_of(Document(data, "fill"), "/nowhere")
    except BadInput as error:
        return error
    return None


def test_lengths_and_traces_are_read_from_csv(tmp_path: Path) -> None:
    path = tmp_path / "prompts.csv"
    path.write_text("arrival_s,tokens,priority,slo_ttft_ms\n0.5,100,2,250\n\n1, 7 ,,\n")
    assert load_lengths(str(path)) == (100, 7)
    assert load_trace(str(path)) == (TracedPrompt(0.5, 100, 2, 250.0), TracedPrompt(1.0, 7))
    found = read(tmp_path, prompts={"process": "trace", "tokens": "prompts.csv"})
    assert found.prompts.traced == load_trace(str(path))
    drawn = read(tmp_path, prompts={"process": "burst", "rate_per_s": 2, "tokens": "prompts.csv"})
    assert drawn.prompts.lengths == (100, 7)


@pytest.mark.parametrize(
    ("text", "told"),
    [
        ("tokens\n5\nmany\n", ":3: tokens: must be a whole number from 1 to 10,000,000 (got 'many')"),
        ("tokens\n0\n", ":2: tokens: must be a whole number"),
        ("tokens\n1.5\n", ":2: tokens: must be a whole number"),
        ("tokens\nnan\n", ":2: tokens: must be a whole number"),
        ("tokens\ninf\n", ":2: tokens: must be a whole number"),
        ("length\n5\n", "tokens: the column is missing"),
        ("tokens\n", "tokens: has no prompts"),
        ("", "tokens: the column is missing"),
        ('tokens\n"' + "5" * 200_000 + '"\n', ":2: is not CSV"),
    ],
)
def test_a_bad_line_of_prompts_is_one_error(tmp_path: Path, text: str, told: str) -> None:
    path = tmp_path / "prompts.csv"
    path.write_text(text)
    with pytest.raises(BadInput) as caught:
        load_lengths(str(path))
    assert told in caught.value.line()


@pytest.mark.parametrize(
    ("row", "field"),
    [("-1,5,,", "arrival_s"), ("1,5,x,", "priority"), ("1,5,,0", "slo_ttft_ms"), ("1", "tokens")],
)
def test_a_bad_cell_of_a_trace_is_one_error(tmp_path: Path, row: str, field: str) -> None:
    path = tmp_path / "prompts.csv"
    path.write_text(f"arrival_s,tokens,priority,slo_ttft_ms\n{row}\n")
    with pytest.raises(BadInput) as caught:
        load_trace(str(path))
    assert caught.value.field == field


def test_a_missing_file_of_prompts_is_one_error(tmp_path: Path) -> None:
    with pytest.raises(BadInput, match="there is no such file"):
        read(tmp_path, prompts={"process": "trace", "tokens": "none.csv"})


def test_a_span_file_alone_is_not_enough() -> None:
    with pytest.raises(BadInput) as caught:
        fill_of(Document(span_file(), "fill"), ".")
    assert caught.value.field == "prompts"
