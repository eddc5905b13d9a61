"""The engine of hosts in random interleavings of faults, by seed: no rank twice, no two attempts at once, no mark lost."""

from __future__ import annotations

from itertools import count

import pytest

import nightly
from engine_hosts.fencing_model import JOBS, Violation, World

SEEDS = nightly.rounds(1000, 50)


def test_no_gang_has_two_attempts_alive_and_each_comes_to_its_end() -> None:
    """One line of :class:`World` for each rule; the seed in the message repeats a fault."""
    attempts = 0
    for seed in range(SEEDS):
        world = World(seed)
        try:
            world.run()
        except Violation as error:
            raise AssertionError(f"seed {seed}: {error}") from error
        attempts += sum(len(world.log.jobs[job]) for job in JOBS)
    assert attempts > 3 * SEEDS  # the faults did end gangs


@pytest.mark.parametrize(
    ("broken", "first"),
    [
        ("a box counts from what it receives", 0),
        ("a box ignores its lease", 0),
        ("a hub counts from its ping", 100),
        ("a hub acknowledges without the store's token", 0),
        ("a new controller counts from before its start", 0),
    ],
)
def test_a_rule_that_is_broken_on_purpose_is_found(broken: str, first: int) -> None:
    for seed in count(first):
        try:
            World(seed, broken).run()
        except Violation as error:
            assert "while" in str(error) or "lost" in str(error)
            return
        assert seed < first + 100, "nothing was found"


def test_the_same_seed_is_the_same_run() -> None:
    def log(seed: int) -> str:
        world = World(seed)
        world.run()
        return repr(world.log)

    assert log(7) == log(7) != log(8)
