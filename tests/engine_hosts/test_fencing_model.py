"""The engine of hosts in random interleavings of faults, by seed: no rank twice, no two attempts at once, no mark lost."""

from __future__ import annotations

from collections.abc import Iterable, Iterator

import pytest

import nightly
from engine_hosts.fencing_model import World
from engine_hosts.sim_controller import JOBS, Violation
from unidle.engine.hosts.core import HostsCore
from unidle.engine.hosts.gang_moves import GangMoves
from unidle.engine.hosts.gang_state import GangState, RankState
from unidle.events.marks import Mark

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
        ("a hub counts from its ping", 50),
        ("a hub acknowledges without the store's token", 0),
        ("a new controller counts from before its start", 0),
    ],
)
def test_a_rule_that_is_broken_on_purpose_is_found(broken: str, first: int) -> None:
    assert any(
        "lost while it lives" in found or "while" in found
        for found in found_in(range(first, first + 300), broken)
    )


def found_in(seeds: Iterable[int], broken: str = "") -> Iterator[str]:
    """What was found wrong, until something was."""
    for seed in seeds:
        try:
            World(seed, broken).run()
        except Violation as error:
            yield str(error)
            return


def test_an_engine_that_starts_ranks_before_all_boxes_are_prepared_is_found(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    def begin(self: GangMoves, gang: GangState) -> None:
        """As soon as the first box is there."""
        node = gang.nodes[0]
        peers = {n: link.peer for n in gang.nodes if (link := self._boxes.get(n, gang.job)).peer is not None}
        for each in gang.nodes:
            self._maker.fetch(self._boxes.get(each, gang.job))
        if node in peers:
            self._prepare(gang, node, peers[node])
        if gang.prepared.get(node, (0, {}))[0] == getattr(peers.get(node), "id", None):
            gang.prepared.update({n: (0, {}) for n in peers if n not in gang.prepared})
            self._start(gang, {n: self._boxes.get(n, gang.job) for n in peers}, peers)

    monkeypatch.setattr(GangMoves, "_begin", begin)
    assert any("before" in found for found in found_in(range(20)))


def test_an_engine_that_takes_marks_twice_is_found(monkeypatch: pytest.MonkeyPatch) -> None:
    def take(self: RankState, first: int, marks: tuple[Mark, ...]) -> tuple[int, tuple[Mark, ...]]:
        at, self.known = self.known, self.known + len(marks)
        self.begun, self.ended = True, self.ended or marks[-1].k in ("exit", "lost")
        return at, tuple(marks)

    monkeypatch.setattr(RankState, "take", take)
    assert any("in the journal" in found for found in found_in(range(20)))


def test_an_engine_that_never_gives_up_a_host_is_found(monkeypatch: pytest.MonkeyPatch) -> None:
    """Its gangs hold their devices for ever."""
    monkeypatch.setattr(HostsCore, "_fence", lambda self, link, risky: None)
    monkeypatch.setattr(HostsCore, "_resume", lambda self, gang, peer, held: None)
    assert any("came to its end" in found for found in found_in(range(20)))


def test_the_same_seed_is_the_same_run() -> None:
    def log(seed: int) -> str:
        world = World(seed)
        world.run()
        return repr(world.log)

    assert log(7) == log(7) != log(8)
