"""Events that follow from what the search for a checkpoint found before a job resumes."""

from __future__ import annotations

from pathlib import Path

from unidle.engine.protocol import CheckpointLook
from unidle.events import types as ev
from unidle.jobs import Reason


def bad_checkpoint(seen: CheckpointLook) -> ev.CheckpointBad:
    """The event for a checkpoint that was found bad."""
    text = f"checkpoint {Path(seen.path).name} is bad: {seen.because}"
    if seen.moved_to:
        text += f"; moved to {seen.moved_to}"
    return ev.CheckpointBad(seen.job, seen.attempt, seen.path, Reason("checkpoint_bad", text), seen.step)
