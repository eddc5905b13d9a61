"""What a race does with its time: who continues, how many passes a round has, and what is left for changes that are not decided."""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from pathlib import Path

import pytest

from unidle.tune.edits import Edit
from unidle.tune.fixes.changes import TuneChange
from unidle.tune.trial.child import TrialRun
from unidle.tune.trial.judging import TrialBench
from unidle.tune.trial.marks import WindowTimes
from unidle.tune.trial.measure import LOOKS, pairs_needed, tail_of
from unidle.tune.trial.race import QueueTime, Race, Racer, TimedSteps
from unidle.tune.trial.results import TriedChange, TuneRun
from unidle.tune.trial.sampled import SampledProfile
from unidle.tune.trial.verify import Verdict
from unidle.tune.trial.workshop import Workshop

TAIL = tail_of(0)


def test_a_large_gain_needs_the_next_look_and_none_needs_more_than_there_are() -> None:
    assert pairs_needed([2.0, 2.0], 0.001, TAIL) == LOOKS[0] - 2
    assert pairs_needed([2.0] * 3, 0.001, TAIL) == LOOKS[1] - 3
    assert pairs_needed([1.0, 1.0], 0.001, TAIL) == 2 * LOOKS[-1]
    assert pairs_needed([1.5] * LOOKS[-1], 0.001, TAIL) == 2 * LOOKS[-1]


def test_more_noise_and_later_races_need_more_pairs() -> None:
    by_noise = [pairs_needed([1.3, 1.3], spread, TAIL) for spread in (0.01, 0.05, 0.1, 0.5)]
    assert by_noise == sorted(by_noise)
    assert by_noise[0] < by_noise[-1] == 2 * LOOKS[-1]
    assert pairs_needed([1.3, 1.3], 0.05, tail_of(4)) >= pairs_needed([1.3, 1.3], 0.05, TAIL)


def raced(*several: list[float]) -> list[Racer]:
    return [Racer(Path(str(number)), ratios) for number, ratios in enumerate(several)]


def plain_race(folder: Path, run_s: float = 1.0) -> Race:
    shop = Workshop(folder, ("true",), folder, time.monotonic() + 3600)
    return Race(shop, folder, TimedSteps(), [1.0, 1.02, 0.98], run_s)


def test_those_that_need_the_fewest_pairs_continue_if_there_is_no_time_for_all(tmp_path: Path) -> None:
    race = plain_race(tmp_path)
    sure, slight, doubtful = racers = raced([3.0, 3.01], [1.06, 1.061], [1.031, 1.03])
    assert race.promising(racers, 1000.0) == racers
    assert race.promising(racers, 5.0) == [sure]
    assert race.promising([doubtful, slight], 40.0) == [slight]


def test_without_time_for_a_round_no_one_continues(tmp_path: Path) -> None:
    race = plain_race(tmp_path)
    assert race.promising(raced([3.0, 3.0]), 2.0) == []
    assert race.promising(raced([3.0] * LOOKS[-1]), 1000.0) == []


def test_before_there_are_two_pairs_all_continue_for_which_there_is_time(tmp_path: Path) -> None:
    racers = raced([], [], [])
    assert plain_race(tmp_path, run_s=0.0).promising(racers, 1.0) == racers
    assert plain_race(tmp_path).promising(racers, 4.0) == racers[:2]


@pytest.mark.parametrize(("apart", "passes"), [(1.001, 1), (1.2, 2), (1.8, 3)])
def test_a_noisy_machine_gets_more_passes_in_a_round(tmp_path: Path, apart: float, passes: int) -> None:
    assert plain_race(tmp_path).passes(raced([2.0, 2.0 * apart, 2.0])) == passes


def test_the_time_in_the_queue_for_a_cpu_is_a_share_of_what_was_measured() -> None:
    queue = QueueTime()
    assert queue.share is None
    queue.add([WindowTimes(5, 4.0, 3.0, 3.0, 0.0), "it failed", WindowTimes(5, 4.0, 4.0, 4.0, 0.0)])
    assert queue.share == 1 / 8


def change(number: int) -> TuneChange:
    edits = (Edit("train.py", f"VALUE = {number}\n", f"VALUE = -{number}\n"),)
    return TuneChange("UDL206", "train.py", number, "same", "a test", edits)


@dataclass(slots=True)
class ScriptedRace(Race):
    """Gives each racer the ratios of its turn, and decides by the rules of a race that has time for no more."""

    turns: list[list[list[float]]] = field(default_factory=list)

    def run(self, racers: Sequence[Racer], _end: float, _done: Callable[[int], None] = lambda _round: None) -> None:  # fmt: skip
        for one, ratios in zip(racers, self.turns.pop(0), strict=True):
            one.ratios = one.whole = one.cpu = ratios
            one.verdict = "faster" if min(ratios) > 1.2 else ""


@dataclass(slots=True)
class TrustingBench(TrialBench):
    """Takes all changes for equal, as a test of what is done with the time needs no program."""

    same: Verdict = "kept"

    def _same_to_the_end(self, _stack: Sequence[TuneChange]) -> tuple[Verdict, str]:
        return self.same, "they differ"

    def profile(self, _folder: Path) -> SampledProfile:
        return SampledProfile()


def bench(folder: Path, *turns: list[list[float]]) -> TrustingBench:
    tree, scratch = folder / "tree", folder / "scratch"
    tree.mkdir()
    scratch.mkdir()
    (tree / "train.py").write_text("".join(f"VALUE = {number}\nOTHER = {number}\n" for number in range(1, 4)))
    shop = Workshop(tree, ("true",), scratch, time.monotonic() + 3600)
    race = ScriptedRace(shop, shop.copy(()), TimedSteps(), [1.0, 1.0, 1.0], turns=[*turns])
    return TrustingBench(shop, race, 0, lambda _text: None)


def first(one: TrustingBench) -> TuneRun:
    """A kept change, and one that was not decided."""
    race = one.race
    assert isinstance(race, ScriptedRace)
    race.turns[:0] = [[[2.0] * 3, [1.1] * 2], [[1.1] * 2], [[2.0] * 3]]
    found = one.built_in(TuneRun(TrialRun(0, 1.0, 1.0, "", "")), [change(1), change(2)], None)
    assert [each.verdict for each in found.tried] == ["kept", "inconclusive"]
    assert found.stack == (change(1),)
    return found


def test_what_is_left_of_the_time_decides_on_others_on_top_of_what_is_kept(tmp_path: Path) -> None:
    judge = bench(tmp_path, [[1.5] * 5], [[3.0] * 5])
    found = judge.rest(first(judge))
    assert [one.verdict for one in found.tried] == ["kept", "kept"]
    assert set(found.stack) == {change(1), change(2)}
    assert found.speedup is not None
    assert found.speedup.ratio == pytest.approx(3.0)
    assert "-1" in found.patch
    assert "-2" in found.patch


def test_a_later_stack_that_fails_leaves_the_earlier_one_as_it_was(tmp_path: Path) -> None:
    judge = bench(tmp_path, [[1.5] * 5], [[1.1] * 5], [[1.1] * 5])
    before = first(judge)
    found = judge.rest(before)
    assert found.stack == before.stack
    assert found.patch == before.patch
    assert [one.verdict for one in found.tried] == ["kept", "inconclusive"]


def test_without_changes_to_decide_on_nothing_is_raced(tmp_path: Path) -> None:
    judge = bench(tmp_path)
    decided = TriedChange(change(1), "", "rejected", "it is not faster by more than the noise", None)
    found = TuneRun(TrialRun(0, 1.0, 1.0, "", ""), tried=(decided,))
    assert judge.rest(found) is found
