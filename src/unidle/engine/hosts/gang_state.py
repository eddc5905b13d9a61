"""One attempt of the engine of hosts: which ranks may run, which have begun, and what is still to be sent."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field

from unidle.engine.hosts.gang_looks import GangLooks
from unidle.engine.hosts.job_saves import LookState
from unidle.engine.protocol import LiveAttempt, StartGang, StopGang
from unidle.events.marks import Mark

ENDS = ("exit", "lost")

Key = tuple[str, int]  # job and attempt


@dataclass(slots=True)
class RankState:
    """``known`` is the ordinal of its next mark. ``may_run``: a box was given its start, or may have been by an earlier
    controller, so that only its own end or the end of the box's lease shows that it is dead. ``begun``: it has marks.
    ``sent`` is the connection on which its start was sent; ``at_ns`` the time of its newest mark, as far as this engine has it.
    """

    rank: int
    node: str
    known: int = 0
    ended: bool = False
    may_run: bool = False
    begun: bool = False
    sent: int | None = None
    at_ns: int = 0

    def take(self, first: int, marks: Sequence[Mark]) -> tuple[int, tuple[Mark, ...]] | None:
        """The marks that are new, and the ordinal of the first; None where some before them are missing."""
        if first > self.known:
            return None
        new = [] if self.ended else list(marks[self.known - first :])
        for place, mark in enumerate(new):
            if mark.k in ENDS:
                del new[place + 1 :]
                self.ended = True
                break
        at, self.known = self.known, self.known + len(new)
        if new:
            self.begun, self.at_ns = True, new[-1].t
        return at, tuple(new)


@dataclass(slots=True)
class GangState:
    """An attempt. ``halted``: why no rank of it is started any more. ``waits_since_ns``: since when some are to be."""

    job: str
    attempt: int
    ranks: list[RankState]
    command: StartGang | None = None
    halted: str = ""
    grace_ns: int | None = None  # of the stop that was asked for
    stop_sent: dict[str, tuple[int, int | None]] = field(
        default_factory=dict
    )  # by node: connection and grace
    prepare_sent: dict[str, int] = field(default_factory=dict)  # by node: connection
    prepared: dict[str, tuple[int, dict[str, object]]] = field(default_factory=dict)  # connection and answer
    refusals: int = 0  # of `prepare`
    port: int | None = None  # with which starts were sent
    waits_since_ns: int | None = None
    observed: GangLooks = field(default_factory=GangLooks)
    look: LookState = field(default_factory=LookState)  # at the newest checkpoint, before the start

    @property
    def key(self) -> Key:
        return self.job, self.attempt

    @property
    def nodes(self) -> list[str]:
        """In the order of ranks; the first one has rank 0."""
        return list(dict.fromkeys(rank.node for rank in self.ranks))

    @property
    def over(self) -> bool:
        return all(rank.ended for rank in self.ranks)

    @property
    def unsettled(self) -> bool:
        """Whether ranks are to be started."""
        return not self.halted and any(not rank.ended and not rank.begun for rank in self.ranks)

    def on(self, node: str) -> list[RankState]:
        """The ranks on a node that have not ended."""
        return [rank for rank in self.ranks if rank.node == node and not rank.ended]

    def risky(self, node: str) -> list[RankState]:
        """Those that may run there."""
        return [rank for rank in self.on(node) if rank.may_run]

    def stop(self, grace_ns: int) -> None:
        """Ask for a stop; a second one can only shorten the grace."""
        self.halted = self.halted or "it was stopped"
        self.grace_ns = grace_ns if self.grace_ns is None else min(self.grace_ns, grace_ns)


def fresh(command: StartGang) -> GangState:
    """An attempt that no controller has started before: its start is written to the log just now."""
    ranks = [RankState(place.rank, place.node) for place in command.places]
    return GangState(command.job, command.attempt, ranks, command)


def adopted(live: LiveAttempt) -> GangState:
    """An attempt of an earlier controller: each of its ranks may run until its box shows otherwise."""
    gang = fresh(live.command)
    for rank, known in zip(gang.ranks, live.marks_known, strict=False):
        rank.known, rank.begun = known, known > 0
    for rank, ended in zip(gang.ranks, live.ended, strict=False):
        rank.ended = ended
    for rank in gang.ranks:
        rank.may_run = True
    return gang


def never_started(command: StopGang) -> GangState:
    """An attempt of which nothing is known but its stop."""
    return GangState(command.job, command.attempt, [RankState(rank, "") for rank in range(command.ranks)])


def numbers(ranks: Iterable[RankState]) -> list[int]:
    return [rank.rank for rank in ranks]
