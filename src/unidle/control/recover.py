"""What follows for jobs from what was found when they are to go on."""

from __future__ import annotations

from pathlib import Path

from unidle.engine.protocol import CheckpointLook
from unidle.events import types as ev
from unidle.jobs import Reason


def bad_checkpoint(seen: CheckpointLook) -> ev.CheckpointBad:
    """The event that tells of it."""
    text = f"checkpoint {Path(seen.path).name} is bad: {seen.because}"
    if seen.moved_to:
        text += f"; moved to {seen.moved_to}"
    return ev.CheckpointBad(seen.job, seen.attempt, seen.path, Reason("checkpoint_bad", text), seen.step)
