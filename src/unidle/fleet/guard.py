"""Policy of a fleet for sick nodes and devices."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Final, Literal

Rung = Literal["reset_gpu", "reboot", "replace"]
RUNGS: Final[tuple[Rung, ...]] = ("reset_gpu", "reboot", "replace")
"""The ladder, from below. The steps below these, another process or another gang, are the job's own restarts."""

Preflight = Literal["auto", "off", "quick", "standard"]
"""``auto``: the quick check before what has several ranks or GPUs."""
ProbationWork = Literal["none", "low"]
_S: Final = 1_000_000_000
_MINUTE: Final = 60 * _S
_HOUR: Final = 60 * _MINUTE


@dataclass(frozen=True, slots=True)
class Hook:
    """A command of the site, without a shell; ``{node}`` and ``{device}`` in its words are replaced.

    It is ended after ``timeout_ns``. One that does not succeed is tried ``tries`` times, ``pause_ns`` apart.
    """

    command: tuple[str, ...] = ()
    timeout_ns: int = 10 * _MINUTE
    tries: int = 2
    pause_ns: int = 10 * _S


@dataclass(frozen=True, slots=True)
class Out:
    """Limits on how much of the fleet unidle takes out of service.

    ``most`` nodes, or ``ppm`` of the fleet's (one, at least); ``tier_ppm`` of those under the same tier.
    """

    most: int | None = None
    ppm: int = 100_000
    tier_ppm: int = 500_000
    per_hour: int = 20  # remedies begun


@dataclass(frozen=True, slots=True)
class Breaker:
    """This many nodes that fail within ``within_ns`` have a common cause: then no node is removed."""

    nodes: int = 3
    ppm: int = 50_000
    within_ns: int = 10 * _MINUTE


@dataclass(frozen=True, slots=True)
class Lemon:
    """A node or device that fails ``times`` times within ``within_ns`` is left to the operator."""

    times: int = 3
    within_ns: int = 30 * 24 * _HOUR


@dataclass(frozen=True, slots=True)
class GuardPolicy:
    """See ``docs/how-to/sick-nodes.md``. ``prove`` is the check after a remedy, ``quick`` the one before a gang.

    With ``accept_unknown`` an undecided check after a remedy that finds no problem counts as passed. ``spares``:
    so many nodes of each kind, or ``spare_nodes``: these, are kept for gangs that lost something to a fault;
    filler that is in their way has at most ``spare_grace_ns`` to stop.
    """

    remedies: dict[Rung, Hook] = field(default_factory=dict)
    prove: Hook = Hook(tries=3)
    quick: Hook = Hook(timeout_ns=_MINUTE, tries=3)
    drain_ns: int = 5 * _MINUTE
    drain_hard_ns: int = 30 * _S
    suspect_ns: int = _HOUR
    quarantine_ns: int = 24 * _HOUR
    probation_ns: int = 10 * _MINUTE
    probation_every_ns: int = _MINUTE
    out: Out = Out()
    breaker: Breaker = Breaker()
    lemon: Lemon = Lemon()
    preflight: Preflight = "auto"
    preflight_age_ns: int = 10 * _MINUTE
    accept_unknown: bool = False
    spares: int = 0
    spare_nodes: tuple[str, ...] = ()
    spare_grace_ns: int = 2 * _S
    probation_work: ProbationWork = "none"

    @property
    def keeps_spares(self) -> bool:
        return bool(self.spares or self.spare_nodes)
