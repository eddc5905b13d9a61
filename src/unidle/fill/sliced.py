"""Work for bubbles, in pieces: what every filler implements, and what may be let in and out. Standard library only.

A filler runs in a process of its own next to a rank of training. That process lets it run while the rank waits, one piece at a time::

    piece = filler.next_piece(room)        # what it would run next, at best within the room
    if piece fits:                         # else it is not started, and asked for again in the next wait
        filler.run()                       # all of that piece, and not more

All calls come from one thread. An exception from any of them ends the filler, never training.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Protocol


@dataclass(frozen=True, slots=True)
class Room:
    """What is left of a wait. ``ns``: until it ends as forecast, at most the longest piece that is let in. ``memory_bytes``: what
    the filler may hold in all, between pieces and in them.
    """

    ns: int
    memory_bytes: int


@dataclass(frozen=True, slots=True)
class FillPiece:
    """What is run next. ``length_ns``: how long it takes on an undisturbed device; a piece that takes much longer is stopped.

    ``memory_bytes``: what the filler holds while it runs, in all. ``units``: how many of what the filler counts it completes, such as
    tokens or samples; 0 for one of several pieces of a unit. ``of``: the number of what it belongs to, such as a prompt; for pictures.
    """

    length_ns: int
    memory_bytes: int = 0
    units: int = 0
    of: int = 0


class Sliced(Protocol):
    """A filler. It is made in its process by calling its class with the arguments of the filler file, as keywords."""

    @property
    def finished(self) -> bool:
        """Nothing will be left to do. A filler that serves requests is never finished."""
        ...

    def next_piece(self, room: Room, /) -> FillPiece | None:
        """What :meth:`run` would run now; None where there is nothing at the moment (it is asked again). Must return at once.

        Without an effect: the same piece may be asked for again with less or more room, and then be a shorter or longer one.
        """
        ...

    def run(self) -> None:
        """Run the piece that :meth:`next_piece` returned last, to its end. It leaves no thread that computes on."""
        ...

    def give_up(self) -> int:
        """Drop what was begun and is not complete, with its memory: training needs it, or the filler is ended.

        Returns the nanoseconds of pieces whose work is lost by that. :meth:`next_piece` may follow, and begins that work again.
        """
        ...
