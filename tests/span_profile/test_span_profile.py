"""What a real process measures of real models, against figures worked out by hand."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

INSIDE = Path(__file__).with_name("inside.py")
ROWS, NARROW, WIDE = 6, 16, 48  # as in inside.py; values of 4 bytes
TIMES = ("forward_ns", "backward_ns", "weight_ns")


@pytest.fixture(scope="module")
def facts() -> Any:
    done = subprocess.run(
        [sys.executable, str(INSIDE)],
        capture_output=True,
        text=True,
        timeout=240,
        env={**os.environ, "OMP_NUM_THREADS": "1"},
    )
    assert done.returncode == 0, done.stderr
    return json.loads(done.stdout.splitlines()[-1])


def test_a_block_of_linear_and_gelu_keeps_what_lies_between_them(facts: Any) -> None:
    block, head = facts["block"]["layers"]
    assert block["input_bytes"] == ROWS * NARROW * 4
    assert block["kept_bytes"] == ROWS * WIDE * 4  # what enters GELU; its output is kept by the head
    assert block["keeps_input"]  # for the gradient of the weights
    assert (head["input_bytes"], head["kept_bytes"], head["keeps_input"]) == (ROWS * WIDE * 4, 0, True)


def test_parameters_gradients_and_optimizer_state_are_counted(facts: Any) -> None:
    block, _ = facts["block"]["layers"]
    count = NARROW * WIDE + WIDE
    assert block["parameters_bytes"] == block["gradient_bytes"] == count * 4
    assert (
        block["optimizer_bytes"] == 2 * count * 4 + 2 * 4
    )  # two moments, and a count of steps for each of two
    assert facts["single"]["layers"][0]["optimizer_bytes"] == 0  # SGD without momentum


def test_layers_cut_one_by_one_keep_their_inputs(facts: Any) -> None:
    layers = facts["single"]["layers"]
    assert [layer["kept_bytes"] for layer in layers] == [0, 0, 0]
    assert [layer["keeps_input"] for layer in layers] == [True, True, True]
    assert [layer["input_bytes"] for layer in layers] == [4 * ROWS * n for n in (NARROW, WIDE, WIDE)]


def test_what_a_layer_keeps_of_its_output_is_not_counted_again_as_the_next_ones_input(facts: Any) -> None:
    linear, relu, head = facts["relu"]["layers"]
    assert (linear["kept_bytes"], linear["keeps_input"]) == (0, True)
    assert (relu["kept_bytes"], relu["keeps_input"]) == (
        ROWS * WIDE * 4,
        False,
    )  # ReLU needs its output alone
    assert (head["kept_bytes"], head["keeps_input"]) == (0, False)


def test_times_are_there_and_a_large_layer_takes_longer_than_a_small_one(facts: Any) -> None:
    told = facts["sizes"]
    assert len(told["step_ns"]) == 9 and min(told["step_ns"]) > 0
    first, small, _, large = told["layers"]
    for name in TIMES:
        assert len(small[name]) == len(large[name]) == 9
        assert sorted(large[name])[4] > sorted(small[name])[4] > 0
    assert not any(first["backward_ns"])  # nobody needs the gradient of the data


def test_frozen_layers_have_no_backward(facts: Any) -> None:
    frozen, head = facts["frozen"]["layers"]
    assert not any(frozen["backward_ns"] + frozen["weight_ns"])
    assert not any(head["backward_ns"]) and all(head["weight_ns"])
    assert frozen["parameters_bytes"] == 80 and frozen["gradient_bytes"] == 0


def test_the_backward_in_two_gives_the_gradients_of_the_whole(facts: Any) -> None:
    assert facts["split"] == {"attention": True, "convolution": True}
    assert facts["cut"]


def test_a_weight_that_is_used_twice_is_measured_as_a_difference(facts: Any) -> None:
    once, twice = facts["again"]["layers"]
    assert once["split"] and not twice["split"]


def test_a_layer_that_makes_its_activations_again_is_measured(facts: Any) -> None:
    _, spared = facts["spared"]["layers"]
    assert min(spared["backward_ns"]) > 0
    assert spared["gradient_bytes"] == 80


@pytest.mark.parametrize(
    ("model", "words"),
    [
        ("opaque", "no nn.Sequential and has no nn.ModuleList"),
        ("skips", "something of an earlier layer"),
        ("twice", "do not run once each, in their order"),
        ("pairs", "passes on no tensor"),
        ("in place", "changes its input in place"),
    ],
)
def test_a_model_that_cannot_be_cut_says_why(facts: Any, model: str, words: str) -> None:
    told = facts["refused"][model]
    assert told["kind"] == "cannot"
    assert words in told["problem"]
    assert told["remedy"]


@pytest.mark.parametrize(
    ("case", "field", "words"),
    [
        ("number", "build", "does not return a torch.nn.Module"),
        ("raises", "build", "raised ValueError: no weights here (models.py:"),
        ("nowhere", "build", "has no such function"),
        ("no batch", "data", "does not give a tensor"),
        ("arguments", "build", "raised TypeError"),
        ("list", "data", "raised"),
        ("device", "--device", "cannot be used"),
        ("cuda", "--device", "cannot be used"),
    ],
)
def test_what_cannot_be_built_says_why(facts: Any, case: str, field: str, words: str) -> None:
    told = facts["load"][case]
    if case == "list":
        assert told == {}  # a list of layers is a model
        return
    assert told["field"] == field
    assert words in told["problem"]
    assert told["remedy"]
