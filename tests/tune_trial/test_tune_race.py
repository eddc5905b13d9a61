"""Changes that are measured next to each other: what is kept, dropped and inconclusive, and steps that the parent times."""

from __future__ import annotations

import importlib.util
import random
import sys
import time
from pathlib import Path

import pytest

from unidle.tune.edits import Edit
from unidle.tune.fixes.changes import TuneChange
from unidle.tune.trial.marks import StepWatch, times_between
from unidle.tune.trial.measure import LEAST, LOOKS, is_hopeless, speed_up, t_quantile
from unidle.tune.trial.race import Race, Racer, TimedSteps, window_of
from unidle.tune.trial.workshop import Workshop

PROGRAM = "import time\ntime.sleep(WORK)\n"
STEPS = """
import torch
weight = torch.zeros(4, requires_grad=True)
optimizer = torch.optim.SGD([weight], lr=0.1)
for step in range(40):
    weight.sum().backward()
    optimizer.step()
"""


def workshop(folder: Path, text: str) -> Workshop:
    (folder / "tree").mkdir()
    (folder / "tree" / "train.py").write_text(text)
    return Workshop(folder / "tree", (sys.executable, "train.py"), folder, time.monotonic() + 3600)


def racer(shop: Workshop, old: str, new: str) -> Racer:
    edits = (Edit("train.py", old, new),)
    return Racer(shop.copy([TuneChange("UDL206", "train.py", 1, "same", "a test", edits)]))


def test_faster_change_is_kept_and_others_leave_the_race(tmp_path: Path) -> None:
    shop = workshop(tmp_path, PROGRAM.replace("WORK", "2.0"))
    faster = racer(shop, "2.0", "0.0")
    slower = racer(shop, "2.0", "4.0")
    broken = racer(shop, "time.sleep", "raise SystemExit(3) or ")
    race = Race(shop, shop.copy(()), TimedSteps())
    race.run([slower, broken], time.monotonic() + 3600)
    race.run([faster], time.monotonic() + 3600)
    assert (faster.verdict, slower.verdict, broken.verdict) == ("faster", "slower", "slower")
    assert broken.failed == "ended with 3"
    assert len(slower.ratios) < LOOKS[-1]
    assert len(faster.ratios) in LOOKS
    assert faster.speed is not None
    assert faster.speed.low > LEAST


def test_without_time_nothing_is_decided(tmp_path: Path) -> None:
    shop = workshop(tmp_path, "")
    one = Racer(shop.copy(()))
    Race(shop, shop.copy(()), TimedSteps()).run([one], time.monotonic() - 1)
    assert (one.verdict, one.ratios) == ("", [])


@pytest.mark.skipif(importlib.util.find_spec("torch") is None, reason="needs PyTorch")
def test_steps_are_timed_by_the_parent_and_the_program_stops(tmp_path: Path) -> None:
    shop = workshop(tmp_path, STEPS)
    whole = shop.run(shop.copy(()), None, StepWatch(tmp_path))
    assert not whole.failed
    assert [one.step for one in whole.marks] == [1, 2, 4, 8, 16, 32, 40]
    assert window_of(whole) == TimedSteps(2, 40, 40)
    stopped = shop.run(shop.copy(()), None, StepWatch(tmp_path, (3, 9), stop=True))
    assert stopped.stopped
    assert not stopped.failed
    times = times_between(*stopped.marks)
    assert times.steps == 6
    assert 0 < times.quiet_s <= times.wall_s
    assert times.setup_s > 0
    assert list(tmp_path.glob("*.steps")) == []


def test_quantiles_are_those_of_published_tables() -> None:
    for freedom, value in ((1, 63.657), (2, 9.925), (4, 4.604), (7, 3.499), (19, 2.861)):
        assert t_quantile(0.005, freedom) == pytest.approx(value, abs=2e-3)


@pytest.mark.parametrize("spread", [0.005, 0.05, 0.3])
def test_equal_programs_are_seldom_found_faster(spread: float) -> None:
    chance = random.Random(1)
    wrong = sum(_found_faster(chance, spread, 1.0) for _ in range(400))
    assert wrong <= 4
    assert sum(_found_faster(chance, min(spread, 0.05), 2.0) for _ in range(50)) >= 49


def _found_faster(chance: random.Random, spread: float, ratio: float) -> bool:
    """A race of one change with noise, by the rules of a race."""
    ratios: list[float] = []
    equal: list[float] = []
    while len(ratios) < LOOKS[-1]:
        first, other, after = (chance.lognormvariate(0, spread) for _ in range(3))
        equal.append(first / other)
        ratios.append(ratio * (first * other) ** 0.5 / after)
        speed, control = speed_up(ratios), speed_up(equal)
        if speed and control and len(ratios) in LOOKS and speed.is_real(control):
            return True
        if is_hopeless(ratios, spread):
            return False
    return False
