"""What the engine of hosts has to send: frames to peers, observations to the loop, and which answers are awaited."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Protocol

from unidle import wire
from unidle.engine.hosts.gang_state import GangState, RankState
from unidle.engine.protocol import Observation, RankMarks
from unidle.events.marks import Mark
from unidle.hub import frames
from unidle.hub.protocol import ClockOffset

_CANNOT_EXEC = 126  # of a shell

Answer = Callable[[frames.Done], None]
"""Takes the answer to a command; one that never comes has ``ok`` false and an empty ``why``."""


class HubFacts(Protocol):
    """The questions that the hub answers at once; :class:`unidle.hub.protocol.Hub` has them."""

    def offset(self, peer: int) -> ClockOffset | None: ...

    def acknowledged_ns(self, peer: int) -> int: ...

    def box_token(self, node: str, job: str) -> str: ...


@dataclass(slots=True)
class Outbox:
    """Collected while events and commands are worked off. ``fence`` is in each command.

    ``superseded``: a box or an agent has a newer controller. This one then starts nothing more.
    """

    fence: int
    now_ns: int = 0  # of what is worked off
    queued: list[tuple[int, frames.Command]] = field(default_factory=list)
    seen: list[Observation] = field(default_factory=list)
    superseded: bool = False
    _last_id: int = 0
    _awaited: dict[int, tuple[int, Answer]] = field(default_factory=dict)
    _of_peer: dict[int, set[int]] = field(default_factory=dict)

    def tell(self, peer: int, frame: frames.Command) -> None:
        self.queued.append((peer, frame))

    def ask(self, peer: int, answer: Answer | None = None) -> int:
        """The ``id`` of the next command to a peer; ``answer`` gets its one answer, also if the connection ends."""
        self._last_id += 1
        if answer is not None:
            self._awaited[self._last_id] = (peer, answer)
            self._of_peer.setdefault(peer, set()).add(self._last_id)
        return self._last_id

    def answered(self, peer: int, done: frames.Done) -> None:
        of, answer = self._awaited.get(done.id, (None, None))
        if of == peer and answer is not None:
            del self._awaited[done.id]
            self._of_peer[peer].discard(done.id)
            answer(done)

    def heed(self, done: frames.Done) -> bool:
        """Whether a command was refused because a newer controller is there."""
        if done.why == wire.FENCED:
            self.superseded = True
        return done.why == wire.FENCED

    def left(self, peer: int) -> None:
        """No further answer comes on this connection."""
        for number in sorted(self._of_peer.pop(peer, ())):
            _, answer = self._awaited.pop(number)
            answer(frames.Done(number, ok=False))

    def turn_away(self, gang: GangState, text: str, *, for_good: bool) -> None:
        """Report that no rank of an attempt is started: as of a command that cannot be run, or to be placed elsewhere."""
        for rank in gang.ranks:
            if not for_good:
                self.lost(gang, rank, text, refused=True)
                continue
            marks = (
                Mark(k="note", t=self.now_ns, text=text),
                Mark(k="exit", t=self.now_ns, code=_CANNOT_EXEC),
            )
            if (taken := rank.take(rank.known, marks)) is not None:
                self.seen.append(RankMarks(*gang.key, rank.rank, *taken))

    def lost(self, gang: GangState, rank: RankState, text: str, *, refused: bool = False) -> None:
        """Report that a rank has ended and left no exit, with the next ordinal. What its box has beyond is dropped."""
        mark = Mark(k="lost", t=self.now_ns, text=text, info={"refused": True} if refused else None)
        taken = rank.take(rank.known, (mark,))
        if taken is not None and taken[1]:
            self.seen.append(RankMarks(*gang.key, rank.rank, *taken))
