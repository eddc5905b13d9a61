"""Which rank, or which link, slows a gang down: the one that the others wait for. Pure.

In a gang that works in step everybody has the pace of the slowest, so steps do not tell who that is.
Waiting does: the slow rank waits least. Only time between steps of usual length counts, so that
evaluation, a checkpoint, a compilation or a collector's pause on one rank is not taken for slowness.
A rank is compared with those that do the same work (its peers).
"""

from __future__ import annotations

from collections import deque
from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from itertools import pairwise
from statistics import median
from typing import Final, NamedTuple

from unidle.guard.ends import Pair, at_fault
from unidle.jobs.vitals import GangVitals
from unidle.words import counted

_S: Final = 1_000_000_000
WINDOW_NS: Final = 20 * _S
NEED_NS: Final = 4 * _S  # of time between usual steps
NEED_STEPS: Final = 4
USUAL_TIMES: Final = 1.6  # of the median step: longer ones hold something else than a step
GAP: Final = 0.10  # others wait so much more of their time: a rank 25 % slower gives 0.20
STEADY: Final = 0.75  # in so many of the looks
SLOWER: Final = 1.2  # steps take so much longer than they did, where a link is slow
CALM: Final = 1.1  # while they take no longer than this, links are learned as they should be
RTT_TIMES: Final = 3
RTT_MORE_NS: Final = 3_000_000  # acknowledgements of small messages wait for company
BUSY_MORE: Final = 0.3  # of the time
_STEPS: Final = 512
_MEDIAN_STEPS: Final = 32


@dataclass(frozen=True, slots=True)
class Slow:
    """Who slows the gang: a rank, or what is between ``pairs`` of ranks. ``share``: of the others' time."""

    rank: int | None
    since_ns: int
    share: float
    text: str
    pairs: tuple[Pair, ...] = ()


class _Use(NamedTuple):
    """How a connection is used: part of the time that data was on its way, and its round trip."""

    busy: float
    rtt_ns: float


@dataclass(slots=True)
class _Window:
    from_ns: int
    at_ns: int
    waiting: dict[int, float]
    links: dict[Pair, _Use]


@dataclass(slots=True)
class _Calm:
    """How connections are used while steps are short: the most that was seen of each.

    Steps are known to be longer only some time after a link is slow, so what is seen counts when that has passed.
    """

    _known: dict[Pair, _Use] = field(default_factory=dict)
    _waiting: deque[tuple[int, dict[Pair, _Use]]] = field(default_factory=deque)

    def learn(self, now: dict[Pair, _Use], at_ns: int, after_ns: int) -> None:
        self._waiting.append((at_ns, now))
        while self._waiting[0][0] < at_ns - after_ns:
            for pair, use in self._waiting.popleft()[1].items():
                known = self._known.get(pair, use)
                self._known[pair] = _Use(max(use.busy, known.busy), max(use.rtt_ns, known.rtt_ns))

    def disturbed(self) -> None:
        """Steps are long now: of what waits only the first may be believed, and only where nothing is known."""
        while len(self._waiting) > 1:
            self._waiting.pop()

    def use(self, pair: Pair) -> _Use | None:
        first = self._waiting[0][1] if self._waiting else {}
        return self._known.get(pair, first.get(pair))


