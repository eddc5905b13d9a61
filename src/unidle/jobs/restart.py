"""Restart policy of a gang, and bounds of its size."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

RestartEvent = Literal["fail", "hang", "evict", "pending", "timeout"]
"""A rank failed; the gang hangs; it made room for another; it waited, or ran, longer than it may."""

RestartAction = Literal["restart", "abort", "requeue", "ignore"]


@dataclass(frozen=True, slots=True)
class RestartPolicy:
    """Action for one kind of event, of ranks of ``role`` if it is given.

    ``max``: maximum number of times, by default ``Restart.max``; ``backoff_s``: seconds before the first restart,
    by default ``Restart.backoff_s``.
    """

    event: RestartEvent
    action: RestartAction
    max: int | None = None
    backoff_s: float | None = None
    role: str = ""


@dataclass(frozen=True, slots=True)
class Restart:
    """Which failures are retried, how often and how soon.

    ``on`` holds ``"any"``, ``"signal"`` (killed by any signal), ``"exit"`` (any non-zero exit code), ``"lost"``
    (the rank's end was not seen), a signal name such as ``"SIGKILL"`` or an exit code. ``"hang"`` is a gang that
    makes no progress. With ``warm`` a Python process that has imported PyTorch is kept ready. The wait before try
    n (from 1) is ``backoff_s * 2 ** (n - 1)``, at most 300 s. The first of ``policies`` that matches takes
    precedence. ``insists``: ``on`` was given by the user, and its failures are retried even if the same error is
    expected again.
    """

    max: int = 0
    backoff_s: float = 1.0
    on: tuple[str | int, ...] = ("any",)
    warm: bool = False
    policies: tuple[RestartPolicy, ...] = ()
    insists: bool = False


@dataclass(frozen=True, slots=True)
class Role:
    """A named group of ranks: inclusive ranges of them."""

    name: str
    ranges: tuple[tuple[int, int], ...]

    def has(self, rank: int) -> bool:
        return any(first <= rank <= last for first, last in self.ranges)


@dataclass(frozen=True, slots=True)
class Elastic:
    """Minimum and maximum number of ranks of an elastic gang."""

    min: int
    max: int


def role_of(roles: tuple[Role, ...], rank: int) -> str:
    """The role of a rank; ``default`` for one that has none."""
    return next((role.name for role in roles if role.has(rank)), "default")
