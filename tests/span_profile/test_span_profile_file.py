"""Measured layers are stored in a span file, and nothing else in it changes; medians and their intervals."""

from __future__ import annotations

import json
import random
from pathlib import Path
from typing import Any

import pytest
import yaml

from span.reading import load_span, load_wanted
from unidle.errors import BadInput
from unidle.span.files.rewrite import store_profile
from unidle.span.model.layers import ModelProfile, median_of, profile_of

HOW = {
    "microbatch": 2,
    "device": "cpu",
    "dtype": "float32",
    "optimizer": "adamw",
    "threads": 1,
    "repeats": 7,
    "beside": 1,
}
HEAD = "# our model\nstages: 2  # two\nmicrobatches: 4\n"
FILES = {
    "none": "",
    "others": "layers: [{forward_ns: 1, backward_ns: 1, input_bytes: 0, kept_bytes: 0}]  # kept\ndevice_tflops: 10  # kept\n",
    "a block": "measured:\n  microbatch: 9\n\n# kept\nlayers:\n- forward_ns: 1\n  backward_ns: 1\n  input_bytes: 0\n  kept_bytes: 0\n# kept\n",
}  # fmt: skip


def profiled(count: int = 3) -> ModelProfile:
    layer = {
        "kind": "Linear", "kept_bytes": 5, "input_bytes": 7, "keeps_input": False, "parameters_bytes": 1,
        "gradient_bytes": 2, "optimizer_bytes": 3, "split": True,
    }  # fmt: skip
    layers = [
        {**layer, "name": str(k), "forward_ns": [5, 3, 4], "backward_ns": [k, k, k], "weight_ns": [0, 0, 0]}
        for k in range(count)
    ]
    told: dict[str, Any] = {
        "layers": layers,
        "step_ns": [90],
        "device": "cpu",
        "threads": 1,
        "torch": "2",
        "loss": True,
    }
    return profile_of([told, told])


@pytest.mark.parametrize("case", FILES)
def test_layers_are_stored_and_comments_are_kept(case: str, tmp_path: Path) -> None:
    file = tmp_path / "span.yaml"
    file.write_text(HEAD + FILES[case])
    file.chmod(0o640)
    for count in (2, 3):
        store_profile(str(file), profiled(count), HOW)
        text = file.read_text()
        assert text.startswith(HEAD)
        assert text.count("# kept") == FILES[case].count("# kept")
        assert yaml.safe_load(text)["measured"] == HOW
        setting = load_span(file)
        assert sum(stage.forward_ns for stage in setting.stages) == 4 * count
        assert setting.stages[-1].static_bytes == 6
        assert setting.stages[0].input_bytes == 7
    assert file.stat().st_mode & 0o777 == 0o640
    assert [path.name for path in tmp_path.iterdir()] == ["span.yaml"]


def test_a_new_file_and_a_json_file_are_written(tmp_path: Path) -> None:
    new, other = tmp_path / "new.yaml", tmp_path / "span.json"
    store_profile(str(new), profiled(), HOW)
    assert new.read_text().startswith("# What `unidle span profile` measured")
    other.write_text(json.dumps({"batch": 4, "sites": [{"name": "a", "gpus": 2}]}))
    store_profile(str(other), profiled(), HOW)
    wanted = load_wanted(other)
    assert wanted.layers == 3
    assert wanted.measured is not None and wanted.measured.microbatch == 2


@pytest.mark.parametrize(
    ("text", "words"),
    [
        ("stage_ns: {forward: 1, backward: 1, weight: 1}\n", "stage_ns: is there together with layers"),
        ("cut: [1, 1]\n", "cut: has 2 layers, and 3 were measured"),
        ("sites: [\n", "span.yaml"),
        ("command: [python]\n", "command"),
    ],
)
def test_a_torn_or_foreign_file_is_refused_and_left_as_it_is(text: str, words: str, tmp_path: Path) -> None:
    file = tmp_path / "span.yaml"
    file.write_text(text)
    with pytest.raises(BadInput) as refused:
        store_profile(str(file), profiled(), HOW)
    assert words in str(refused.value)
    assert file.read_text() == text
    assert [path.name for path in tmp_path.iterdir()] == ["span.yaml"]


def test_repeats_of_processes_that_measured_at_once_are_taken_together() -> None:
    layer = profiled().layers[2]
    assert tuple(layer.forward) == (4, 3, 5)
    assert layer.layer.recompute_ns == 4
    assert layer.backward.value == 2


@pytest.mark.parametrize("count", [1, 2, 5, 6, 9, 30, 101])
def test_the_interval_holds_the_median_in_95_of_100_cases(count: int) -> None:
    chance, held = random.Random(count), 0
    for _ in range(600):
        found = median_of([chance.randint(0, 10**9) for _ in range(count)])
        assert found.low <= found.value <= found.high
        held += found.low <= 5 * 10**8 <= found.high
    if count >= 6:
        assert held > 0.92 * 600
