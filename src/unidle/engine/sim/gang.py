"""The life of one simulated gang: where its work stands, and what its ranks report next.

Work is counted in ns of a gang alone; while a step takes longer (``stretch_ppm``), so does the way
to the next happening. Nothing is simulated between happenings.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Final

from unidle.engine.protocol import StartGang
from unidle.engine.sim.contention import WHOLE
from unidle.engine.sim.workload import SimJob
from unidle.events.marks import Mark

KILLED: Final = -9
TERMINATED: Final = -15

RankMark = tuple[int, Mark]


class SimGang:
    """One attempt on the simulated engine. Times in ns on its clock."""

    __slots__ = (
        "_at_ns", "_begin_ns", "_done_ns", "_exit_code", "_exit_ns", "_fail", "_halted", "_job", "_rested", "_saved_step",
        "_saving_ns", "_seen", "_spawned", "_told", "_total_ns", "_waited_ns", "_working", "alive", "command", "key",
        "quiet_since_ns", "shared_ppm", "stretch_ppm", "version",
    )  # fmt: skip

    def __init__(self, command: StartGang, job: SimJob, now_ns: int, base_step: int) -> None:
        self.command, self._job = command, job
        self.key = (command.job, command.attempt)
        self.alive = [True] * len(command.places)
        self.version = 0  # of its entry on the engine's heap
        self.stretch_ppm = self.shared_ppm = (
            WHOLE  # of a step's time: by uplinks and devices; by devices alone
        )
        restore_ns = job.restore_ns if base_step else 0
        self._begin_ns = self._at_ns = now_ns + job.startup_ns + restore_ns
        self._done_ns = base_step * job.step_ns  # as of _at_ns
        self._total_ns = max(job.work_ns, self._done_ns)
        self._seen = self._told = base_step  # last step that was complete at a happening; that was reported
        self._spawned = self._halted = False
        self._working = not job.step_ns  # whether the first step has begun, where there are steps
        self._waited_ns = 0  # what steps took longer than alone, since the last that was reported
        self._saving_ns: int | None = None  # until then all ranks wait for a checkpoint
        self._saved_step: int | None = None  # what the ranks save before they leave
        self._rested = not job.quiet_ns  # whether its time of doing nothing has begun
        self.quiet_since_ns: int | None = None  # while it does nothing
        self._exit_ns: int | None = None
        self._exit_code = TERMINATED
        fails = (job.fails or {}).get(command.attempt)
        self._fail = None if fails is None else (now_ns + fails[1], fails[0] % len(self.alive), fails[2])

    @property
    def halted(self) -> bool:
        """No work is done any more."""
        return self._halted

    @property
    def copied_step(self) -> int | None:
        """The step that its peers hold in memory; None where they hold none."""
        return None

    @property
    def measurable(self) -> bool:
        """Whether its utilisation can be known."""
        return self._job.measurable

    def next_ns(self, now_ns: int) -> int | None:
        """The time of the next event, ``now_ns`` at the earliest; None if none happens by itself."""
        if not self._spawned:
            return now_ns
        if self._halted:
            return self._exit_ns
        at_ns = self._milestone_ns()
        if self._fail is not None and self._fail[0] < at_ns:
            return max(self._fail[0], now_ns)
        return at_ns

    @property
    def saves_next(self) -> bool:
        """Whether what happens next is a save and nothing else: no end, and nothing that another has to follow."""
        job = self._job
        if self._halted or not self._working or self._fail is not None or job.quiet_ns or job.report_every:
            return False
        return self._told > 0 and (self._saving_ns is not None or self._target_ns() < self._total_ns)

    def advance(self, now_ns: int) -> Iterator[RankMark]:
        """What the ranks report up to ``now_ns``, in order of time."""
        while (at_ns := self.next_ns(now_ns)) is not None and at_ns <= now_ns:
            if not self._spawned:
                self._spawned = True
                attempt = self.command.attempt
                for rank in range(len(self.alive)):
                    yield rank, Mark("spawn", at_ns, pid=rank + 1, ticks=attempt)
            elif self._halted:
                yield from self._leave(at_ns)
            elif self._fail is not None and self._fail[0] < self._milestone_ns():
                _, rank, code = self._fail
                yield from self.halt(at_ns)
                yield rank, Mark("exit", at_ns, code=code)
            elif not self._working:
                yield from self._begin()
            elif self._saving_ns is not None:
                yield from self._saved()
            else:
                yield from self._work(at_ns)

    def restretch(self, now_ns: int, stretch_ppm: int, shared_ppm: int = WHOLE) -> bool:
        """From ``now_ns`` on steps take so much of their time alone; whether that is new.

        ``stretch_ppm`` is by others on its uplinks, ``shared_ppm`` by others on its devices.
        """
        whole_ppm = stretch_ppm * shared_ppm // WHOLE
        if (whole_ppm == self.stretch_ppm and shared_ppm == self.shared_ppm) or self._halted:
            return False
        if self._saving_ns is None and now_ns > self._at_ns:
            self._reach(self._done_at(now_ns), now_ns)
        self.stretch_ppm, self.shared_ppm = whole_ppm, shared_ppm
        return True

    def halt(self, now_ns: int) -> Iterator[RankMark]:
        """Stop the work: a rank is gone, or all have to leave. Yields marks of the last complete step."""
        if self._halted:
            return
        yield from self.stand(now_ns)
        self._halted = True

    def stand(self, now_ns: int) -> Iterator[RankMark]:
        """Yields marks of the last complete step, unless it was reported before."""
        step_ns = self._job.step_ns
        if step_ns and self._working and not self._halted:
            step = self._done_at(now_ns) // step_ns
            if step > self._told:
                ahead_ns = max(step * step_ns - self._done_ns, 0)
                self._reach(self._done_ns + ahead_ns, min(self._at_ns + self._stretched(ahead_ns), now_ns))
                yield from self._tell(step, self._at_ns)

    def ask_to_stop(self, now_ns: int, grace_ns: int) -> Iterator[RankMark]:
        """The ranks that are left leave: at once, when they are done saving, or killed after the grace."""
        whole = not self._halted and all(self.alive)
        if self._exit_ns is None:
            yield from self.halt(now_ns)
            if not grace_ns:
                self._exit_ns, self._exit_code = now_ns, KILLED
            elif not whole:  # its peers are gone: there is nothing to finish
                self._exit_ns = now_ns
            elif self._job.stop_ns <= grace_ns:
                self._exit_ns = now_ns + self._job.stop_ns
                if self._job.saves_on_stop and self._job.step_ns and self._told:
                    self._saved_step = self._told
            else:
                self._exit_ns, self._exit_code = now_ns + grace_ns, KILLED
        elif now_ns + grace_ns < self._exit_ns:
            self._exit_ns, self._exit_code, self._saved_step = now_ns + grace_ns, KILLED, None

    # -- on the way ------------------------------------------------------------------------------

    def _milestone_ns(self) -> int:
        """When the gang begins, completes what is next, or has written its checkpoint."""
        if not self._working:
            return self._begin_ns
        if self._saving_ns is not None:
            return self._saving_ns
        return self._at_ns + self._stretched(self._target_ns() - self._done_ns)

    def _target_ns(self) -> int:
        """How much work is done at the next happening."""
        job, target = self._job, self._total_ns
        if job.step_ns:
            for every in (job.report_every, job.checkpoint_every):
                if every:
                    target = min(target, (self._seen // every + 1) * every * job.step_ns)
        if not self._rested and self._done_ns <= job.quiet_at_ns:
            target = min(target, job.quiet_at_ns)
        return target

    def _stretched(self, work_ns: int) -> int:
        return -(-work_ns * self.stretch_ppm // WHOLE)

    def _done_at(self, now_ns: int) -> int:
        """Work that is done at ``now_ns``, at the pace since the last happening."""
        if self._saving_ns is not None or now_ns <= self._at_ns or not self._working:
            return self._done_ns
        return min(self._done_ns + (now_ns - self._at_ns) * WHOLE // self.stretch_ppm, self._total_ns)

    def _begin(self) -> Iterator[RankMark]:
        self._working = True
        if self._seen and self._job.restore_ns:
            for rank in range(len(self.alive)):
                yield rank, Mark("span", self._begin_ns - self._job.restore_ns, e=self._begin_ns, w="restore")
        yield 0, Mark("ready", self._begin_ns)

    def _work(self, at_ns: int) -> Iterator[RankMark]:
        job = self._job
        self._reach(self._target_ns(), at_ns)
        step = self._done_ns // job.step_ns if job.step_ns else 0
        if step > self._seen:
            self._seen = step
            yield from self._tell(step, at_ns)
            if job.checkpoint_every and step % job.checkpoint_every == 0:
                if job.checkpoint_ns:
                    self._saving_ns = at_ns + job.checkpoint_ns
                else:
                    yield 0, Mark("saved", at_ns, n=step)
        elif not self._rested and self._done_ns == job.quiet_at_ns:
            self._rested, self.quiet_since_ns, self._saving_ns = True, at_ns, at_ns + job.quiet_ns
        elif self._done_ns >= self._total_ns:
            self._halted = True
            yield from self._communication(at_ns)
            if job.step_ns and self._done_ns > self._seen * job.step_ns:
                yield from self._tell(self._seen + 1, at_ns)  # the last one is a short one
            for rank in range(len(self.alive)):
                yield rank, Mark("exit", at_ns, code=0)

    def _tell(self, step: int, at_ns: int) -> Iterator[RankMark]:
        self._told = step
        yield from self._communication(at_ns)
        yield 0, Mark("step", at_ns, n=step, o="helper")

    def _reach(self, done_ns: int, at_ns: int) -> None:
        """So much work is done at ``at_ns``."""
        if self.stretch_ppm == WHOLE or self.stretch_ppm != self.shared_ppm:  # else it waits for no network
            work_ns = (done_ns - self._done_ns) * self.shared_ppm // WHOLE
            self._waited_ns += (at_ns - self._at_ns) - work_ns
        self._done_ns, self._at_ns = done_ns, at_ns

    def _communication(self, at_ns: int) -> Iterator[RankMark]:
        """What sharing uplinks cost since the last step that was reported, as one span before ``at_ns``."""
        waited_ns, self._waited_ns = self._waited_ns, 0
        if waited_ns > 0:
            for rank in range(len(self.alive)):
                yield rank, Mark("span", at_ns - waited_ns, e=at_ns, w="comm")

    def _saved(self) -> Iterator[RankMark]:
        end_ns = self._saving_ns or 0
        self._at_ns, self._saving_ns = end_ns, None
        if self.quiet_since_ns is not None:
            self.quiet_since_ns = None
            return
        for rank in range(len(self.alive)):
            yield rank, Mark("span", end_ns - self._job.checkpoint_ns, e=end_ns, w="save")
        yield 0, Mark("saved", end_ns, n=self._seen)

    def _leave(self, at_ns: int) -> Iterator[RankMark]:
        self._exit_ns = None
        if self._saved_step is not None:
            yield 0, Mark("saved", at_ns, n=self._saved_step)
        for rank in range(len(self.alive)):
            yield rank, Mark("exit", at_ns, code=self._exit_code)
