"""Whatever a filler does, training goes on, and nothing of the filler stays."""

from __future__ import annotations

from pathlib import Path

import pytest

from fill_run.running import left_of_this_process, order, records, steps_of, supervised, training
from waiting import wait_until

pytestmark = pytest.mark.usefixtures("groups")


@pytest.mark.parametrize(
    ("how", "reason"),
    [
        ("hang", "has computed nothing"),
        ("loop", "has computed for"),
        ("crash", "signal 6"),
        ("fail", "it failed"),
        ("leak", "bytes of memory"),
    ],
)
def test_a_filler_that_fails_ends_and_training_goes_on(how: str, reason: str, tmp_path: Path) -> None:
    with training() as (process, rank):
        found, _, told = supervised(order("Bad", tmp_path / "out", how=how), rank, tmp_path)
        before = steps_of(rank)
        wait_until(lambda: steps_of(rank) > before + 3)
        assert process.poll() is None
    assert reason in found.failed[0], told
    assert found.ended == "all fillers ended"
    assert left_of_this_process() == []


def test_one_that_failed_is_started_again_and_continues(tmp_path: Path) -> None:
    with training() as (_, rank):
        wanted = order("Bad", tmp_path / "out", restarts=2, how="crash", at=4, units=5)
        found, _, told = supervised(wanted, rank, tmp_path)
    assert len(told) == 2
    assert not found.failed
    assert (tmp_path / "out").read_text().splitlines() == ["1", "2", "3", "4", "5"]


@pytest.mark.parametrize("how", ["overrun", "fork"])
def test_one_that_ignores_its_flag_runs_only_while_the_rank_waits(how: str, tmp_path: Path) -> None:
    with training() as (process, rank):
        found, fill, _ = supervised(
            order("Bad", tmp_path / "out", how=how),
            rank,
            tmp_path,
            lambda fill: bool(fill.fillers[0].frozen_when_busy),
        )
        assert process.poll() is None
    assert not found.failed
    assert "comput" in fill.fillers[0].frozen_when_busy
    assert left_of_this_process() == []


def test_a_fork_bomb_ends_at_its_limit(tmp_path: Path) -> None:
    with training() as (process, rank):
        found, _, _ = supervised(order("Bad", tmp_path / "out", how="bomb"), rank, tmp_path)
        assert process.poll() is None
    assert "Resource temporarily unavailable" in found.failed[0]
    assert left_of_this_process() == []


def test_a_filler_that_does_not_answer_is_ended(tmp_path: Path) -> None:
    with training() as (process, rank):
        found, _, _ = supervised(order("Deaf", tmp_path / "out"), rank, tmp_path)
        assert process.poll() is None
    assert "has computed for" in found.failed[0]


def test_a_class_that_is_no_filler_is_not_started_again(tmp_path: Path) -> None:
    with training() as (_, rank):
        found, _, told = supervised(order("Broken", tmp_path / "out", restarts=5), rank, tmp_path)
    assert len(told) == 1
    assert "Broken" in found.failed[0]


def test_fillers_leave_when_training_ends(tmp_path: Path) -> None:
    with training(steps=40) as (process, rank):
        found, _, _ = supervised(order("Counter", tmp_path / "out"), rank, tmp_path)
        assert process.wait() == 0
    assert found.ended == "training ended"
    assert not found.failed
    assert records(tmp_path)[-1]["kind"] == "end"
    assert left_of_this_process() == []
