"""Changes measured next to each other.

A pass has a run of each change that is still in, between two of the unchanged program. A round is one pass, or several where the machine is
noisy: they share the imports of a round, and become one ratio.
"""

from __future__ import annotations

import itertools
import math
import statistics
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Final, NamedTuple

from unidle.tune.trial.child import TrialRun
from unidle.tune.trial.marks import StepWatch, WindowTimes, times_between
from unidle.tune.trial.measure import LOOKS, SpeedUp, is_hopeless, pairs_needed, speed_up, tail_of
from unidle.tune.trial.workshop import ROUND, Workshop

_WARM: Final = 2
_WINDOW_S: Final = 0.7
_FEWEST_STEPS: Final = 5
_STARTS: Final = 3
"""What the start of a round costs, in runs."""
_PASSES: Final = ((0.15, 3), (0.05, 2))
"""From which spread of log ratios on a round has so many passes."""
_LARGE: Final = 3.0
"""A speed-up after which a race ends, so that the others are measured on top of it."""


@dataclass(frozen=True, slots=True)
class TimedSteps:
    """What a run measures: the steps after ``first`` up to ``last``, of ``every``; the whole program if ``last`` is 0."""

    first: int = 0
    last: int = 0
    every: int = 0

    def longer(self, ratio: float) -> TimedSteps:
        """For a program whose steps are that many times faster."""
        count = math.ceil((self.last - self.first) * max(1.0, ratio))
        return TimedSteps(self.first, min(self.every, self.first + count), self.every) if self.last else self


@dataclass(slots=True)
class Racer:
    """A change in a race, in its copy. ``ratios`` are of steps, ``whole`` of the program with its set-up."""

    folder: Path
    ratios: list[float] = field(default_factory=list)
    whole: list[float] = field(default_factory=list)
    cpu: list[float] = field(default_factory=list)
    failed: str = ""
    verdict: str = ""
    """``faster`` or ``slower``, once it is decided."""
    race: int = 0
    """How many races this change was in before."""

    @property
    def speed(self) -> SpeedUp | None:
        """Of its steps."""
        return speed_up(self.ratios, tail_of(self.race))

    @property
    def cpu_ratio(self) -> float | None:
        """The geometric mean of CPU time before divided by after."""
        return statistics.geometric_mean(self.cpu) if self.cpu else None


@dataclass(slots=True)
class QueueTime:
    """Seconds of all measured windows, and those in which the program was ready and another one had the CPU."""

    wall_s: float = 0.0
    queued_s: float = 0.0

    def add(self, several: Sequence[WindowTimes | str]) -> None:
        """Count these windows."""
        for one in several:
            if not isinstance(one, str):
                self.wall_s += one.wall_s
                self.queued_s += one.wall_s - one.quiet_s

    @property
    def share(self) -> float | None:
        """Of the time; None if nothing was measured."""
        return self.queued_s / self.wall_s if self.wall_s else None


class PassRatios(NamedTuple):
    """Before divided by after: of the measured steps, of the whole program, and of CPU time."""

    step: float
    whole: float
    cpu: float


class _Round(NamedTuple):
    """One more run of the unchanged program than passes; the runs of changes, by pass. A text: why a run failed."""

    plain: list[WindowTimes | str]
    changed: list[list[tuple[Racer, WindowTimes | str]]]


