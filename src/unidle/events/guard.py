"""Events of sick attempts, nodes and devices, and of their remedies."""

from __future__ import annotations

from typing import Literal

import msgspec

from unidle.events import Base
from unidle.jobs import Reason

IncidentKind = Literal["exit", "hang", "cut", "slow", "gpu", "storage", "node"]
CareState = Literal[
    "healthy", "suspect", "draining", "quarantine", "remedy", "proving", "probation", "out", "maintenance"
]


class VerdictReached(Base, frozen=True, omit_defaults=True):
    """What is wrong with an attempt, and which rank and node it is attributed to, where that can be determined.

    ``onset_ns``: since when; ``signal_ns``: when the first sign was seen. ``acts``: something follows from it.
    """

    job: str
    attempt: int
    kind: IncidentKind
    onset_ns: int
    signal_ns: int
    acts: bool
    because: Reason
    rank: int | None = None
    node: str = ""


class VerdictOver(Base, frozen=True, omit_defaults=True):
    """The attempt works normally again: the problem of the last verdict is over."""

    job: str
    attempt: int
    because: Reason


class FaultSeen(Base, frozen=True, omit_defaults=True):
    """Something is wrong with a node, or with one of its devices (``device``: its id; empty: it concerns the node).

    ``kind``, ``code`` and ``action`` are those of ``unidle guard classify``. ``onset_ns``: when it happened, as
    far as that was reported; ``signal_ns``: when it was seen.
    """

    node: str
    kind: str
    action: str
    onset_ns: int
    signal_ns: int
    because: Reason
    device: str = ""
    code: int | None = None


class WatchSet(Base, frozen=True, omit_defaults=True):
    """From now on a detector monitors a node, or cannot (``why_not``): the health of what is not monitored is
    unknown.

    ``lost``: how much it had to pass over so far, because it came faster than it could be read.
    """

    node: str
    detector: str
    why_not: str = ""
    lost: int = 0


class CheckpointBad(Base, frozen=True, omit_defaults=True):
    """A checkpoint from which ``attempt`` could resume is bad."""

    job: str
    attempt: int
    path: str
    because: Reason
    step: int | None = None


class RemedySet(Base, frozen=True, omit_defaults=True):
    """The state of a sick node or device (``target``) from now on, until ``deadline_ns`` (0: no end).

    ``step``: of ``remedy``, ``quarantine`` and ``draining`` the rung of the ladder that is at work or comes next;
    of ``proving`` and ``probation`` the tier of the check that runs; of ``suspect`` what keeps it there. ``try_``
    counts tries of the step from 1. ``by``: the user who requested it; empty if unidle decided. A remedy or check
    is begun once for each such event: its position in the log is its name.
    """

    target: str
    state: CareState
    because: Reason
    step: str = ""
    try_: int = 0
    deadline_ns: int = 0
    by: str = ""


class CordonSet(Base, frozen=True, omit_defaults=True):
    """The user ``by`` keeps new jobs off a node, or allows them again; unidle itself never does the latter."""

    node: str
    on: bool
    by: str
    because: Reason


class SparesSet(Base, frozen=True, omit_defaults=True):
    """These nodes are kept as hot spares from now on; no others are."""

    nodes: tuple[str, ...]


class MaintenanceSet(Base, frozen=True, omit_defaults=True):
    """A node is to be worked on from ``from_ns`` to ``until_ns``; ``drain_by_ns``: what runs is stopped by then.

    With ``until_ns`` 0 what was planned for the node is off.
    """

    node: str
    from_ns: int
    until_ns: int
    drain_by_ns: int
    by: str


class NodeChecked(Base, frozen=True, omit_defaults=True):
    """A check of a node ended; ``fit`` is None if it is undecided."""

    node: str
    tier: str
    fit: bool | None
    because: str = ""


class LinksChecked(Base, frozen=True, omit_defaults=True):
    """A check between nodes ended; ``fit`` is None if it is undecided.

    ``bad``: nodes to take out of service, so that no bad link is left between the others. ``by``: who asked for it,
    where it was not for a gang; ``request`` is then the id of that request.
    """

    nodes: tuple[str, ...]
    fit: bool | None
    bad: tuple[str, ...] = ()
    because: str = ""
    by: str = ""
    request: str = ""


class PreflightEnded(Base, frozen=True, omit_defaults=True):
    """The nodes of an attempt were checked before it starts; without ``ok`` it does not start."""

    job: str
    attempt: int
    ok: bool
    because: Reason


class RankStack(msgspec.Struct, frozen=True, omit_defaults=True):
    """The place at which one or more ranks were found, with one entry for all of them.

    ``state``: a category of the profiler's budget (``collective``, ``data``, ``lock``, ...), or ``stopped``, ``ended``,
    ``waiting``, ``running`` or ``unknown``. ``at``: the place in words. ``frames``: root first, the deepest ones.
    ``why_not``: why there are no frames, or not all.
    """

    ranks: tuple[int, ...]
    state: str
    at: str = ""
    frames: tuple[str, ...] = ()
    why_not: str = ""


class StacksTaken(Base, frozen=True, omit_defaults=True):
    """All ranks of an attempt that hangs were sampled once, without a change to them.

    ``odd``: ranks that are not where the others wait. If no stack could be read, ``because`` has the reason.
    """

    job: str
    attempt: int
    because: Reason
    stacks: tuple[RankStack, ...] = ()
    odd: tuple[int, ...] = ()
