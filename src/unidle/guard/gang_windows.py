"""What a gang does between two observations: how long ranks wait, how links are used, and what is usual. Pure."""

from __future__ import annotations

from collections import deque
from collections.abc import Hashable, Mapping, Sequence
from dataclasses import dataclass, field
from operator import attrgetter
from statistics import median
from typing import Generic, NamedTuple, TypeVar

from unidle.jobs.vitals import GangVitals, Pair


class LinkUse(NamedTuple):
    """How a connection is used: part of the time that data was on its way, and its round trip."""

    busy: float
    rtt_ns: float


@dataclass(frozen=True, slots=True)
class GangWindow:
    """One observation. ``waiting`` and ``held``: parts of the time, by rank."""

    from_ns: int
    at_ns: int
    waiting: dict[int, float]
    held: dict[int, float]  # by a CPU quota
    links: dict[Pair, LinkUse] | None  # None: not looked at


_K = TypeVar("_K", bound=Hashable)


@dataclass(slots=True)
class Baseline(Generic[_K]):
    """The most that was seen of each thing (some figures) while steps were short.

    Steps are known to be longer only some time after something is slow, so what is seen counts when that has passed.
    """

    _known: dict[_K, tuple[float, ...]] = field(default_factory=dict)
    _waiting: deque[tuple[int, Mapping[_K, tuple[float, ...]]]] = field(default_factory=deque)

    def learn(self, now: Mapping[_K, tuple[float, ...]], at_ns: int, after_ns: int) -> None:
        self._waiting.append((at_ns, now))
        while self._waiting[0][0] < at_ns - after_ns:
            for key, figures in self._waiting.popleft()[1].items():
                self._known[key] = tuple(map(max, figures, self._known.get(key, figures)))

    def disturbed(self) -> None:
        """Steps are long now: of what waits only the first may be believed, and only where nothing is known."""
        while len(self._waiting) > 1:
            self._waiting.pop()

    def of(self, key: _K) -> tuple[float, ...] | None:
        first = self._waiting[0][1] if self._waiting else {}
        return self._known.get(key) or first.get(key)


def window_of(seen: GangVitals) -> GangWindow:
    span_ns = max(seen.at_ns - seen.from_ns, 1)
    links: dict[Pair, LinkUse] = {}
    for rank in seen.ranks:
        for link in rank.links:
            if link.peer < 0:
                continue
            pair = (min(rank.rank, link.peer), max(rank.rank, link.peer))
            known = links.get(pair, LinkUse(0.0, 0))  # of both directions the worse
            links[pair] = LinkUse(max(link.busy_ns / span_ns, known.busy), max(link.rtt_ns, known.rtt_ns))
    waiting, held = (
        {r.rank: min(ns(r) / span_ns, 1.0) for r in seen.ranks}
        for ns in (attrgetter("waiting_ns"), attrgetter("throttled_ns"))
    )
    return GangWindow(seen.from_ns, seen.at_ns, waiting, held, links if seen.links_read else None)


def link_uses(windows: Sequence[GangWindow]) -> dict[Pair, LinkUse]:
    """How the connections were used that were seen more than once."""
    seen: dict[Pair, list[LinkUse]] = {}
    read = [window.links for window in windows if window.links is not None]
    for links in read:
        for pair, use in links.items():
            seen.setdefault(pair, []).append(use)
    return {
        pair: LinkUse(
            sum(use.busy for use in uses) / len(read), median([u.rtt_ns for u in uses if u.rtt_ns] or [0])
        )
        for pair, uses in seen.items()
        if len(uses) > 1
    }


def latest(windows: Sequence[GangWindow], length_ns: int) -> Sequence[GangWindow]:
    """The last ones that are so long together; none where all of them are shorter."""
    covered_ns = 0
    for k, window in enumerate(reversed(windows), 1):
        covered_ns += window.at_ns - window.from_ns
        if covered_ns >= length_ns:
            return windows[-k:]
    return ()