@dataclass(slots=True)
class Race:
    """The measuring of changes of one program. ``equal``: the ratios of two runs of the unchanged program."""

    shop: Workshop
    plain: Path
    window: TimedSteps
    equal: list[float] = field(default_factory=list)
    run_s: float = 0.0
    """The most seconds of wall time that a run has taken, in the mean of a round; 0 if none was."""
    queue: QueueTime = field(default_factory=QueueTime)
    """Of all races that were made from this one, too."""

    @property
    def control(self) -> SpeedUp | None:
        """The speed-up of the unchanged program over itself."""
        return speed_up(self.equal)

    def run(
        self, racers: Sequence[Racer], end: float, done: Callable[[int], None] = lambda _round: None
    ) -> None:
        """Rounds until each change is decided or one is much faster, or there is no time for another one before ``end``.

        If there is no time to decide on all, the most promising ones continue.
        """
        for number in itertools.count(1):
            left = self.promising([one for one in racers if not one.verdict], end - time.monotonic())
            if not left or number > 2 * LOOKS[-1]:
                return
            plan, begin = self.shop.plan, time.monotonic()
            passes = self.passes(racers)
            with self.shop.serving(ROUND if self.window.last else ""):
                found = self._runs(left if number % 2 else left[::-1], passes)
            self.run_s = max(self.run_s, (time.monotonic() - begin) / self._cost(len(left), passes))
            if self.shop.plan is not plan:
                continue  # some were forked, and others were not
            if not self._count(found):
                return
            done(number)
            for one in left:
                self._decide(one, racers)
            if any(one.verdict == "faster" and one.ratios[-1] > _LARGE for one in racers):
                return  # the others are hard to see next to such a cause

    def promising(self, left: Sequence[Racer], left_s: float) -> list[Racer]:
        """Those for which there is time; those that need the fewest pairs first. None if there is no time for one round."""
        left = [one for one in left if len(one.ratios) < LOOKS[-1]]
        if not self.run_s:
            return [*left] if left_s > 0 else []
        passes = self.passes(left)
        rounds = [left_s / (self.run_s * self._cost(count, passes)) for count in range(1, len(left) + 1)]
        if not left or rounds[0] < 1:
            return []
        if any(len(one.ratios) < 2 for one in left):
            return [one for one, most in zip(left, rounds, strict=True) if most >= 1]
        spread = self._spread(left)
        needed = {id(one): pairs_needed(one.ratios, spread, tail_of(one.race)) for one in left}
        order = sorted(left, key=lambda one: needed[id(one)])
        count = max(
            (number for number, most in enumerate(rounds, 1) if needed[id(order[number - 1])] <= most), default=1
        )  # fmt: skip
        chosen = {id(one) for one in order[:count]}
        return [one for one in left if id(one) in chosen]

    def _cost(self, count: int, passes: int) -> int:
        """Of a round of so many changes, in runs."""
        starts = _STARTS if self.window.last and self.shop.plan is not None else 0
        return starts + passes * (count + 1) + 1

    def passes(self, racers: Sequence[Racer]) -> int:
        """Of the next round, from the noise of those before."""
        spread = self._spread(racers)
        return next((count for least, count in _PASSES if spread >= least), 1)

    def _spread(self, racers: Sequence[Racer]) -> float:
        return _spread([self.equal, *(one.ratios for one in racers)])

    def _runs(self, left: Sequence[Racer], passes: int) -> _Round:
        """The unchanged program around each pass, so that a drift of the machine counts for both; every second pass in the opposite order."""
        found = _Round([self._times(self.plain)], [])
        for number in range(passes):
            order = left[::-1] if number % 2 else left
            found.changed.append([(one, self._times(one.folder)) for one in order])
            found.plain.append(self._times(self.plain))
        return found

    def _count(self, found: _Round) -> bool:
        """Take the ratios of a round. Whether that worked."""
        plain = [one for one in found.plain if not isinstance(one, str)]
        if len(plain) < len(found.plain) or self.shop.left_s <= 0:
            return False  # a run may have been cut off
        self.equal.append(_alternating([one.quiet_s for one in plain]))
        ratios: dict[int, list[PassRatios]] = {}
        for (before, after), changed in zip(itertools.pairwise(plain), found.changed, strict=True):
            for one, times in changed:
                if isinstance(times, str):
                    one.failed, one.verdict = times, "slower"
                else:
                    ratios.setdefault(id(one), []).append(self._ratios(before, after, times))
        for one, _ in found.changed[0]:
            if not one.failed:
                of_passes = zip(*ratios[id(one)], strict=True)
                for kept, several in zip((one.ratios, one.whole, one.cpu), of_passes, strict=True):
                    kept.append(statistics.geometric_mean(several))
        if self.window.last:
            self.queue.add([*plain, *(one for changed in found.changed for _, one in changed)])
        return True

    def _ratios(self, before: WindowTimes, after: WindowTimes, times: WindowTimes) -> PassRatios:
        step = math.sqrt(before.quiet_s * after.quiet_s)
        cpu = math.sqrt(max(before.cpu_s, 1e-9) * max(after.cpu_s, 1e-9))
        whole = (self._projected(before) + self._projected(after)) / 2
        return PassRatios(step / times.quiet_s, whole / self._projected(times), cpu / max(times.cpu_s, 1e-9))

    def _projected(self, times: WindowTimes) -> float:
        """The time of the whole program at this pace."""
        return times.setup_s + times.step_s * max(self.window.every, times.steps)

    def _decide(self, one: Racer, racers: Sequence[Racer]) -> None:
        speed, control = one.speed, self.control
        if speed is None or control is None or one.verdict:
            return
        spread = self._spread(racers)
        if len(one.ratios) in LOOKS and speed.is_real(control):
            one.verdict = "faster" if statistics.fmean(map(math.log, one.whole)) > 0 else "slower"
        elif is_hopeless(one.ratios, spread):
            one.verdict = "slower"

    def _times(self, folder: Path) -> WindowTimes | str:
        """One run; why it failed, if it did."""
        window = self.window
        watch = StepWatch(self.shop.scratch, (window.first, window.last), stop=True) if window.last else None
        done = self.shop.run(folder, None, watch, ROUND if window.last else "")
        if done.failed:
            return done.failed
        if not window.last:
            return WindowTimes(1, done.wall_s, done.cpu_s, done.wall_s, 0.0)
        if len(done.marks) != 2:
            return f"ended before step {window.last}"
        return times_between(*done.marks)


def _alternating(times: Sequence[float]) -> float:
    """The ratio of equal programs, as that of a change: the first pass, the second the other way round, and so on."""
    logs = [math.log(one / other) for one, other in itertools.pairwise(times)]
    return math.exp(statistics.fmean(-one if number % 2 else one for number, one in enumerate(logs)))


def _spread(rows: Sequence[Sequence[float]]) -> float:
    """The pooled standard deviation of logarithms."""
    squares, freedom = 0.0, 0
    for row in rows:
        if len(row) > 1:
            squares += statistics.variance(map(math.log, row)) * (len(row) - 1)
            freedom += len(row) - 1
    return math.sqrt(squares / freedom) if freedom else 0.0


def window_of(run: TrialRun) -> TimedSteps:
    """The steps to measure: about 0.7 seconds of them, after those that are slow at first."""
    marks = run.marks
    steps = marks[-1].step if marks else 0
    first = next((one for one in marks if one.step >= _WARM), None)
    if first is None or steps < _WARM + _FEWEST_STEPS:
        return TimedSteps(every=steps)
    times = times_between(first, next(one for one in marks if one.step == steps))
    count = max(_FEWEST_STEPS, math.ceil(_WINDOW_S / max(times.step_s, 1e-6)))
    return TimedSteps(_WARM, min(steps, _WARM + count), steps)


def checked_steps(run: TrialRun) -> int:
    """The steps that a change is verified in before the whole program is; 0 for all."""
    window = window_of(run)
    if not window.last:
        return 0
    times = times_between(run.marks[0], run.marks[-1])
    count = max(4, math.ceil(1.0 / max(times.step_s, 1e-6)))
    return 0 if 2 * count >= window.every else min(count, 50)
