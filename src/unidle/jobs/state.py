"""The life of a job as an explicit table of legal transitions."""

from __future__ import annotations

from typing import Literal

from unidle.errors import IllegalTransition

JobState = Literal["queued", "starting", "running", "restarting", "succeeded", "failed", "cancelled"]

TRANSITIONS: dict[JobState, frozenset[JobState]] = {
    "queued": frozenset({"starting", "failed", "cancelled"}),
    # back to queued: the service was stopped, or the gang was evicted before it ran
    "starting": frozenset({"running", "restarting", "queued", "failed", "cancelled"}),
    "running": frozenset({"restarting", "queued", "succeeded", "failed", "cancelled"}),
    "restarting": frozenset({"starting", "failed", "cancelled"}),
    "succeeded": frozenset(),
    "failed": frozenset(),
    "cancelled": frozenset(),
}

TERMINAL: frozenset[JobState] = frozenset(s for s, after in TRANSITIONS.items() if not after)


def transition(before: JobState, after: JobState) -> JobState:
    """Return ``after`` when the table allows it, else raise :class:`IllegalTransition`."""
    if after not in TRANSITIONS[before]:
        allowed = ", ".join(sorted(TRANSITIONS[before])) or "nothing, the state is final"
        raise IllegalTransition(
            f"a job cannot go from {before} to {after}", field="state", remedy=f"allowed: {allowed}"
        )
    return after
