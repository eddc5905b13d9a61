"""The training loss that a rank prints goes with its step."""

from __future__ import annotations

import math
import time

import pytest
from hypothesis import given
from hypothesis import strategies as st

from unidle.engine.local.ranks.supervisor.progress import Scanner
from unidle.engine.local.ranks.supervisor.progress.loss import loss_in

TRAINING = {
    b"Train Epoch: 1 [640/6400 (10%)]\tLoss: 0.352716": 0.352716,
    b"step 250: train loss 2.4381, val loss 2.5102": 2.4381,
    b"step 250: val loss 2.5102, train loss 2.4381": 2.4381,
    b"iter 100: loss 3.1415, time 20ms, mfu 3.2%": 3.1415,
    b"{'loss': 2.3012, 'grad_norm': 1.2, 'learning_rate': 5e-05, 'epoch': 0.1}": 2.3012,
    b'{"epoch": 1, "train_loss": "1.25e-3", "train_ppl": 2}': 1.25e-3,
    b" iteration 20/100 | lm loss: 1.05E+01 | loss scale: 1.0 |": 10.5,
    b"step: 10  loss:  7.1263  memory: 0.5GiB": 7.1263,
    b"\x1b[31mstep: 10  \x1b[32mloss:  7.5\x1b[39m  tps: 3": 7.5,
    b"100/100 - 1s - loss: 0.2301 - accuracy: 0.93 - val_loss: 0.4": 0.2301,
    b"Train: 3 [ 100/1251 (  8%)]  Loss: 6.912 (6.95)  Time: 0.2s": 6.912,
    b"loss=tensor(0.75, grad_fn=<Mean>)": 0.75,
    b"epoch 1 loss -1.5": -1.5,
    b"  3%|3   | 30/1000 [00:02<01:10, 13.5it/s, loss=.25]": 0.25,
}


@pytest.mark.parametrize("line", TRAINING, ids=range(len(TRAINING)))
def test_the_usual_forms_are_read(line: bytes) -> None:
    assert loss_in(b"loss: 99\n" + line + b"\nTest set: Average loss: 0.01, Accuracy: 9\n") == TRAINING[line]


@pytest.mark.parametrize(
    "line",
    [
        b"val_loss: 0.3", b"Validation: loss 0.3", b"{'eval_loss': 0.3}", b"Test set: Average loss: 0.3", b"glossary: 3",
        b"loss function CrossEntropy", b"loss: 0x12", b"loss: tiny", b"no loss", b"weightloss 3", b"loss 12abc",
    ],
)  # fmt: skip
def test_what_is_no_training_loss_is_none(line: bytes) -> None:
    assert loss_in(line + b"\n") is None


def test_a_loss_that_is_no_number_is_told_as_such() -> None:
    assert math.isnan(loss_in(b"step 3 loss nan\n") or 0)
    [mark] = steps(Scanner("step ([0-9]+)"), b"step 3 loss -inf\n")
    assert ("v" in mark, mark["text"]) == (False, "loss -inf")


def steps(scanner: Scanner, data: bytes) -> list[dict[str, object]]:
    found = scanner.feed("out", data, 1_000_000_000) + scanner.flush(2_000_000_000)
    return [mark for mark in found if mark["k"] == "step"]


def test_a_step_has_the_loss_that_was_printed_with_it_and_no_older_one() -> None:
    scanner = Scanner("step ([0-9]+)")
    marks = steps(scanner, b"step 1 loss 0.5\nstep 2 loss 0.25\n")
    assert [(mark["n"], mark.get("v")) for mark in marks] == [(1, None), (2, 0.25)]
    [later] = steps(scanner, b"step 3\n")
    assert "v" not in later


def test_the_loss_on_the_line_after_the_step_goes_with_the_next() -> None:
    scanner = Scanner("step ([0-9]+)")
    scanner.feed("out", b"step 1\n", 10)
    scanner.feed("out", b"  loss: 4\n", 20)
    assert [mark.get("v") for mark in steps(scanner, b"step 2\n")] == [4.0]


@given(st.binary(max_size=6000))
def test_any_output_gives_a_number_or_none(data: bytes) -> None:
    value = loss_in(data)
    assert value is None or isinstance(value, float)


@pytest.mark.parametrize(
    "flood", [b"loss" * 50_000, b"loss    " * 9_000, b"loss 11111111111" * 9_000, b"train " * 9_000 + b"loss"]
)
def test_a_flood_costs_little(flood: bytes) -> None:
    scanner = Scanner("step ([0-9]+)")
    before = time.process_time()
    for k in range(20):
        scanner.feed("out", b"step %d " % k + flood + b"\n", k * 100_000_000)
    assert time.process_time() - before < 5  # a search that backtracks takes minutes
