"""A gang that saves often and reports it once: for replays of months, in which each save would be an event."""

from __future__ import annotations

from collections.abc import Iterator

from unidle.engine.protocol import StartGang
from unidle.engine.sim.gang import RankMark, SimGang
from unidle.engine.sim.network import WHOLE
from unidle.engine.sim.rhythm import Rhythm
from unidle.engine.sim.workload import SimJob
from unidle.events.marks import Mark


class SteadyGang(SimGang):
    """Reports its first step and, when it ends or :meth:`stand` is called, its last save, last copy and last step.

    What its saves and copies cost is one span each, as long as all of them together, so that sums are exact.
    Saves count from the step that it resumed from. Nothing stretches its steps.
    """

    __slots__ = ("_base", "_copied", "_left", "_rhythm", "_stood")

    def __init__(self, command: StartGang, job: SimJob, now_ns: int, base_step: int) -> None:
        super().__init__(command, job, now_ns, base_step)
        self._rhythm = Rhythm(
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
