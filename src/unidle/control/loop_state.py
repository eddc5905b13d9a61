"""What the parts of one controller share: the view with its log, commands to the engine, and the jobs to handle."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Final

from unidle.clock import Clock
from unidle.control.elastic import ElasticSizes
from unidle.control.engine_commands import EngineCommands
from unidle.control.gangs.idle import IdleWatch
from unidle.control.recorder import Recorder
from unidle.control.services import ControllerServices
from unidle.control.work_queue import WorkQueue
from unidle.events import types as ev
from unidle.guard import lifecycle
from unidle.jobs import Reason
from unidle.view.jobs import AttemptView, JobView
from unidle.view.state import View

REST_ABOVE: Final = 1_000  # open jobs from which on waiting ones are kept packed: below, that gains nothing


class LoopState:
    """``place``: whether the policy is called in this turn; ``fill``: whether fillers are placed, which follows it."""

    def __init__(
        self,
        view: View,
        recorder: Recorder,
        commands: EngineCommands,
        clock: Clock,
        services: ControllerServices,
    ) -> None:
        self.view, self.recorder, self.commands, self.clock, self.services = (
            view,
            recorder,
            commands,
            clock,
            services,
        )
        self.emit = recorder.emit
        self.queue = WorkQueue()
        self.sizes = ElasticSizes()
        self.idle = IdleWatch()
        self.place = True
        self.fill = False
        self._quiet: list[str] = []

    def decide_again(self, *, filler: bool) -> None:
        """Something happened to a job. What happens to a filler calls no decision on other jobs."""
        if filler:
            self.fill = True
        else:
            self.place = True

    def emit_all(self, events: Iterable[ev.Event]) -> None:
        """Emit each event before the next is asked for, which may follow from it."""
        for event in events:
            self.emit(event)

    def touch(self, job: JobView) -> None:
        """Handle the job in this turn or the next one."""
        self.queue.touch(job.id)
        self.sizes.add(job)
        self.set_timers(job)

    def set_timers(self, job: JobView) -> None:
        """Look at the job again when its state may call for something though nothing happened."""
        times: Iterable[int | None] = (lifecycle.next_deadline_ns(job), job.not_before_ns or None)
        for time_ns in times:
            if time_ns is not None and time_ns > self.clock.now_ns():
                self.queue.at(time_ns, job.id, filler=job.spec.is_filler)

    def stop_gang(
        self, job: JobView, attempt: AttemptView, why: ev.StopWhy, because: Reason,
        *, most_ns: int | None = None, for_job: str | None = None,
    ) -> None:  # fmt: skip
        """Stop an attempt with its job's grace, but at most ``most_ns``."""
        grace_ns = int(job.spec.grace_s * 1e9)
        if most_ns is not None:
            grace_ns = min(grace_ns, most_ns)
        self.emit(ev.StopAsked(job.id, attempt.number, why, grace_ns, because, for_job=for_job))
        self.commands.stop(job, attempt)

    def rest_after_turn(self, job: str) -> None:
        """The job was only added to the queue, or judged."""
        self._quiet.append(job)

    def let_rest(self) -> None:
        """Keep such jobs packed where the queue is long."""
        if len(self.view.jobs.open) > REST_ABOVE:
            for job in self._quiet:
                self.view.jobs.rest(job)
        self._quiet = []
