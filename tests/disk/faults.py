"""Which fault a seed is: at which call of which process, and of what kind."""

from __future__ import annotations

import random
from dataclasses import dataclass
from typing import Final

ROLES: Final = {"up": 10, "job-0/1/rank0": 4, "job-0/1/rank1": 3, "long/1/rank0": 2, "client": 4}
"""Weights. A supervisor's role is the place of its rank."""
CALLS: Final = {
    "up": {"open": 42, "write": 80, "sync": 18, "name": 24, "read": 40},
    "rank": {"open": 13, "write": 10, "sync": 5, "name": 3, "read": 3},
    "client": {"open": 150, "write": 70, "sync": 26, "name": 50, "read": 400},
}
"""About as many as a run without a fault has; a fault at a later call does not happen, and is counted as such."""
KINDS: Final = {
    "open": ("eio", "full1", "full20", "kill", "cut"),
    "write": ("eio", "full1", "full20", "full60", "torn", "cut", "cut", "cut-after", "cut-after"),
    "sync": ("eio", "eio9", "eio30", "kill", "cut", "cut", "cut-after"),
    "name": ("eio", "full1", "full20", "kill", "cut", "cut-after", "cut-after"),
    "read": ("eio",),
}
_WEIGHTS: Final = {"open": 3, "write": 6, "sync": 4, "name": 3, "read": 1}


@dataclass(frozen=True, slots=True)
class Fault:
    role: str
    call: str
    number: int
    kind: str
    adopts: bool = False
    """Whether the process with role ``up`` takes over from a controller that was killed while ranks run."""

    def words(self) -> str:
        return f"{self.role} {self.call} {self.number} {self.kind}"

    @property
    def name(self) -> str:
        """The kind, for counts: how a call of a class failed."""
        kind = {"eio9": "eio, then cut", "eio30": "eio, then cut"}.get(
            self.kind, self.kind.rstrip("0123456789")
        )
        return f"{self.call} {kind}"


def of_seed(seed: int) -> Fault:
    """The fault of a seed; always the same one."""
    chance = random.Random(seed)
    (role,) = chance.choices(list(ROLES), list(ROLES.values()))
    calls = CALLS.get(role, CALLS["rank"])
    (call,) = chance.choices(list(_WEIGHTS), list(_WEIGHTS.values()))
    return Fault(
        role, call, chance.randint(1, calls[call]), chance.choice(KINDS[call]), chance.random() < 0.25
    )
