"""Which rank, or which link, slows a gang down. Pure.

In a gang that works in step all ranks have the pace of the slowest, so steps do not show which one that is.
Waiting does: the slow rank waits least. Only time between steps of usual length counts, so that
evaluation, a checkpoint, a compilation or a collector's pause on one rank is not taken for slowness.
A rank is compared with those that do the same work (its peers), and with itself while steps were short:
the one that writes the log is always a little behind. A link is compared with itself: what is sent on it
takes longer to be acknowledged.
"""

from __future__ import annotations

from bisect import bisect_left, bisect_right
from collections import deque
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass, field, replace
from itertools import pairwise
from statistics import fmean, median
from typing import Final

from unidle.guard.fault_location import at_fault
from unidle.guard.gang_windows import Baseline, GangWindow, LinkUse, latest, link_uses, window_of
from unidle.jobs.vitals import GangVitals, Pair
from unidle.words import counted

_S: Final = 1_000_000_000
WINDOW_NS: Final = 20 * _S
NEED_NS: Final = 4 * _S  # of time between usual steps
NEED_STEPS: Final = 4
USUAL_TIMES: Final = 1.6  # of the median step: longer ones hold something else than a step
LOOSE_TIMES: Final = 4.0  # where steps are too uneven for that: a quota lets a rank run in bursts
GAPS: Final = (
    (1, 0.15),
    (3, 0.08),
)  # others wait so much more of their time, over so many times NEED: 25 % slower gives 0.20
LOOSE_GAP: Final = (1.5, 0.15)  # and then in most looks
LOOSE_PART: Final = 0.7
GAP_MORE: Final = 0.07  # than they did while steps were short
GAP_ALWAYS: Final = 0.17  # so much is reported even without a comparison
SHORT_WEIGHS: Final = 2  # times a long step, where the first long one is looked for
STEADY: Final = 0.75  # in so many of the looks
CONFIRMED: Final = 2  # looks in a row
RANK_SLOWER: Final = 1.08  # steps take so much longer than they did, where a rank is slow
LINK_SLOWER: Final = 1.2
CALM: Final = 1.08  # while they take no longer than this, it is learned what is usual
HELD: Final = 0.05  # of the time, and it is worth a word
RTT_TIMES: Final = 3
RTT_MORE_NS: Final = 3_000_000  # acknowledgements of small messages wait for company
BUSY_MORE: Final = 0.3  # of the time
BUSY_TOO: Final = 0.12  # where round trips are longer: else they are of no weight
AS_BAD: Final = 0.4  # of the worst link: what is less bad suffers from that one
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