@dataclass(slots=True)
class SlowJudge:
    """Judges one attempt. ``groups`` are ranks that do the same work; each is compared with its group.

    ``nodes``: where each rank is.
    """

    groups: Sequence[Sequence[int]]
    nodes: Sequence[str] = ()
    _windows: deque[_Window] = field(default_factory=deque)
    _steps: deque[int] = field(default_factory=lambda: deque(maxlen=_STEPS))
    _best_ns: float = 0.0  # the shortest usual step so far
    _calm: _Calm = field(default_factory=_Calm)
    _since_ns: dict[tuple[int | None, tuple[Pair, ...]], int] = field(default_factory=dict)

    def judge(self, seen: GangVitals, steps_ns: Sequence[int]) -> Slow | None:
        """Who slows the gang as of this look; None while nobody does or too little was seen."""
        for at_ns in steps_ns:
            if not self._steps or at_ns > self._steps[-1]:
                self._steps.append(at_ns)
        span_ns = max(seen.at_ns - seen.from_ns, 1)
        waiting = {r.rank: min(r.waiting_ns / span_ns, 1.0) for r in seen.ranks}
        self._windows.append(_Window(seen.from_ns, seen.at_ns, waiting, _links(seen, span_ns)))
        step_ns = self._usual_step_ns()
        if step_ns is None:
            return None
        keep_ns = max(WINDOW_NS, int(2 * NEED_STEPS * step_ns))
        while self._windows and self._windows[0].at_ns < seen.at_ns - keep_ns:
            self._windows.popleft()
        usual = _latest(self._usual(step_ns, seen.at_ns - keep_ns), max(NEED_NS, int(NEED_STEPS * step_ns)))
        if not usual:
            return None
        self._best_ns = min(self._best_ns or step_ns, step_ns)
        link, rank = self._link(usual, step_ns), self._rank(usual)
        found = link if link is not None and link.rank is None else rank or link
        return self._dated(found, usual)

    def _usual_step_ns(self) -> float | None:
        gaps = [b - a for a, b in pairwise(self._steps)]
        return median(gaps[-_MEDIAN_STEPS:]) if len(gaps) >= NEED_STEPS else None

    def _usual(self, step_ns: float, from_ns: int) -> list[_Window]:
        """Looks that lie between steps of usual length."""
        steps = list(self._steps)
        usual = [(a, b) for a, b in pairwise(steps) if b > from_ns and b - a <= USUAL_TIMES * step_ns]
        if not usual:
            return []
        runs: list[list[int]] = []
        for a, b in usual:
            if runs and runs[-1][1] == a:
                runs[-1][1] = b
            else:
                runs.append([a, b])
        return [w for w in self._windows if any(a <= w.from_ns and w.at_ns <= b for a, b in runs)]

    def _rank(self, usual: Sequence[_Window]) -> Slow | None:
        worst: Slow | None = None
        for group in self.groups:
            means = {r: _mean([w.waiting[r] for w in usual if r in w.waiting]) for r in group}
            if len(means) < 2:
                continue
            slow = min(means, key=lambda r: (means[r], r))
            others = [means[r] for r in group if r != slow]
            gap = (
                min(others) - means[slow]
                if len(others) < 3
                else sorted(others)[len(others) // 4] - means[slow]
            )
            if gap < GAP or (worst is not None and gap <= worst.share):
                continue
            steady = [w for w in usual if slow in w.waiting and len(w.waiting) > 1]
            lowest = sum(
                w.waiting[slow] <= median(w.waiting[r] for r in group if r in w.waiting) for w in steady
            )
            if lowest < STEADY * len(steady):
                continue
            text = f"rank {slow} is slower than {counted(len(others), 'other')} that {'does' if len(others) == 1 else 'do'} the same, and waits {gap:.0%} of the time less"
            worst = Slow(slow, 0, gap, text)
        return worst

    def _link(self, usual: Sequence[_Window], step_ns: float) -> Slow | None:
        """Connections on which data takes much longer than it did while steps were short."""
        seen: dict[Pair, list[_Use]] = {}
        for window in usual:
            for pair, use in window.links.items():
                seen.setdefault(pair, []).append(use)
        now = {pair: _middle(uses) for pair, uses in seen.items() if 2 * len(uses) >= len(usual)}
        if step_ns <= CALM * self._best_ns:
            self._calm.learn(now, usual[-1].at_ns, max(WINDOW_NS // 2, int(_MEDIAN_STEPS * step_ns)))
            return None
        self._calm.disturbed()
        if step_ns < SLOWER * self._best_ns:
            return None
        bad = sorted(
            pair for pair, use in now.items() if (calm := self._calm.use(pair)) and _is_worse(use, calm)
        )
        if not bad:
            return None
        rank = at_fault(bad, [pair for pair in now if pair not in bad], self.nodes)
        names = ", ".join(f"{a}-{b}" for a, b in bad[:8]) + (", ..." if len(bad) > 8 else "")
        worst = max(bad, key=lambda pair: now[pair])
        before = self._calm.use(worst) or now[worst]
        text = (
            f"data between ranks {names} takes longer to arrive ({_words(now[worst])}; {_words(before)} before): "
            f"steps take {step_ns / self._best_ns:.1f} times as long"
        )
        return Slow(rank, 0, 1 - self._best_ns / step_ns, text, tuple(bad))

    def _dated(self, found: Slow | None, usual: Sequence[_Window]) -> Slow | None:
        if found is None:
            self._since_ns.clear()
            return None
        key = (found.rank, () if found.rank is not None else found.pairs)
        self._since_ns = {key: self._since_ns.get(key, usual[0].from_ns)}
        return replace(found, since_ns=self._since_ns[key])


def _latest(windows: Sequence[_Window], length_ns: int) -> Sequence[_Window]:
    """The last ones that are so long together; none where all of them are shorter."""
    covered_ns = 0
    for k, window in enumerate(reversed(windows), 1):
        covered_ns += window.at_ns - window.from_ns
        if covered_ns >= length_ns:
            return windows[-k:]
    return ()


def _links(seen: GangVitals, span_ns: int) -> dict[Pair, _Use]:
    """The connections between ranks in one look, of both directions the worse."""
    found: dict[Pair, _Use] = {}
    for rank in seen.ranks:
        for link in rank.links:
            if link.peer < 0:
                continue
            pair = (min(rank.rank, link.peer), max(rank.rank, link.peer))
            known = found.get(pair, _Use(0.0, 0))
            found[pair] = _Use(max(link.busy_ns / span_ns, known.busy), max(link.rtt_ns, known.rtt_ns))
    return found


def _middle(uses: Sequence[_Use]) -> _Use:
    return _Use(median(use.busy for use in uses), median(use.rtt_ns for use in uses))


def _is_worse(now: _Use, calm: _Use) -> bool:
    later = now.rtt_ns >= RTT_TIMES * calm.rtt_ns and now.rtt_ns - calm.rtt_ns >= RTT_MORE_NS
    return later or now.busy >= calm.busy + BUSY_MORE


def _words(use: _Use) -> str:
    return f"round trip {use.rtt_ns / 1e6:.1f} ms, busy {use.busy:.0%}"


def _mean(values: Sequence[float]) -> float:
    return sum(values) / len(values) if values else 0.0
