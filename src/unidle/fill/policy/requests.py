"""Requests for prefill, and what was decided about them."""

from __future__ import annotations

from dataclasses import dataclass
from typing import NamedTuple


@dataclass(frozen=True, slots=True)
class PrefillRequest:
    """A prompt. ``deadline_ns``: until when its first token is due, None for whenever; a higher ``priority`` goes first."""

    number: int
    arrival_ns: int
    tokens: int
    deadline_ns: int | None = None
    priority: int = 0


class Booked(NamedTuple):
    """Pieces of one chunk on one stage, in one window: one after the other from ``start_ns`` to ``end_ns``."""

    stage: int
    chunk: int
    start_ns: int
    end_ns: int
    pieces: int


RawBooked = tuple[int, int, int, int, int]
"""The fields of :class:`Booked`: quicker to make while a decision is due."""


@dataclass(frozen=True, slots=True)
class Accepted:
    """Where a request was placed. ``release_ns``: when its keys and values have left the pipeline."""

    request: PrefillRequest
    pipeline: int
    begin_ns: int
    first_token_ns: int
    release_ns: int
    raw: tuple[RawBooked, ...]

    @property
    def booked(self) -> tuple[Booked, ...]:
        """Its pieces as they were placed; empty where it overtook others, whose places it may have."""
        return tuple(Booked(*each) for each in self.raw)


@dataclass(frozen=True, slots=True)
class NotPlaced:
    """Why no window takes a request: it goes to dedicated capacity."""

    request: PrefillRequest
    reason: str


Decision = Accepted | NotPlaced
