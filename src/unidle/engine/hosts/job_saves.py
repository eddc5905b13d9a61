"""Checkpoints of jobs on hosts: what boxes are asked to do for them, and what they find before a restart.

The box of rank 0 reads the newest checkpoint. A start waits for that where a bad one is to be moved away.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Final

import msgspec

from unidle.engine.local.ranks.saved_checkpoints import PATIENCE_NS
from unidle.engine.protocol import CheckpointLook, StartGang
from unidle.hub import frames

HOLD_DIR: Final = "UNIDLE_HOLD_DIR"
"""Where copies in memory are, if a job names a place. It is one of the host."""


@dataclass(slots=True)
class LookState:
    """Of one attempt: whether its box still reads, since when its start waits for that, and what was reported."""

    reads: bool = False
    since_ns: int | None = None
    reported: set[str] = field(default_factory=set)

    def holds(self, command: StartGang, now_ns: int) -> bool:
        """Whether the start waits."""
        if not self.reads or not command.spec.quarantine_bad:
            return False
        if self.since_ns is None:
            self.since_ns = now_ns
        return now_ns < self.since_ns + PATIENCE_NS

    def take(self, job: str, attempt: int, said: object) -> list[CheckpointLook]:
        """What a box reports of its look: each bad checkpoint once. What is not as agreed is passed over."""
        try:
            looked = msgspec.convert(said, frames.Looked)
        except msgspec.ValidationError:
            return []
        if looked.attempt != attempt:
            return []
        self.reads = not looked.over
        new = [bad for bad in looked.bad if bad.path not in self.reported]
        self.reported.update(bad.path for bad in new)
        return [CheckpointLook(job, attempt, bad.path, bad.because, bad.moved_to, bad.step) for bad in new]


def saves_of(command: StartGang, address: str, *, leader: bool) -> frames.SaveWish | None:
    """What the box of a node is to do for the job's checkpoints; None where that is nothing.

    ``address`` is the node's: there, holders of other hosts reach that of this one.
    """
    spec = command.spec
    look = leader and command.attempt > 1
    if spec.checkpoint_path is None or not (look or spec.checkpoint_memory):
        return None
    path = str(Path(spec.workdir).absolute() / spec.checkpoint_path)
    hold = address if spec.checkpoint_memory else ""
    return frames.SaveWish(path, look, look and spec.quarantine_bad, hold, spec.env.get(HOLD_DIR, ""))


def attempt_of(body: dict[str, Any]) -> int:
    """The attempt of which a ``seen`` speaks; 0, which is none, where that cannot be read."""
    attempt = body.get("attempt")
    return attempt if isinstance(attempt, int) else 0
