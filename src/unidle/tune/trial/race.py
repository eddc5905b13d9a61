"""Changes measured next to each other: each round has two runs of the unchanged program and one of each change that is still in."""

from __future__ import annotations

import itertools
import math
import statistics
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Final

from unidle.tune.trial.child import TrialRun
from unidle.tune.trial.marks import StepWatch, WindowTimes, times_between
from unidle.tune.trial.measure import LOOKS, SpeedUp, is_hopeless, speed_up
from unidle.tune.trial.workshop import Workshop

_WARM: Final = 2
_WINDOW_S: Final = 0.7
_FEWEST_STEPS: Final = 5
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

    @property
    def speed(self) -> SpeedUp | None:
        """Of its steps."""
        return speed_up(self.ratios)

    @property
    def cpu_ratio(self) -> float | None:
        """The geometric mean of CPU time before divided by after."""
        return statistics.geometric_mean(self.cpu) if self.cpu else None


@dataclass(slots=True)
class Race:
    """The measuring of changes of one program. ``equal``: the ratios of two runs of the unchanged program."""

    shop: Workshop
    plain: Path
    window: TimedSteps
    equal: list[float] = field(default_factory=list)

    @property
    def control(self) -> SpeedUp | None:
        """The speed-up of the unchanged program over itself."""
        return speed_up(self.equal)

    def run(
        self, racers: Sequence[Racer], end: float, done: Callable[[int], None] = lambda _round: None
    ) -> None:
        """Rounds until each change is decided or one is much faster, or there is no time for another one before ``end``."""
        longest = 0.0
        for number in itertools.count(1):
            left = [one for one in racers if not one.verdict]
            begin = time.monotonic()
            if not left or number > LOOKS[-1] or begin + longest > end:
                return
            if not self._round(left if number % 2 else left[::-1]):
                return
            longest = max(longest, time.monotonic() - begin)
            done(number)
            for one in left:
                self._decide(one, racers)
            if any(one.verdict == "faster" and one.ratios[-1] > _LARGE for one in racers):
                return  # the others are hard to see next to such a cause

    def _round(self, left: Sequence[Racer]) -> bool:
        """The unchanged program first and last, so that a drift of the machine counts for both. Whether that worked."""
        before = self._times(self.plain)
        found = [(one, self._times(one.folder)) for one in left]
        after = self._times(self.plain)
        if isinstance(before, str) or isinstance(after, str):
            return False
        self.equal.append(before.quiet_s / after.quiet_s)
        step = math.sqrt(before.quiet_s * after.quiet_s)
        cpu = math.sqrt(max(before.cpu_s, 1e-9) * max(after.cpu_s, 1e-9))
        whole = (self._projected(before) + self._projected(after)) / 2
        if self.shop.left_s <= 0:
            return False  # a run may have been cut off
        for one, times in found:
            if isinstance(times, str):
                one.failed, one.verdict = times, "slower"
                continue
            one.ratios.append(step / times.quiet_s)
            one.whole.append(whole / self._projected(times))
            one.cpu.append(cpu / max(times.cpu_s, 1e-9))
        return True

    def _projected(self, times: WindowTimes) -> float:
        """The time of the whole program at this pace."""
        return times.setup_s + times.step_s * max(self.window.every, times.steps)

    def _decide(self, one: Racer, racers: Sequence[Racer]) -> None:
        speed, control = one.speed, self.control
        if speed is None or control is None or one.verdict:
            return
        spread = _spread([self.equal, *(other.ratios for other in racers)])
        if len(one.ratios) in LOOKS and speed.is_real(control):
            one.verdict = "faster" if statistics.fmean(map(math.log, one.whole)) > 0 else "slower"
        elif is_hopeless(one.ratios, spread):
            one.verdict = "slower"

    def _times(self, folder: Path) -> WindowTimes | str:
        """One run; why it failed, if it did."""
        window = self.window
        watch = StepWatch(self.shop.scratch, (window.first, window.last), stop=True) if window.last else None
        done = self.shop.run(folder, None, watch)
        if done.failed:
            return done.failed
        if not window.last:
            return WindowTimes(1, done.wall_s, done.cpu_s, done.wall_s, 0.0)
        if len(done.marks) != 2:
            return f"ended before step {window.last}"
        return times_between(*done.marks)


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
