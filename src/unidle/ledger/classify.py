"""The decision function: what is known about a moment of a slice, and the one leaf it gets."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Final, Literal, TypeAlias

Down: TypeAlias = Literal["fault", "repair", "maintenance", "quarantine", "boot"]
Lost: TypeAlias = Literal["replayed", "preempted", "rolled_back", "no_artefact"]
Fill: TypeAlias = Literal["filled", "discarded"]
Serve: TypeAlias = Literal["within_slo", "slo_missed", "evicted_recompute", "warm_idle", "model_load"]
Held: TypeAlias = Literal[
    "gang_wait",
    "preflight",
    "start",
    "restore",
    "compile",
    "checkpoint",
    "data_stall",
    "evaluation",
    "hang",
    "preempting",
    "idle",
]
Step: TypeAlias = Literal[
    "useful", "bubble", "exposed_local", "exposed_wan", "straggler_wait", "host_gap", "recompute"
]
Free: TypeAlias = Literal["no_demand", "fragmented", "quota", "reserved", "gathering", "scheduler_latency"]


@dataclass(frozen=True, slots=True)
class Facts:
    """What is known about one moment of one slice; None is "nothing of that kind".

    ``free`` is why the slice would be free; it always has an answer, so every moment has a leaf.
    """

    covered: bool = True
    down: Down | None = None
    lost: Lost | None = None
    fill: Fill | None = None
    serve: Serve | None = None
    held: Held | None = None
    step: Step | None = None
    free: Free = "no_demand"


UNSEEN: Final = "unseen"


def classify(facts: Facts) -> str:
    """The leaf of a moment. Total; the first fact in the order of ``PRECEDENCE`` wins."""
    if not facts.covered:
        return UNSEEN
    return facts.down or facts.lost or facts.fill or facts.serve or facts.held or facts.step or facts.free