@dataclass(slots=True)
class SlowJudge:
    """Judges one attempt. ``groups`` are ranks that do the same work; each is compared with its group.

    ``nodes``: where each rank is.
    """

    groups: Sequence[Sequence[int]]
    nodes: Sequence[str] = ()
    _windows: deque[GangWindow] = field(default_factory=deque)
    _steps: deque[int] = field(default_factory=lambda: deque(maxlen=_STEPS))
    _best_ns: float = 0.0  # the shortest usual step so far
    _disturbed_ns: int = 0  # when steps were long for the last time
    _links: Baseline[Pair] = field(default_factory=Baseline)
    _gaps: Baseline[int] = field(default_factory=Baseline)
    _standing: Slow | None = None
    _times: int = 0  # looks in a row that found it

    def judge(self, seen: GangVitals, steps_ns: Sequence[int]) -> Slow | None:
        """What slows the gang as of this look; None if nothing does, or too little was seen."""
        for at_ns in steps_ns:
            if not self._steps or at_ns > self._steps[-1]:
                self._steps.append(at_ns)
        self._windows.append(window_of(seen))
        if len(self._steps) <= NEED_STEPS:
            return None
        steps = list(self._steps)
        recent = max(len(steps) - bisect_left(steps, seen.at_ns - NEED_NS), NEED_STEPS)
        gaps = [b - a for a, b in pairwise(steps[-max(recent, _MEDIAN_STEPS) - 1 :])]
        step_ns = median(gaps[-recent:])
        need_ns = max(NEED_NS, int(NEED_STEPS * step_ns))
        keep_ns = max(WINDOW_NS, 4 * need_ns)
        while self._windows and self._windows[0].at_ns < seen.at_ns - keep_ns:
            self._windows.popleft()
        long_ns = median(gaps[-_MEDIAN_STEPS:])
        self._best_ns = min(self._best_ns or long_ns, long_ns)
        between = self._usual(step_ns, seen.at_ns - keep_ns, USUAL_TIMES)
        usual = latest(between, need_ns)
        late = latest(list(self._windows), need_ns)
        links = link_uses(late)
        self._learn(usual, late, links, max(step_ns, long_ns), seen.at_ns)
        if not usual or usual[0].from_ns < seen.at_ns - 2 * need_ns:
            rank = self._unevenly(step_ns, seen.at_ns - 2 * need_ns, need_ns)
        else:
            rank = self._evenly(between, usual, step_ns, need_ns)
        link = self._link(links, step_ns)
        found = link if link is not None and link.rank is None else rank or link
        return self._dated(found, (usual or list(self._windows))[0].from_ns, step_ns)

    def _learn(
        self,
        usual: Sequence[GangWindow],
        late: Sequence[GangWindow],
        links: Mapping[Pair, LinkUse],
        step_ns: float,
        at_ns: int,
    ) -> None:
        """What is usual, while steps are short: from looks since they became so."""
        after_ns = max(WINDOW_NS // 2, int(_MEDIAN_STEPS * step_ns))
        if step_ns > CALM * self._best_ns:
            self._disturbed_ns = at_ns
            self._links.disturbed()
            self._gaps.disturbed()
        elif usual and min(usual[0].from_ns, late[0].from_ns) >= self._disturbed_ns:
            self._links.learn(links, at_ns, after_ns)
            gaps = {rank: (gap,) for rank, gap in self._gaps_of(usual).items()}
            self._gaps.learn(gaps, at_ns, after_ns)
        elif not usual and not self._disturbed_ns:  # better than nothing, should a link become slow soon
            begun = link_uses([window for window in self._windows if window.from_ns >= self._steps[0]])
            if begun:
                self._links.learn(begun, at_ns, after_ns)

    def _evenly(
        self, between: Sequence[GangWindow], usual: Sequence[GangWindow], step_ns: float, need_ns: int
    ) -> Slow | None:
        """The slow rank, by looks between usual steps: a strong sign soon, a weak one after longer."""
        now = self._gaps_of(usual)  # what was so for long has to be so still
        spans = [(latest(between, int(times * need_ns)), least) for times, least in GAPS]
        ranks = (self._rank(span, self._gaps_of(span), now, step_ns, least) for span, least in spans if span)
        return next((one for one in ranks if one is not None), None)

    def _unevenly(self, step_ns: float, from_ns: int, need_ns: int) -> Slow | None:
        """The slow rank where hardly any look lies between usual steps only."""
        times, least = LOOSE_GAP
        looks = latest(self._usual(step_ns, from_ns, LOOSE_TIMES), int(times * need_ns))
        gaps = self._gaps_in_most(looks)
        return self._rank(looks, gaps, gaps, step_ns, least) if looks else None

    def _usual(self, step_ns: float, from_ns: int, times: float) -> list[GangWindow]:
        """Looks that lie between steps of usual length, or up to so many times that."""
        steps = list(self._steps)
        late = steps[max(bisect_right(steps, from_ns) - 1, 0) :]
        begins: list[int] = []  # of runs of such steps, one behind the other
        ends: list[int] = []
        for a, b in pairwise(late):
            if b - a > times * step_ns:
                continue
            if ends and ends[-1] == a:
                ends[-1] = b
            else:
                begins.append(a)
                ends.append(b)
        found = []
        for window in self._windows:
            run = bisect_right(begins, window.from_ns) - 1
            if run >= 0 and window.at_ns <= ends[run]:
                found.append(window)
        return found

    def _gaps_of(self, usual: Sequence[GangWindow]) -> dict[int, float]:
        """By how much of the time each rank waits less than those that do the same."""
        found = {}
        for group in self.groups:
            means = {
                r: fmean(mine) for r in group if (mine := [w.waiting[r] for w in usual if r in w.waiting])
            }
            ordered = sorted((mean, rank) for rank, mean in means.items())
            least = 0 if len(ordered) < 4 else (len(ordered) - 1) // 4
            for k, (mean, rank) in enumerate(ordered):
                if len(ordered) > 1:
                    found[rank] = _other(ordered, k, least) - mean
        return found

    def _gaps_in_most(self, looks: Sequence[GangWindow]) -> dict[int, float]:
        """The same, as most of the looks have it."""
        each: dict[int, list[float]] = {}
        for group in self.groups:
            for look in looks:
                ordered = sorted((look.waiting[rank], rank) for rank in group if rank in look.waiting)
                others = len(ordered) - 1
                for k, (waited, rank) in enumerate(ordered if others else ()):
                    middle = (_other(ordered, k, (others - 1) // 2) + _other(ordered, k, others // 2)) / 2
                    each.setdefault(rank, []).append(middle - waited)
        return {rank: sorted(gaps, reverse=True)[int(LOOSE_PART * len(gaps))] for rank, gaps in each.items()}

    def _rank(
        self, usual: Sequence[GangWindow], gaps: Mapping[int, float], now: Mapping[int, float], step_ns: float, least: float
    ) -> Slow | None:  # fmt: skip
        gaps, worst = {rank: min(gap, now.get(rank, gap)) for rank, gap in gaps.items()}, None
        for group in self.groups:
            mine = [rank for rank in group if rank in gaps]
            if len(mine) < 2:
                continue
            slow = max(mine, key=lambda rank: (gaps[rank], -rank))
            before = (self._gaps.of(slow) or (0.0,))[0]
            became = step_ns >= RANK_SLOWER * self._best_ns and gaps[slow] >= max(least, before + GAP_MORE)
            if not (became or gaps[slow] >= GAP_ALWAYS) or (worst is not None and gaps[slow] <= worst.share):
                continue
            if not _steadily_least(slow, group, usual):
                continue
            others = len(mine) - 1
            text = (
                f"rank {slow} is slower than {counted(others, 'other')} that {'does' if others == 1 else 'do'} the same, "
                f"and waits less, by {gaps[slow]:.0%} of the time"
            )
            held = fmean([window.held.get(slow, 0.0) for window in usual])
            if held >= HELD:
                text += f"; the CPU quota of its control group holds it {held:.0%} of the time"
            worst = Slow(slow, 0, gaps[slow], text)
        return worst

    def _link(self, now: Mapping[Pair, LinkUse], step_ns: float) -> Slow | None:
        """Connections on which data takes much longer than it did while steps were short."""
        if step_ns < LINK_SLOWER * self._best_ns:
            return None
        before = {pair: LinkUse(*calm) for pair in now if (calm := self._links.of(pair))}
        worse = {
            pair: LinkUse(now[pair].busy - calm.busy, now[pair].rtt_ns - calm.rtt_ns)
            for pair, calm in before.items()
            if _is_worse(now[pair], calm)
        }
        bad = _as_bad(worse)
        if not bad:
            return None
        rank = at_fault(bad, [pair for pair in now if pair not in worse], self.nodes)
        names = ", ".join(f"{a}-{b}" for a, b in bad[:8]) + (", ..." if len(bad) > 8 else "")
        worst = max(bad, key=lambda pair: now[pair].rtt_ns)
        text = (
            f"data between ranks {names} takes longer to arrive ({_words(now[worst])}; {_words(before[worst])} before): "
            f"steps take {step_ns / self._best_ns:.1f} times as long"
        )
        return Slow(rank, 0, 1 - self._best_ns / step_ns, text, tuple(bad))

    def _dated(self, found: Slow | None, from_ns: int, step_ns: float) -> Slow | None:
        """What several looks in a row found, with the time since when: that of the first long step, where there are any."""
        before = self._standing
        if found is None:
            self._standing, self._times = None, 0
            return None
        same = before is not None and _what(before) == _what(found)
        self._times = self._times + 1 if same else 1
        if before is not None and same and self._times > CONFIRMED:
            self._standing = replace(found, since_ns=before.since_ns)
        else:
            since_ns = max(self._longer_since(step_ns) or from_ns, self._fine_ns(found.pairs))
            self._standing = replace(found, since_ns=since_ns)
        return self._standing if self._times >= CONFIRMED else None

    def _fine_ns(self, pairs: Sequence[Pair]) -> int:
        """When the last look began that saw these links as they always were: steps may be longer since before."""
        usual = {pair: LinkUse(*calm) for pair in pairs if (calm := self._links.of(pair))}
        for window in reversed(self._windows):
            uses = [
                (use, usual[pair])
                for pair, use in (window.links or {}).items()
                if pair in usual and use.rtt_ns
            ]
            if uses and not any(_is_later(use, calm) or _is_busier(use, calm) for use, calm in uses):
                return window.from_ns
        return 0

    def _longer_since(self, step_ns: float) -> int | None:
        """When the first of the latest steps began that are longer than they were; None where they are not.

        The change is where the sum of what later steps are longer than half-way, less what they are shorter, is largest:
        a long step long before, or a short one since, does not move it.
        """
        if step_ns < RANK_SLOWER * self._best_ns:
            return None
        limit_ns, half_ns = (step_ns + self._best_ns) / 2, (step_ns - self._best_ns) / 2
        first, most, total = None, 0.0, 0.0
        for begun, end in reversed(list(pairwise(self._steps))):
            longer = min(max((end - begun - limit_ns) / half_ns, -1.0), 1.0)
            total += longer if longer > 0 else SHORT_WEIGHS * longer
            if total > most:
                first, most = begun, total
        return first


def _other(ordered: Sequence[tuple[float, int]], but: int, number: int) -> float:
    """The value at ``number`` of those in order without the one at ``but``."""
    return ordered[number if number < but else number + 1][0]


def _what(found: Slow) -> tuple[int | None, tuple[Pair, ...]]:
    return found.rank, found.pairs if found.rank is None else ()


def _is_worse(now: LinkUse, calm: LinkUse) -> bool:
    return (_is_later(now, calm) and now.busy >= calm.busy + BUSY_TOO) or _is_busier(now, calm)


def _is_later(now: LinkUse, calm: LinkUse) -> bool:
    return now.rtt_ns >= RTT_TIMES * calm.rtt_ns and now.rtt_ns - calm.rtt_ns >= RTT_MORE_NS


def _is_busier(now: LinkUse, calm: LinkUse) -> bool:
    return now.busy >= calm.busy + BUSY_MORE


def _as_bad(worse: Mapping[Pair, LinkUse]) -> list[Pair]:
    """Those that became worse by about as much as the worst."""
    if not worse:
        return []
    busy, rtt_ns = (max(use.busy for use in worse.values()), max(use.rtt_ns for use in worse.values()))
    return sorted(
        pair for pair, use in worse.items() if use.rtt_ns >= AS_BAD * max(rtt_ns, 1) or (rtt_ns < RTT_MORE_NS and use.busy >= AS_BAD * busy)
    )  # fmt: skip


def _steadily_least(rank: int, group: Collection[int], usual: Sequence[GangWindow]) -> bool:
    steady = [w for w in usual if rank in w.waiting and len(w.waiting) > 1]
    lowest = sum(w.waiting[rank] <= median(w.waiting[r] for r in group if r in w.waiting) for w in steady)
    return lowest >= STEADY * len(steady)


def _words(use: LinkUse) -> str:
    return f"round trip {use.rtt_ns / 1e6:.1f} ms, busy {use.busy:.0%}"
