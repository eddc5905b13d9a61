"""The earliest fit of one prompt on one inference pipeline: each chunk on each stage, in windows only, piece by piece."""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Sequence
from dataclasses import dataclass
from typing import NamedTuple

from unidle.fill.model.prefill import PrefillChunk
from unidle.fill.policy.index import WindowIndex
from unidle.fill.policy.requests import Booked, PrefillRequest


@dataclass(slots=True)
class QueuedPrefill:
    """A prompt on its pipeline. ``from_ns``: not before, for the memory. ``left``: pieces of each chunk on each stage, ``[chunk][stage]``; ``ready``: when the chunk's
    input is there, None before the stage before has made it. ``kv_bytes``: of the fullest device.
    """

    request: PrefillRequest
    chunks: tuple[PrefillChunk, ...]
    left: list[list[int]]
    ready: list[list[int | None]]
    kv_bytes: int
    handoff_ns: int
    from_ns: int = 0
    begin_ns: int = 0
    first_token_ns: int = 0
    started: bool = False

    @property
    def done(self) -> bool:
        return not self.left[-1][-1]

    @property
    def release_ns(self) -> int:
        return self.first_token_ns + self.handoff_ns


def queued(
    request: PrefillRequest, chunks: tuple[PrefillChunk, ...], pieces: Sequence[int], memory: tuple[int, int]
) -> QueuedPrefill:
    """A prompt of which nothing was run; ``memory``: its bytes on a device, and nanoseconds of their hand-off."""
    return QueuedPrefill(
        request, chunks, [list(pieces) for _ in chunks], [[None] * len(pieces) for _ in chunks], *memory
    )


class Fit(NamedTuple):
    """``from_ns``: not earlier, for the memory; ``free``: until when each stage then has work."""

    from_ns: int
    begin_ns: int
    first_token_ns: int
    free: list[int]
    booked: list[Booked]


def fit(
    index: WindowIndex, devices: Sequence[int], free: Sequence[int], item: QueuedPrefill, from_ns: int
) -> Fit | None:
    """What is left of ``item``, not before ``from_ns`` and behind the cursors ``free``; None where the windows ahead do not hold it.

    A piece is one layer of a chunk (or all of them): it is not started unless the rest of a window holds it.
    """
    starts, ends = [index.starts[d] for d in devices], [index.ends[d] for d in devices]
    free = [max(each, from_ns) for each in free]
    at = [bisect_right(own, moment) for own, moment in zip(ends, free, strict=True)]
    booked: list[Booked] = []
    now, book = from_ns, booked.append
    for j, chunk in enumerate(item.chunks):
        piece, hop, lefts, known = chunk.layer_ns, chunk.hop_ns, item.left[j], item.ready[j]
        ready = from_ns
        for s, left in enumerate(lefts):
            if not left:
                arrives = known[s + 1] if s + 1 < len(lefts) else None
                ready = from_ns if arrives is None else arrives
                continue
            now = free[s]
            if now < ready:
                now = ready
            own_starts, own_ends, i = starts[s], ends[s], at[s]
            while True:
                if i >= len(own_ends):
                    return None
                if now < own_starts[i]:
                    now = own_starts[i]
                fits = (own_ends[i] - now) // piece
                if fits >= left:
                    end = now + left * piece
                    book(Booked(s, j, now, end, left))
                    now = end
                    break
                if fits > 0:
                    book(Booked(s, j, now, now + fits * piece, fits))
                    left -= fits
                i += 1
            at[s], free[s] = i, now
            ready = now + hop
    begin = booked[0].start_ns if booked else from_ns
    return Fit(from_ns, begin, now, free, booked)
