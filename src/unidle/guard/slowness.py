"""Which rank, or which link, slows a gang down: the one that the others wait for. Pure.

In a gang that works in step everybody has the pace of the slowest, so steps do not tell who that is.
Waiting does: the slow rank waits least. Only time between steps of usual length counts, so that
evaluation, a checkpoint, a compilation or a collector's pause on one rank is not taken for slowness.
A rank is compared with those that do the same work (its peers).
"""

from __future__ import annotations

from collections import Counter, deque
from collections.abc import Sequence
from dataclasses import dataclass, field
from itertools import pairwise
from statistics import median
from typing import Final

from unidle.jobs.vitals import GangVitals
from unidle.words import counted

_S: Final = 1_000_000_000
WINDOW_NS: Final = 20 * _S
NEED_NS: Final = 4 * _S  # of time between usual steps
NEED_STEPS: Final = 4
USUAL_TIMES: Final = 1.6  # of the median step: longer ones hold something else than a step
GAP: Final = 0.10  # others wait so much more of their time: a rank 25 % slower gives 0.20
STEADY: Final = 0.75  # in so many of the looks
QUEUED: Final = 0.7
SLOWER: Final = 1.5  # steps take so much longer than they did, where a link is slow
_STEPS: Final = 512


@dataclass(frozen=True, slots=True)
class Slow:
    """Who slows the gang: a rank, or the ranks at the ends of a link. ``share``: of the others' time."""

    rank: int | None
    since_ns: int
    share: float
    text: str
    peers: tuple[int, ...] = ()


@dataclass(slots=True)
class _Window:
    from_ns: int
    at_ns: int
    waiting: dict[int, float]
    queued: tuple[tuple[int, int], ...]


@dataclass(slots=True)
class SlowJudge:
    """Judges one attempt. ``groups`` are ranks that do the same work; each is compared with its group."""

    groups: Sequence[Sequence[int]]
    _windows: deque[_Window] = field(default_factory=deque)
    _steps: deque[int] = field(default_factory=lambda: deque(maxlen=_STEPS))
    _best_ns: float = 0.0  # the shortest usual step so far
    _since_ns: dict[tuple[int, ...], int] = field(default_factory=dict)

    def judge(self, seen: GangVitals, steps_ns: Sequence[int]) -> Slow | None:
        """Who slows the gang as of this look; None while nobody does or too little was seen."""
        for at_ns in steps_ns:
            if not self._steps or at_ns > self._steps[-1]:
                self._steps.append(at_ns)
        span_ns = max(seen.at_ns - seen.from_ns, 1)
        waiting = {r.rank: min(r.waiting_ns / span_ns, 1.0) for r in seen.ranks}
        queued = tuple(
            sorted({(min(r.rank, p), max(r.rank, p)) for r in seen.ranks for p in r.queued if p >= 0})
        )
        self._windows.append(_Window(seen.from_ns, seen.at_ns, waiting, queued))
        step_ns = self._usual_step_ns()
        if step_ns is None:
            return None
        keep_ns = max(WINDOW_NS, int(2 * NEED_STEPS * step_ns))
        while self._windows and self._windows[0].at_ns < seen.at_ns - keep_ns:
            self._windows.popleft()
        usual = _latest(self._usual(step_ns, seen.at_ns - keep_ns), max(NEED_NS, int(NEED_STEPS * step_ns)))
        if not usual:
            return None
        found = self._rank(usual) or self._link(usual, step_ns)
        self._best_ns = min(self._best_ns or step_ns, step_ns)
        return self._dated(found, usual)

    def _usual_step_ns(self) -> float | None:
        gaps = [b - a for a, b in pairwise(self._steps)]
        return median(gaps[-32:]) if len(gaps) >= NEED_STEPS else None

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
        """A link on which data waits nearly all the time, while on others it does not."""
        if not self._best_ns or step_ns < SLOWER * self._best_ns:
            return None
        counts = Counter(pair for w in usual for pair in w.queued)
        full = sorted(pair for pair, count in counts.items() if count >= QUEUED * len(usual))
        if not full:
            return None
        ends = Counter(end for pair in full for end in pair)
        most = max(ends.values())
        worst = [rank for rank, count in ends.items() if count == most]
        rank = worst[0] if len(worst) == 1 and most > 1 else None
        names = ", ".join(f"{a}-{b}" for a, b in full[:8])
        text = f"data waits to be sent between ranks {names}: steps take {step_ns / self._best_ns:.1f} times as long as before"
        return Slow(rank, 0, 1 - self._best_ns / step_ns, text, tuple(sorted(ends)))

    def _dated(self, found: Slow | None, usual: Sequence[_Window]) -> Slow | None:
        key = () if found is None else ((-1 if found.rank is None else found.rank), *found.peers)
        for other in self._since_ns.keys() - {key}:
            del self._since_ns[other]
        if found is None:
            return None
        since_ns = self._since_ns.setdefault(key, usual[0].from_ns)
        return Slow(found.rank, since_ns, found.share, found.text, found.peers)


def _latest(windows: Sequence[_Window], length_ns: int) -> Sequence[_Window]:
    """The last ones that are so long together; none where all of them are shorter."""
    covered_ns = 0
    for k, window in enumerate(reversed(windows), 1):
        covered_ns += window.at_ns - window.from_ns
        if covered_ns >= length_ns:
            return windows[-k:]
    return ()


def _mean(values: Sequence[float]) -> float:
    return sum(values) / len(values) if values else 0.0
