"""What follows for a job that something happened to: restart, stop, end. The decision is ``unidle.guard.lifecycle``'s."""

from __future__ import annotations

from unidle.control import engine_commands
from unidle.control.loop_state import LoopState
from unidle.events import types as ev
from unidle.guard import lifecycle
from unidle.view.jobs import JobView


class JobDecisions:
    """For the jobs of one controller."""

    def __init__(self, state: LoopState) -> None:
        self._state = state

    def decide(self, job: JobView, now: int) -> None:
        """Take the decisions that are due for the job."""
        state, forecaster = self._state, self._state.services.forecaster
        for decided in lifecycle.decide(job, now):
            event = state.services.nodes.excuse(state.view, job, decided)
            if self._looks_first(job, event, now):
                continue  # the look touches the job when it ends
            state.emit(event)
            self._follow(job, event)
        if forecaster is not None:
            state.emit_all(forecaster.stepped(state.view, job))
        self._look_for_idle(job, now)

    def _follow(self, job: JobView, event: ev.Event) -> None:
        """Commands and events that go with a decision."""
        state = self._state
        if isinstance(event, ev.StopAsked):
            state.commands.stop(job, job.attempts[-1])
        elif isinstance(event, ev.AttemptEnded):
            if job.attempts[-1].yielded_ns is None:
                state.emit_all(engine_commands.left(state.view, job.attempts[-1]))
            state.commands.release(event.job, event.attempt)
            if job.spec.is_filler:
                state.commands.start_behind()
            state.decide_again(filler=job.spec.is_filler)
        elif isinstance(event, ev.RetryPlanned | ev.Requeued):
            state.set_timers(job)
        elif isinstance(event, ev.JobEnded):
            state.commands.finish(event.job)
            if state.services.forecaster is not None:
                state.services.forecaster.learn(job)
            if state.services.retention is not None:
                state.services.retention.ended(state.view, job.id)

    def _looks_first(self, job: JobView, event: ev.Event, now: int) -> bool:
        """Whether the stop waits for a profile of the ranks: for a gang that hangs or has reached its time limit."""
        wanted = isinstance(event, ev.StopAsked) and event.why in ("hung", "timeout")
        stacks = self._state.services.stacks
        return wanted and stacks is not None and stacks.holds(job.id, job.attempts[-1], now)

    def _look_for_idle(self, job: JobView, now: int) -> None:
        state = self._state
        events, watch = state.idle.look(state.view, job, now)
        for event in events:
            state.emit(event)
            if isinstance(event, ev.StopAsked):
                state.commands.stop(job, job.attempts[-1])
        if watch is not None:
            state.commands.watch(watch)
