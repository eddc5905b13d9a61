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


class PromptFit(NamedTuple):
    """``from_ns``: not earlier, for the memory; ``free``: until when each stage then has work."""

    from_ns: int
    begin_ns: int
    first_token_ns: int
    free: list[int]
    booked: list[Booked]


def fit(
    index: WindowIndex, devices: Sequence[int], free: Sequence[int], item: QueuedPrefill, from_ns: int
) -> PromptFit | None:
    """What is left of ``item``, not before ``from_ns`` and behind the cursors ``free``; None where the windows ahead do not hold it.

    A piece is one layer of a chunk (or all of them): it is not started unless the rest of a window holds it.
    """
    windows = [(index.starts[device], index.ends[device]) for device in devices]
    free = [max(each, from_ns) for each in free]
    at = [bisect_right(ends, moment) for (_, ends), moment in zip(windows, free, strict=True)]
    booked: list[Booked] = []
    now = from_ns
    for j, chunk in enumerate(item.chunks):
        known, ready = item.ready[j], from_ns
        for s, left in enumerate(item.left[j]):
            if not left:
                arrives = known[s + 1] if s + 1 < len(known) else None
                ready = from_ns if arrives is None else arrives
                continue
            now = max(free[s], ready)
            found = _walk(windows[s], at[s], now, left, (s, j, chunk.layer_ns), booked)
            if found is None:
                return None
            at[s], now = found
            free[s], ready = now, now + chunk.hop_ns
    begin = booked[0].start_ns if booked else from_ns
    return PromptFit(from_ns, begin, now, free, booked)


def _walk(
    windows: tuple[list[int], list[int]],
    at: int,
    now: int,
    left: int,
    piece: tuple[int, int, int],
    booked: list[Booked],
) -> tuple[int, int] | None:
    """So many pieces (stage, chunk, nanoseconds) from ``now`` on; the last window and the end, None where they do not fit."""
    (starts, ends), (stage, chunk, length) = windows, piece
    while at < len(ends):
        if now < starts[at]:
            now = starts[at]
        fits = (ends[at] - now) // length
        if fits >= left:
            end = now + left * length
            booked.append(Booked(stage, chunk, now, end, left))
            return at, end
        if fits > 0:
            booked.append(Booked(stage, chunk, now, now + fits * length, fits))
            left -= fits
        at += 1
    return None
