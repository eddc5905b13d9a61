"""The demo's training script: what was interrupted ends exactly like what was not."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from examples.gang import Gang

EXAMPLES = Path(__file__).resolve().parents[2] / "examples"
torch = pytest.importorskip("torch", reason="needs PyTorch (pip install unidle[train])")

SMALL = ["--steps", "18", "--checkpoint-every", "6", "--eval-every", "9", "--batch", "2", "--width", "32"]


def train(place: Path, ranks: int = 3) -> Gang:  # with two, sums are the same in any order
    return Gang(
        EXAMPLES / "gpt" / "train.py",
        [*SMALL, "--checkpoint-dir", str(place / "ckpt")],
        ranks,
        place,
        warm=True,
    )


@pytest.mark.slow
def test_killed_and_resumed_training_ends_like_undisturbed_training(
    tmp_path: Path, wait_until: Callable[..., Any]
) -> None:
    whole, broken = tmp_path / "whole", tmp_path / "broken"
    with train(whole) as gang:
        assert gang.codes() == [0, 0, 0], gang.printed(0)
        undisturbed = gang.printed(0)

    with train(broken) as gang:
        wait_until(lambda: "iter 14:" in gang.printed(0), 120, "step 14")
        for rank in (1, 0, 2):
            gang.kill(rank)
        gang.codes()
    # the newest checkpoint was torn by a machine that does not keep its promises
    newest = max((broken / "ckpt").glob("step_*.pt"))
    newest.write_bytes(newest.read_bytes()[:-5000])
    with train(broken) as gang:
        assert gang.codes() == [0, 0, 0], gang.printed(0)
        resumed = gang.printed(0)

    assert f"skipping {newest}" in resumed
    # how far the ranks came before the kill reached them is theirs to say
    assert f"from step {int(newest.stem.removeprefix('step_')) - 6}" in resumed
    assert last_line(resumed) == last_line(undisturbed)
    assert losses(undisturbed)[-1] < losses(undisturbed)[0] - 0.2
    one, other = (
        torch.load(place / "ckpt" / "step_000018.pt", weights_only=True) for place in (whole, broken)
    )
    assert one["model"].keys() == other["model"].keys()
    for name, value in one["model"].items():
        assert torch.equal(value, other["model"][name]), name
    for key, state in one["optimizer"]["state"].items():
        for field, value in state.items():
            assert torch.equal(value, other["optimizer"]["state"][key][field]), (key, field)


def last_line(text: str) -> str:
    return text.strip().splitlines()[-1]


def losses(text: str) -> list[float]:
    return [float(line.split()[3].rstrip(",")) for line in text.splitlines() if line.startswith("iter ")]
