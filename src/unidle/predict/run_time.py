"""How long a job will run, from those before it: order statistics, which assume no distribution.

Of ``n`` exchangeable durations and a next one, the next lies between the k-th smallest and the k-th
largest with probability ``(n + 1 - 2k) / (n + 1)``. Few durations do not support a high level: the
estimate then has the level that they do support. Source: David, Nagaraja, "Order Statistics", 3rd ed.,
section 7.3.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from typing import Final

from unidle.predict import Estimate

KEPT: Final = 64
"""Durations of one kind that count: the latest, for jobs change."""


def quantile_estimate(durations_ns: Sequence[int], by: str, level: float = 0.9) -> Estimate | None:
    """The median, and bounds of probability ``level`` or of what so few durations allow."""
    n = len(durations_ns)
    if not n:
        return None
    ordered = sorted(durations_ns)
    k = max(int((n + 1) * (1 - level) / 2 + 1e-9), 1)
    low, high = (ordered[k - 1], ordered[n - k]) if 2 * k <= n else (ordered[0], ordered[-1])
    reached = max(n + 1 - 2 * k, 0) * 1_000_000 // (n + 1)
    median = (ordered[(n - 1) // 2] + ordered[n // 2]) // 2
    return Estimate(median, low, high, reached, n, by)


def remaining_ns(durations_ns: Sequence[int], elapsed_ns: int) -> int:
    """The remaining time of a job that has run for ``elapsed_ns``: from the median of those that ran longer.

    A job that has run longer than all of them is assumed to be halfway through.
    """
    longer = sorted(d for d in durations_ns if d > elapsed_ns)
    return longer[len(longer) // 2] - elapsed_ns if longer else elapsed_ns


@dataclass(slots=True)
class RunHistory:
    """Durations by user and name, and by user. Built by adding what ended, in that order."""

    _by_name: dict[tuple[str, str], deque[int]] = field(default_factory=dict)
    _by_user: dict[str, deque[int]] = field(default_factory=dict)

    def add(self, user: str, name: str, ran_ns: int) -> None:
        """A job that succeeded after ``ran_ns`` under attempts."""
        self._by_name.setdefault((user, name), deque(maxlen=KEPT)).append(ran_ns)
        self._by_user.setdefault(user, deque(maxlen=KEPT)).append(ran_ns)

    @classmethod
    def recalled(cls, kept: Iterable[tuple[str, str | None, Sequence[int]]]) -> RunHistory:
        """The history that :meth:`kept` gave."""
        self = cls()
        for user, name, ran in kept:
            if name is None:
                self._by_user[user] = deque(ran, KEPT)
            else:
                self._by_name[user, name] = deque(ran, KEPT)
        return self

    def kept(self) -> list[tuple[str, str | None, Sequence[int]]]:
        """User, name (None: of any) and durations in their order: all that there is."""
        named: list[tuple[str, str | None, Sequence[int]]] = [
            (u, n, d) for (u, n), d in self._by_name.items()
        ]
        return named + [(user, None, ran) for user, ran in self._by_user.items()]

    def durations(self, user: str, name: str) -> tuple[Sequence[int], str]:
        """The durations that tell most about such a job, and what they are of."""
        whose = f"of {user}" if user else "without a user"
        same = self._by_name.get((user, name))
        if same:
            return same, f"jobs {name} {whose}"
        return self._by_user.get(user, ()), f"jobs {whose}"

    def estimate(self, user: str, name: str, level: float = 0.9) -> Estimate | None:
        """How long such a job will run; None where its user has no history."""
        ran, of = self.durations(user, name)
        if len(ran) == 1:  # one run says nothing of how much they differ
            of = f"one earlier {of.replace('jobs', 'job', 1)}"
        elif ran:
            of = f"{len(ran)} earlier {of}"
        return quantile_estimate(ran, of, level)
