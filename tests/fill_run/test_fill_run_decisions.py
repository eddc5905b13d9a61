"""Decisions around fillers that need no process: whether the kernel gives way, what a piece may do, what a trial shows."""

from __future__ import annotations

import math
import os
import random
from typing import Any

import pytest

from unidle.fill.runtime.conduct import PieceUse, judge
from unidle.fill.runtime.kernel import Scheduling, why_not
from unidle.fill.runtime.sample_steps import SampleSteps
from unidle.fill.runtime.trial import Trial
from unidle.predict.block_pairs import BlockPair, slow_down
from unidle.rank.waits import RankWait

IDLE, OTHER, BATCH = os.SCHED_IDLE, os.SCHED_OTHER, os.SCHED_BATCH
MS, S = 1_000_000, 1_000_000_000


@pytest.mark.parametrize(
    ("filler", "training", "idle", "reason"),
    [
        # in an idle branch below the common group
        (Scheduling("/fill/0", "", IDLE), Scheduling("/", "a", OTHER), {"/fill": "1"}, None),
        (Scheduling("/pod/fill/0", "", OTHER), Scheduling("/pod/job", "", OTHER), {"/pod": "0", "/pod/fill": "1"}, None),
        # a group of default weight gets its share, whatever the policy inside is
        (Scheduling("/fill/0", "", IDLE), Scheduling("/", "a", OTHER), {"/fill": "0", "/fill/0": "1"}, "no cpu.idle 1"),
        (Scheduling("/fill", "", IDLE), Scheduling("/job", "", OTHER), {}, "no cpu.idle 1"),
        # idle above the common group weighs both
        (Scheduling("/pod/fill", "", IDLE), Scheduling("/pod/job", "", OTHER), {"/pod": "1"}, "no cpu.idle 1"),
        (Scheduling("/fill", "", IDLE), Scheduling("/job/a", "", OTHER), {"/fill": "1", "/job": "1"}, "training itself"),
        (Scheduling("/fill", "", IDLE), Scheduling("/job", "", IDLE), {"/fill": "1"}, "training itself"),
        # one group
        (Scheduling("/job", "", IDLE), Scheduling("/job", "", OTHER), {}, None),
        (Scheduling("/job", "", BATCH), Scheduling("/job", "", OTHER), {}, "SCHED_IDLE"),
        (Scheduling("/", "autogroup-1", IDLE), Scheduling("/", "autogroup-2", OTHER), {}, "autogroup"),
        (Scheduling("/", "autogroup-1", IDLE), Scheduling("/", "autogroup-1", OTHER), {}, None),
        (Scheduling("/", "", IDLE), Scheduling("/job", "", OTHER), {}, "below that of the filler"),
    ],
)  # fmt: skip
def test_a_filler_is_refused_where_it_would_not_give_way(
    filler: Scheduling, training: Scheduling, idle: dict[str, str], reason: str | None
) -> None:
    found = why_not(filler, training, idle)
    assert (found is None) if reason is None else (found is not None and reason in found)


def test_a_piece_is_judged_by_what_it_computed_not_by_the_clock() -> None:
    assert judge(PieceUse(1 * MS, 2 * MS, 0), 0, 100, 0).what == "well"
    assert judge(PieceUse(1 * MS, 100 * MS, 0), 0, 100, 0).what == "freeze"
    assert judge(PieceUse(1 * MS, 3 * S, 0), 0, 100, 0).what == "end"
    assert judge(PieceUse(1 * MS, 0, 3 * S), 0, 100, 0).what == "end"
    assert judge(PieceUse(1 * MS, 0, 1 * S), 0, 100, 0).what == "well"
    assert judge(PieceUse(), 101, 100, 0).what == "end"
    assert judge(PieceUse(), 0, 100, 200 * MS).what == "freeze"


def played(slower: float, noise: float, pairs: int, seed: int = 1) -> Trial:
    """Steps of 100 ms, longer by ``slower`` while fillers run, with random noise; the first of a block is an outlier."""
    trial, chance, now, was_open = Trial(5, seed), random.Random(seed), 0.0, None
    while len(trial.pairs) < pairs:
        changed, was_open = trial.open != was_open, trial.open
        length = 100e6 * (1 + slower * trial.open) * math.exp(chance.gauss(0, noise))
        now += length * (3 if changed else 1)
        trial.step(int(now))
    return trial


def test_a_trial_finds_the_slow_down_within_its_interval() -> None:
    found = slow_down(played(0.05, 0.01, 30).pairs)
    assert found.known
    assert found.low_pct is not None
    assert found.high_pct is not None
    assert found.low_pct < 5 < found.high_pct
    assert found.high_pct - found.low_pct < 2


def test_95_percent_of_the_intervals_hold_the_truth() -> None:
    held = 0
    for seed in range(400):
        found = slow_down(played(0.0, 0.03, 8, seed).pairs)
        assert found.low_pct is not None
        assert found.high_pct is not None
        held += found.low_pct <= 0 <= found.high_pct
    assert 0.91 <= held / 400 <= 0.985


def test_too_few_or_too_wide_is_not_known() -> None:
    assert not slow_down([]).known
    assert not slow_down([BlockPair(1.0, 1.0, True)]).known
    assert not slow_down(played(0.0, 0.0, 3).pairs).known
    assert not slow_down(played(0.0, 0.2, 8).pairs).known


def test_both_orders_occur_and_a_missed_step_begins_the_pair_again() -> None:
    trial = played(0.0, 0.0, 30)
    assert {pair.first for pair in trial.pairs} == {True, False}
    before, order = len(trial.pairs), trial.open
    trial.step(10**12)
    trial.missed()
    assert trial.open == order
    now = 2 * 10**12
    for _ in range(2 * 6):
        now += 100 * MS
        trial.step(now)
    assert len(trial.pairs) == before
    trial.step(now + 100 * MS)
    assert len(trial.pairs) == before + 1


class Seen:
    """A filler whose rank waits in the second half of each step of 100 ns; ``of`` runs in its last quarter, from ``first`` on."""

    rank_number = 2

    def __init__(self, first: int) -> None:
        self.first, self.now = first, 0
        self.board: Any = self
        self.waiting_since_ns = 0

    def waits_from(self, _count: int) -> list[RankWait]:
        return [RankWait(0, at + 50, 50, 50) for at in range(0, self.now, 100)]

    def runs(self) -> list[tuple[int, int, int]]:
        return [(at + 40, at + 75, 7) for at in range(self.first, self.now, 100)]


def test_of_all_steps_the_last_without_and_the_fullest_with_fillers_are_kept_but_not_the_last_of_all() -> (
    None
):
    samples, filler = SampleSteps(), Seen(first=300)
    for number in range(1, 7):
        filler.now = number * 100
        samples.step(number, filler.now, [filler])
    before, after = samples.records()
    assert before == {
        "step": 3, "length_ns": 100, "filled": False, "ranks": [{"rank": 2, "waits": [[50, 100]], "runs": []}],
    }  # fmt: skip
    assert (after["step"], after["ranks"][0]["runs"]) == (4, [[50, 75, 7]])  # only what ran in the wait
    samples.missed()
    samples.step(9, 900, [filler])
    assert [one["step"] for one in samples.records()] == [3, 4]
