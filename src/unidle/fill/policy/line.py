"""The queue of one inference pipeline: what each of its stages runs next, and the memory of what is there."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import NamedTuple

from unidle.fill.policy.fit import QueuedPrefill
from unidle.fill.policy.pipelines import InferencePipeline


class NextPiece(NamedTuple):
    """What a stage runs next: ``left`` pieces of ``piece_ns`` each, not before ``ready_ns``."""

    item: QueuedPrefill
    chunk: int
    piece_ns: int
    left: int
    ready_ns: int


class HeldKeys(NamedTuple):
    """Keys and values of request ``number`` on the fullest device, until they have been handed off."""

    release_ns: int
    size_bytes: int
    number: int


@dataclass(slots=True)
class FillLine:
    """``free``: of each stage, until when it has work. ``queue``: prompts in their order."""

    pipeline: InferencePipeline
    free: list[int]
    queue: list[QueuedPrefill] = field(default_factory=list)
    held: list[HeldKeys] = field(default_factory=list)

    def next_piece(self, stage: int) -> NextPiece | None:
        """In the order of the queue; None where the stage has nothing left, or its input is not made yet."""
        for item in self.queue:
            for j, lefts in enumerate(item.left):
                if lefts[stage]:
                    ready = item.ready[j][stage] if stage else item.from_ns
                    if ready is None:
                        return None
                    return NextPiece(item, j, item.chunks[j].layer_ns, lefts[stage], ready)
        return None

    def ran(self, piece: NextPiece, stage: int, count: int, now_ns: int) -> bool:
        """Enter what was run; whether the prompt is complete, and no longer in the queue."""
        item, lefts = piece.item, piece.item.left[piece.chunk]
        item.started = True
        lefts[stage] -= count
        if lefts[stage]:
            return False
        if stage + 1 < len(lefts):
            item.ready[piece.chunk][stage + 1] = now_ns + item.chunks[piece.chunk].hop_ns
            return False
        if not item.done:
            return False
        item.first_token_ns = now_ns
        self.queue = [each for each in self.queue if each is not item]
        self.held = [each for each in self.held if each.number != item.request.number]
        self.held.append(HeldKeys(item.release_ns, item.kv_bytes, item.request.number))
        return True

    def take_out(self, number: int) -> QueuedPrefill | None:
        """A prompt leaves with its memory; None if it is not in the queue."""
        item = next((each for each in self.queue if each.request.number == number), None)
        if item is not None:
            self.queue = [each for each in self.queue if each is not item]
            self.held = [each for each in self.held if each.number != number]
        return item
