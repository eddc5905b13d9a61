"""Each kind of fault really happens to a running gang, is stamped, and the job ends as an undisturbed one does."""

from __future__ import annotations

from pathlib import Path

import pytest

import needs
import nightly
from drill.drills import carried_out
from unidle.drill import fail

pytestmark = [needs.root, needs.shaping, needs.cgroups, pytest.mark.slow]


@pytest.fixture(scope="module")
def place(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """One for all, so that the run without faults of the same job is not repeated."""
    return tmp_path_factory.mktemp("drills")


def test_a_killed_rank_is_named_and_every_phase_is_stamped_in_order(place: Path) -> None:
    # Slow steps: the next save must not come before the kill.
    report = carried_out(place, fail.rank(2).at_step(35), nodes=1, sleep_s=0.1)
    (one,) = report.outcomes
    assert report.passed, report
    assert (one.named, one.correct) == ("rank:2", True)
    stamps = [
        one.ns.inject,
        one.ns.verdict,
        one.ns.kill,
        one.ns.rendezvous,
        one.ns.first_step,
        one.ns.caught_up,
    ]
    assert None not in stamps
    assert stamps[2:] == sorted(stamps[2:])  # type: ignore[type-var]
    assert report.attempts == 2
    assert 1 <= report.lost_steps <= 15  # since the checkpoint of step 30


def test_a_stopped_rank_is_named_and_a_fault_during_recovery_is_survived(place: Path) -> None:
    report = carried_out(
        place, fail.rank(1).stop().at_step(30), fail.rank(0).during_recovery(), fail.rank(2).kill().after_recovery(), nodes=1,
    )  # fmt: skip
    assert [one.named for one in report.outcomes] == ["rank:1", "rank:0", "rank:2"]
    assert report.passed, report
    assert report.attempts == 4


def test_of_two_faults_at_once_the_one_that_was_masked_says_so(place: Path) -> None:
    report = carried_out(place, fail.rank(1).stop().at_step(30), fail.rank(2).at_step(30), nodes=1)
    stopped, killed = report.outcomes
    assert report.passed, report
    assert killed.named == "rank:2"
    assert stopped.correct is None
    assert "another fault" in stopped.because


def test_a_node_that_is_cut_off_is_named_and_the_gang_comes_back(place: Path) -> None:
    report = carried_out(place, fail.node("n3").cut().at_step(30))
    (one,) = report.outcomes
    assert report.survived, report
    assert one.ns.verdict is not None
    assert one.ns.inject is not None
    assert one.ns.verdict - one.ns.inject < 60_000_000_000


def test_a_killed_controller_is_followed_by_another_and_the_gang_does_not_notice(place: Path) -> None:
    report = carried_out(place, fail.controller().at_step(30), nodes=1)
    (one,) = report.outcomes
    assert report.passed, report
    assert (one.named, report.attempts, report.lost_steps) == ("controller", 1, 0)


@pytest.mark.parametrize("how", nightly.sweep(["truncate", "flip", "remove"], always=["flip"]))
def test_a_damaged_checkpoint_is_found_and_the_one_before_it_is_used(place: Path, how: str) -> None:
    # at one time and in slow steps: on a busy machine the gang would save another one between the two
    report = carried_out(
        place, fail.checkpoint().corrupt(how).at_step(32), fail.rank(1).at_step(32), nodes=1, steps=50, sleep_s=0.15,
    )  # fmt: skip
    damaged, killed = report.outcomes
    assert report.survived, report
    assert killed.named == "rank:1"
    assert damaged.correct is (None if how == "remove" else True)
    assert report.lost_steps >= 10  # the newest could not be used


def test_a_full_and_a_slow_disk_do_not_end_the_job(place: Path) -> None:
    report = carried_out(
        place,
        fail.checkpoint().disk_full().for_s(1).at_step(15),
        fail.checkpoint().disk_slow(100_000).for_s(1).at_step(60),
    )
    assert report.survived, report
    assert [one.correct for one in report.outcomes] == [None, None]
    assert "unidle-drill" not in Path("/proc/self/mounts").read_text()


def test_a_slowed_rank_takes_longer_and_is_named(place: Path) -> None:
    report = carried_out(place, fail.rank(1).slow(2).for_s(8).at_step(30), steps=150, work_s=0.03)
    (one,) = report.outcomes
    assert report.survived, report
    assert one.named == "rank:1"
    assert report.attempts == 1
