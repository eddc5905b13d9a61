"""How steps, copies and saves of an undisturbed gang follow each other, in closed form. Pure."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Final, NamedTuple

from unidle.engine.protocol import StartGang
from unidle.engine.sim.contention import WHOLE
from unidle.engine.sim.gang import RankMark, SimGang
from unidle.engine.sim.workload import SimJob
from unidle.events.marks import Mark

_ENDLESS: Final = 1 << 62


class SteadyState(NamedTuple):
    """How far a gang has come: complete steps, those that a save or a copy in memory holds, and its stalls.

    ``saved_stall_ns`` ended with the last save, ``copied_stall_ns`` with the last copy after it, and
    ``stall_ns`` is of a save or copy that is under way.
    """

    steps: int
    saved: int
    copied: int
    saved_stall_ns: int
    copied_stall_ns: int
    stall_ns: int


@dataclass(frozen=True, slots=True)
class SteadyRhythm:
    """Steps of ``step_ns``; every ``copy_every`` a copy, every ``save_every`` a save (0: none), for which all wait.

    ``save_every`` is a multiple of ``copy_every``; where both fall together the copy comes first.
    """

    step_ns: int
    save_every: int = 0
    save_ns: int = 0
    copy_every: int = 0
    copy_ns: int = 0

    @property
    def _group(self) -> int:
        return self.copy_every or self.save_every or _ENDLESS

    @property
    def _group_ns(self) -> int:
        return self._group * self.step_ns + (self.copy_ns if self.copy_every else 0)

    @property
    def cycle_ns(self) -> int:
        """From the end of one save to that of the next."""
        if not self.save_every:
            return _ENDLESS * self.step_ns
        return self.save_every // self._group * self._group_ns + self.save_ns

    def at(self, elapsed_ns: int) -> SteadyState:
        """How far the gang is ``elapsed_ns`` after its first step began."""
        cycles, rest_ns = divmod(max(elapsed_ns, 0), self.cycle_ns)
        groups = rest_ns // self._group_ns
        saving = bool(self.save_every) and groups >= self.save_every // self._group
        if saving:
            groups = self.save_every // self._group
        rest_ns -= groups * self._group_ns
        alone = 0 if saving else min(rest_ns // self.step_ns, self._group)
        stall_ns = rest_ns if saving else max(rest_ns - self._group * self.step_ns, 0)
        saved = cycles * self.save_every
        done = saved + groups * self._group
        copy_ns = self.copy_ns if self.copy_every else 0
        return SteadyState(
            done + alone,
            saved,
            done if self.copy_every else 0,
            cycles * (self.cycle_ns - self.save_every * self.step_ns) if self.save_every else 0,
            groups * copy_ns,
            stall_ns,
        )

    def since(self, step: int) -> int:
        """When step ``step`` (from 1) is complete, in ns after the first one began."""
        cycles, rest = divmod(step - 1, self.save_every or _ENDLESS)
        groups, rest = divmod(rest, self._group)
        return cycles * self.cycle_ns + groups * self._group_ns + (rest + 1) * self.step_ns


class SteadyGang(SimGang):
    """Reports its first step and, when it ends or :meth:`stand` is called, its last save, last copy and last step.

    What its saves and copies cost is one span each, as long as all of them together, so that sums are exact.
    Saves count from the step that it resumed from. Nothing stretches its steps.
    """

    __slots__ = ("_base", "_copied", "_left", "_rhythm", "_stood")

    def __init__(self, command: StartGang, job: SimJob, now_ns: int, base_step: int) -> None:
        super().__init__(command, job, now_ns, base_step)
        self._rhythm = SteadyRhythm(
            job.step_ns, job.checkpoint_every, job.checkpoint_ns, job.copy_every, job.copy_ns
        )
        self._base = base_step
        self._left = max(-(-job.work_ns // job.step_ns) - base_step, 0)
        self._copied = 0
        self._stood = False

    @property
    def copied_step(self) -> int | None:
        """The step that the gang's peers hold in memory; None where they hold none of this attempt."""
        if not self._job.copy_every or not self._working:
            return None
        return self._base + self._copied

    def restretch(self, now_ns: int, stretch_ppm: int, shared_ppm: int = WHOLE) -> bool:  # noqa: ARG002
        return False

    def stand(self, now_ns: int) -> Iterator[RankMark]:
        """Reports how far it came, once: nothing that comes later is reported."""
        if not self._working or self._halted or self._stood:
            return
        self._stood = True
        end_ns = self._rhythm.since(self._left) if self._left else 0
        elapsed_ns = min(now_ns - self._begin_ns, end_ns)
        stand = self._rhythm.at(elapsed_ns)
        self._copied = stand.copied
        if stand.saved:
            at_ns = self._begin_ns + self._rhythm.since(stand.saved)
            yield from self._tell_new(stand.saved, at_ns)
            copy_ns = self._job.copy_ns if self._job.copy_every else 0
            at_ns += copy_ns + self._job.checkpoint_ns
            yield from self._stalled(at_ns, stand.saved_stall_ns)
            yield 0, Mark("saved", at_ns, n=self._base + stand.saved)
        if stand.copied > stand.saved:
            at_ns = self._begin_ns + self._rhythm.since(stand.copied)
            yield from self._tell_new(stand.copied, at_ns)
            yield from self._stalled(at_ns + self._job.copy_ns, stand.copied_stall_ns)
        if stand.steps:
            yield from self._tell_new(stand.steps, self._begin_ns + self._rhythm.since(stand.steps))
        yield from self._stalled(self._begin_ns + elapsed_ns, stand.stall_ns)

    # -- on the way ------------------------------------------------------------------------------

    def _milestone_ns(self) -> int:
        if not self._working:
            return self._begin_ns
        if not self._left:
            return self._begin_ns
        first = self._told == self._base
        return self._begin_ns + self._rhythm.since(1 if first else self._left)

    def _work(self, at_ns: int) -> Iterator[RankMark]:
        if self._left and self._told == self._base:
            yield from self._tell_new(1, at_ns)
            if self._left > 1:
                return
        yield from self.halt(at_ns)
        for rank in range(len(self.alive)):
            yield rank, Mark("exit", at_ns, code=0)

    def _tell_new(self, steps: int, at_ns: int) -> Iterator[RankMark]:
        if self._base + steps > self._told:
            yield from self._tell(self._base + steps, at_ns)

    def _stalled(self, end_ns: int, stall_ns: int) -> Iterator[RankMark]:
        if stall_ns:
            for rank in range(len(self.alive)):
                yield rank, Mark("span", end_ns - stall_ns, e=end_ns, w="save")
