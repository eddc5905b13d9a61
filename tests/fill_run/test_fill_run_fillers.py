"""What fillers make does not depend on how they were cut, let in and ended."""

from __future__ import annotations

import json
import random
from pathlib import Path
from typing import Any

import pytest
import torch

from unidle.errors import BadInput
from unidle.fill.fillers.batch import BatchInference
from unidle.fill.fillers.load import load
from unidle.fill.fillers.prefill import Prefill
from unidle.fill.fillers.preprocess import Preprocess
from unidle.fill.fillers.training import SmallTraining
from unidle.fill.fillers.transformer import Transformer, TransformerShape
from unidle.fill.sliced import Room, Sliced

MODEL = str(Path(__file__).parents[2] / "examples" / "span" / "model.py")
ROOM = Room(2_000_000, 1 << 30)
SMALL = {"layers": 2, "width": 32, "heads": 2}


def through(filler: Sliced, most: int = 10_000, give_up: float = 0.0) -> None:
    """Run it to its end, or ``most`` pieces; it is given up after this part of them."""
    chance = random.Random(1)
    for _ in range(most):
        if filler.finished:
            return
        assert filler.next_piece(ROOM) is not None
        filler.run()
        if chance.random() < give_up:
            assert filler.give_up() >= 0


def rows(path: Path) -> list[dict[str, Any]]:
    return sorted(
        (json.loads(line) for line in path.read_text().splitlines()), key=lambda row: next(iter(row.values()))
    )


def prefill(out: Path) -> Prefill:
    return Prefill(str(out), count=6, tokens=40, chunk=16, model=SMALL)


def evaluation(out: Path) -> BatchInference:
    return BatchInference(f"{__file__}:layers", f"{__file__}:item", str(out), 8, loss=f"{MODEL}:loss")


def population(out: Path) -> SmallTraining:
    trials = [{"lr": rate, "width": 16, "blocks": 1, "heads": 2, "length": 8} for rate in (0.1, 0.01)]
    return SmallTraining(
        f"{MODEL}:build", f"{__file__}:batch", f"{MODEL}:loss", str(out), trials, steps=3, microbatches=2
    )


def layers() -> torch.nn.Sequential:
    from unidle.fill.fillers.load import of_function

    made: torch.nn.Sequential = of_function(f"{MODEL}:build")(width=16, blocks=2, heads=2, length=8)
    return made


def item(number: int) -> tuple[torch.Tensor, torch.Tensor]:
    return batch(1, 0, 1, number)


def batch(step: int, index: int, size: int, seed: int) -> tuple[torch.Tensor, torch.Tensor]:
    from unidle.fill.fillers.load import of_function

    x, target = of_function(f"{MODEL}:batch")(step, index, size, seed, length=8)
    return x, target


@pytest.mark.parametrize("make", [prefill, evaluation, population])
def test_work_that_was_given_up_and_begun_again_has_the_same_result(make: Any, tmp_path: Path) -> None:
    through(make(tmp_path / "alone"))
    through(make(tmp_path / "given-up"), give_up=0.05)
    assert rows(tmp_path / "alone") == rows(tmp_path / "given-up")
    assert rows(tmp_path / "alone")


@pytest.mark.parametrize("make", [prefill, evaluation, population])
def test_a_filler_continues_where_one_before_it_was_killed(make: Any, tmp_path: Path) -> None:
    through(make(tmp_path / "alone"))
    out = tmp_path / "killed"
    for _ in range(40):
        through(make(out), most=11)
        with out.open("a") as file:
            file.write('{"torn')  # as by a kill in the middle of a line
    through(make(out))
    assert rows(out) == rows(tmp_path / "alone")


def test_prefill_gives_the_greedy_token_of_the_whole_prompt(tmp_path: Path) -> None:
    through(prefill(tmp_path / "out"))
    model = Transformer(TransformerShape(**SMALL))
    for row in rows(tmp_path / "out"):
        tokens = torch.randint(256, (40,), generator=torch.Generator().manual_seed(row["prompt"]))
        caches, x = model.caches(), model.embed(tokens, 0)
        for layer in range(2):
            x = model.layer(layer, x, caches)
        assert model.next_token(x) == row["next"]
        assert caches.size_bytes == model.kv_bytes(40)


def test_preprocessing_makes_each_line_once_whatever_ends_it(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    text = tmp_path / "text"
    lines = [f"line {number} {'x' * (number % 50)}".encode() for number in range(3000)]
    text.write_bytes(b"\n".join(lines) + b"\n")
    monkeypatch.setenv("UNIDLE_FILL_COUNT", "3")
    for index in range(3):
        monkeypatch.setenv("UNIDLE_FILL_INDEX", str(index))
        for _ in range(3):
            through(Preprocess(str(text), f"{__file__}:upper", str(tmp_path / "out-{index}")), most=2)
            with (tmp_path / f"out-{index}").open("ab") as file:
                file.write(b"more than was recorded")
        through(Preprocess(str(text), f"{__file__}:upper", str(tmp_path / "out-{index}")))
    made = b"".join((tmp_path / f"out-{index}").read_bytes() for index in range(3))
    assert made == b"".join(upper(line) for line in lines)


def upper(line: bytes) -> bytes:
    return line.upper() + b";"


@pytest.mark.parametrize(
    ("name", "arguments", "problem"),
    [
        ("nothing", {}, "is no filler"),
        ("/nowhere.py:Class", {}, "cannot be loaded"),
        ("json:JSONDecoder", {}, "has no finished"),
        ("json:Nothing", {}, "has no Nothing"),
        ("prefill", {"surprise": 1}, "cannot be made"),
        ("prefill", {"out": "/nowhere/out"}, "cannot be made"),
    ],
)
def test_a_filler_that_cannot_be_made_is_one_clear_error(
    name: str, arguments: dict[str, Any], problem: str
) -> None:
    with pytest.raises(BadInput, match=problem):
        load(name, arguments)
