"""The life of a job as an explicit table of legal transitions, where its ranks run, and the reason of a decision."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Final, Literal

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


StopWhy = Literal[
    "rank_failed",
    "cancelled",
    "timeout",
    "service_stopped",
    "preempted",
    "moved",
    "idle",
    "hung",
    "node_sick",
    "disrupted",
]
"""Why an attempt is to be stopped."""


@dataclass(frozen=True, slots=True)
class RankPlace:
    """Rank ``rank`` runs on ``node`` with the slices ``slices`` (ids)."""

    rank: int
    node: str
    slices: tuple[str, ...]


NEVER_BY_QUEUE: Final = frozenset({"over_limit", "no_queue"})
NEVER: Final = NEVER_BY_QUEUE | {"never_fits"}
"""Codes of jobs that wait and that no state of the fleet and its queues lets start."""


@dataclass(frozen=True, slots=True)
class Reason:
    """A decision's reason, which ``unidle explain`` prints: a stable ``code``, one sentence, and the figures behind it."""

    code: str
    text: str
    figures: dict[str, int | float | str] = field(default_factory=dict)
