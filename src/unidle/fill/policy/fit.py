"""The earliest fit of one prompt on one inference pipeline: each chunk on each stage, in windows only, piece by piece."""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Sequence
from dataclasses import dataclass
from typing import NamedTuple

from unidle.fill.model.prefill import PrefillChunk
from unidle.fill.policy.index import WindowIndex
from unidle.fill.policy.requests import PrefillRequest, RawBooked
from unidle.fill.policy.windows import UNLIMITED


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
    booked: list[RawBooked]


def fit(
    index: WindowIndex,
    devices: Sequence[int],
    free: Sequence[int],
    item: QueuedPrefill,
    from_ns: int,
    limit_ns: int = UNLIMITED,
) -> PromptFit | None:
    """What is left of ``item``, from ``from_ns`` on and behind the cursors ``free``. None where the windows ahead do not hold it, or
    not until ``limit_ns``. A piece (a layer of a chunk, or all of them) is not started unless the rest of a window holds it.
    """
    starts, ends = [index.starts[d] for d in devices], [index.ends[d] for d in devices]
    free = [max(each, from_ns) for each in free]
    at = [bisect_right(own, moment) for own, moment in zip(ends, free, strict=True)]
    booked: list[RawBooked] = []
    now = from_ns
    for j, chunk in enumerate(item.chunks):
        _, length, hop = chunk
        known, ready = item.ready[j], from_ns
        for s, left in enumerate(item.left[j]):
            if not left:
                arrives = known[s + 1] if s + 1 < len(known) else None
                ready = from_ns if arrives is None else arrives
                continue
            now, i, own = free[s] if free[s] > ready else ready, at[s], ends[s]  # noqa: FURB136  # max is a call
            end = now + left * length
            if (
                i < len(own) and starts[s][i] <= now and end <= own[i]
            ):  # the most frequent case, without a call
                booked.append((s, j, now, end, left))
            else:
                found = _walk((starts[s], own), i, now, left, (s, j, length), booked)
                if found is None:
                    return None
                at[s], end = found
            free[s] = now = end
            ready = end + hop
        if now > limit_ns:
            return None
    return PromptFit(from_ns, booked[0][2] if booked else from_ns, now, free, booked)


def _walk(
    windows: tuple[list[int], list[int]],
    at: int,
    now: int,
    left: int,
    piece: tuple[int, int, int],
    booked: list[RawBooked],
) -> tuple[int, int] | None:
    """So many pieces (stage, chunk, nanoseconds) from ``now`` on; the last window and the end, None where they do not fit."""
    (starts, ends), (stage, chunk, length) = windows, piece
    while at < len(ends):
        if now < starts[at]:
            now = starts[at]
        fits = (ends[at] - now) // length
        if fits >= left:
            end = now + left * length
            booked.append((stage, chunk, now, end, left))
            return at, end
        if fits > 0:
            booked.append((stage, chunk, now, now + fits * length, fits))
            left -= fits
        at += 1
    return None
