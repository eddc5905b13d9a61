"""Which fault a seed is: at which call of which process, and of what kind."""

from __future__ import annotations

import random
from dataclasses import dataclass
from typing import Final

ROLES: Final = {"up": 10, "job-0/1/rank0": 4, "job-0/1/rank1": 3, "long/1/rank0": 2, "client": 4}
"""Weights. A supervisor's role is the place of its rank."""
CALLS: Final = {
    "up": {"open": 42, "write": 80, "sync": 18, "name": 24, "read": 40},
    "rank": {"open": 11, "write": 9, "sync": 5, "name": 3, "read": 2},
    "client": {"open": 63, "write": 68, "sync": 26, "name": 8, "read": 130},
}
"""About as many as a run without a fault has; a fault at a later call does not happen, and is counted as such."""
ADOPTING: Final = {"open": 22, "write": 55, "sync": 12, "name": 9, "read": 36}
"""The same of a controller that takes over."""
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
    number, kind, adopts = chance.randint(1, calls[call]), chance.choice(KINDS[call]), chance.random() < 0.25
    if role == "up" and adopts:
        number = (number - 1) % ADOPTING[call] + 1
    return Fault(role, call, number, kind, adopts)
