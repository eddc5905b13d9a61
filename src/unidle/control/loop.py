"""One loop for live and simulated: observations, view, decisions, log, commands.

A turn folds what was observed, lets the pure policies decide on the new view, appends it all to the
log in one transaction, and only then sends commands. A controller that is killed between the two
finds the decision in the log, and sends the (idempotent) command again.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Iterable
from typing import TYPE_CHECKING, Final

import msgspec

from unidle.clock import Clock
from unidle.control.engine_commands import EngineCommands, bad_checkpoint
from unidle.control.gangs.idle import IdleWatch
from unidle.control.host_reports import arrival, event_of, fleet_at_start
from unidle.control.inbox import CancelRequest, Inbox, KeepRequest, RemoveRequest, SubmitRequest, refused
from unidle.control.job_decisions import JobDecisions
from unidle.control.loop_state import LoopState
from unidle.control.placement import Placement
from unidle.control.recorder import Recorder, Watcher
from unidle.control.replicas import replicas_in, replicas_of
from unidle.control.services import USUAL, ControllerServices, ControllerTiming
from unidle.engine.protocol import (
    CheckpointLook,
    Disrupted,
    Engine,
    HealthChange,
    HostClock,
    JobArrived,
    Landed,
    NodesChanged,
    Observation,
    PodsReached,
    RankMarks,
    Redeclared,
    Silent,
    Taken,
    Utilised,
)
from unidle.errors import BadInput, StoreError
from unidle.events import types as ev
from unidle.jobs import JobSpec, Reason
from unidle.jobs.vitals import GangVitals
from unidle.place.policy import on_this_fleet
from unidle.place.protocol import Policy
from unidle.store.protocol import Lease, Request, Store
from unidle.view import snapshot
from unidle.view.state import View

if TYPE_CHECKING:
    from unidle.control.gangs.progress_watch import ProgressWatch

STACKS_EVERY_NS: Final = 20_000_000  # while a look at a gang that hangs is under way


class Controller:
    """Drives everything on one store. Call :meth:`start`, then :meth:`turn` until done, then :meth:`stop`."""

    def __init__(
        self, store: Store, lease: Lease, engine: Engine, policy: Policy, clock: Clock,
        services: ControllerServices | None = None, timing: ControllerTiming = USUAL, view: View | None = None,
    ) -> None:  # fmt: skip
        self._store, self._engine, self._policy, self._clock = store, engine, policy, clock
        self._services, self._timing = services or ControllerServices(), timing
        self.view = snapshot.load_view(store) if view is None else view
        self._recorder = Recorder(store, lease, clock, self.view, self._services.notices)
        self._inbox = Inbox(store, clock, self._recorder, timing.inbox_every_ns)
        self._commands = EngineCommands(engine, clock, self.view, self._services.nodes)
        self._state = LoopState(self.view, self._recorder, self._commands, clock, self._services)
        self._state.idle = IdleWatch(watch=timing.watch_idle)
        self._emit = self._recorder.emit
        self._jobs = JobDecisions(self._state)
        self._placement = Placement(policy, self._state)
        self._progress: ProgressWatch | None = None
        self._accepting = True

    # -- life ------------------------------------------------------------------------------------

    def start(self, purpose: str, boot: str = "", clock_offset_ns: int = 0, *, policy_name: str = "") -> None:
        """Take the store up: adopt what runs, and send again what may not have been carried out.

        ``policy_name`` is of ``unidle.place.policy``, empty for the usual one.
        """
        modelled = self._engine.modelled
        if self.view.seq and modelled != self.view.modelled:
            raise StoreError(
                "the store has the log of a simulation" if self.view.modelled else "the store has the log of a real fleet", field=self._store.url,
                remedy="use another store (--store)",
            )  # fmt: skip
        covers_ns = 3 * self._timing.sighting_every_ns
        pid = 0 if modelled else os.getpid()  # a simulation's log is the same in whichever process it runs
        self._emit(
            ev.ControllerStarted(purpose, pid, covers_ns, boot, clock_offset_ns, modelled, policy_name)
        )
        if (changed := fleet_at_start(self.view, self._engine.fleet())) is not None:
            self._emit(changed)
        self._adopt()
        self._flush()

    def _adopt(self) -> None:
        live = [job for job in self.view.jobs.open.awake() if job.live is not None]
        self._commands.adopt(live)
        self._engine.keep(self.view.jobs.open.keys())
        for job in list(self.view.jobs.open.awake()):  # nothing is due for one that rests
            self._state.touch(job)
        for job in live:
            attempt = job.attempts[-1]
            if attempt.stop is not None:
                self._commands.stop(job, attempt)
            elif not attempt.all_spawned:
                self._commands.start(job, attempt)

    def stop(self, why: str) -> None:
        """Leave cleanly; what runs keeps running and is adopted by the next controller."""
        self._emit(ev.ControllerStopped(why))
        self._flush()
        self._recorder.snapshot(after_events=1)
        self._engine.close()

    def watch(self, watcher: Watcher) -> None:
        """Call ``watcher(event, time_ns)`` for every event from now on."""
        self._recorder.watcher = watcher

    def idle(self) -> bool:
        """Nothing runs, nothing waits that could ever start, and the inbox is empty."""
        first = [
            self.view.jobs[queue[0][2]].spec for queue in self.view.waiting.values()
        ]  # one of each shape
        first += [self.view.jobs[name].spec for name in self.view.fillers.waiting]
        waiting = any(self._policy.ever(self.view, spec) for spec in first)
        return not self.view.live and not waiting and not self._store.requests(1)

    @property
    def looks_again(self) -> bool:
        """Jobs wait, and the policy asked to be called again at a time of its own."""
        return bool(self.view.waiting) and self._state.queue.calls_again

    # -- asked from outside ----------------------------------------------------------------------

    def submit(self, job: str, spec: JobSpec, by: str = "", *, source: str = "", identity: str = "") -> None:
        for name, each in replicas_of(job, spec):
            self._submit(name, each, by, source, identity)

    def _submit(self, job: str, spec: JobSpec, by: str, source: str, identity: str) -> None:
        if job not in self.view.jobs:
            spec = on_this_fleet(spec, self.view)
            self._emit(ev.JobSubmitted(job, spec, by, source, identity))
            forecaster = self._services.forecaster
            if forecaster is not None and (predicted := forecaster.run_time(job, spec)) is not None:
                self._emit(predicted)
            self._state.touch(self.view.jobs[job])
            if not spec.is_filler:
                self._state.rest_after_turn(job)
            self._state.decide_again(filler=spec.is_filler)

    def cancel(self, job: str, by: str) -> None:
        """Ask for a job's end; a job that already ended stays as it is."""
        view = self.view.jobs.get(job)
        if view is None:
            raise BadInput("no such job", field="job", value=job, remedy="`unidle list` shows the jobs")
        for each in [view, *replicas_in(self.view, view)[1:]]:
            if not each.terminal and each.cancel_by is None:
                self._emit(ev.CancelAsked(each.id, by))
                self._state.touch(each)

    def remove(self, jobs: Iterable[str], by: str) -> None:
        """Of these jobs, those that have ended leave lists and commands."""
        ended = [job for job in jobs if job in self.view.jobs and job not in self.view.jobs.open]
        if gone := tuple(job for job in dict.fromkeys(ended) if job not in self.view.removed):
            self._emit(ev.JobsRemoved(gone, by))

    def keep(self, jobs: Iterable[str], by: str, *, keep: bool) -> None:
        """Have retention leave these jobs alone, or do so no longer; unknown and removed jobs are passed over."""
        known = dict.fromkeys(job for job in jobs if job in self.view.jobs and job not in self.view.removed)
        if changed := tuple(job for job in known if (job in self.view.keep) != keep):
            self._emit(ev.KeepSet(changed, keep, by))

    def kill(self, job: str) -> None:
        """Shorten the grace of a stop that is under way to nothing."""
        self._commands.kill(self.view.jobs[job])

    def pause(self) -> None:
        """Place no more jobs; running gangs continue."""
        self._accepting = False

    def drain(self) -> None:
        """Stop every gang and put its job back into the queue; place nothing any more."""
        self.pause()
        because = Reason("service_stopped", "the service was stopped")
        for job_id in sorted(self.view.live):
            job = self.view.jobs[job_id]
            attempt = job.attempts[-1]
            if attempt.stop is None:
                self._state.stop_gang(job, attempt, "service_stopped", because)

    def _take_request(self, request: Request) -> None:
        if request.kind == "submit":
            submit = msgspec.json.decode(request.body, type=SubmitRequest)
            if (because := refused(self._store, request, submit)) is not None:
                self._emit(ev.RequestRefused(request.kind, because))
            else:
                self.submit(submit.job, submit.spec, request.sender)
        elif request.kind == "cancel":
            cancel = msgspec.json.decode(request.body, type=CancelRequest)
            job = self.view.jobs.get(cancel.job)
            if job is not None and not (cancel.only_waiting and job.attempts):
                self.cancel(cancel.job, cancel.by)
        elif request.kind == "remove":
            remove = msgspec.json.decode(request.body, type=RemoveRequest)
            self.remove(remove.jobs, remove.by)
        elif request.kind == "keep":
            kept = msgspec.json.decode(request.body, type=KeepRequest)
            self.keep(kept.jobs, kept.by, keep=kept.keep)
        elif request.kind == "guard":
            self._state.emit_all(self._services.nodes.asked(self.view, request.body, self._clock.now_ns()))
            self._state.place = True
        else:
            self._emit(ev.RequestRefused(request.kind, Reason("unknown", "a request of an unknown kind")))

    # -- the loop --------------------------------------------------------------------------------

    def run(self, until: Callable[[], bool]) -> None:
        """Turn until ``until()`` holds."""
        while True:
            wake_ns = self.turn()
            if until():
                return
            self._engine.wait(wake_ns)

    def turn(self) -> int | None:
        """Do all that can be done now. Returns when to look again without a sign from the engine."""
        self._observe()
        self._inbox.take(self._take_request)
        self._look_after_nodes()
        self._decide()
        self._look_after_nodes()  # of those that a gang has left
        now = self._clock.now_ns()
        self._retain(now)
        if now - self.view.book.seen_ns >= self._timing.sighting_every_ns:
            self._emit(ev.Sighted())
        self._flush()
        self._state.let_rest()
        self._recorder.snapshot()
        return self._next_ns(now)

    def _observe(self) -> None:
        for seen in self._engine.poll():
            self._take(seen)
        self._listen()

    def _take(self, seen: Observation) -> None:
        """One observation of the engine."""
        state = self._state
        if isinstance(seen, HealthChange):
            if seen.health != self.view.health.get(seen.target, "healthy") and not self._is_out(seen.target):
                self._emit(ev.HealthSet(seen.target, seen.health, seen.because))
                state.place = True
        elif isinstance(seen, Utilised):
            if (event := state.idle.measured(self.view, seen)) is not None:
                self._emit(event)
                state.queue.touch(seen.job)
        elif isinstance(seen, CheckpointLook):
            if seen.job in self.view.jobs:
                self._emit(bad_checkpoint(seen))
        elif isinstance(seen, GangVitals):
            self._take_vitals(seen)
        elif isinstance(seen, RankMarks):
            self._recorder.emit_marks(seen)
            state.queue.touch(seen.job)
            if seen.marks and seen.marks[-1].last is not None:
                state.set_timers(self.view.jobs[seen.job])  # a failure that may be another's, or not
        elif isinstance(seen, JobArrived):
            if (job := arrival(self.view, seen)) is not None:
                self.submit(job, seen.spec, seen.by, source=seen.source, identity=seen.identity)
        else:
            self._take_of_host(seen)

    def _is_out(self, target: str) -> bool:
        """Whether it is out of use until it is proven: that its machine answers again is no proof."""
        here = self.view.care.targets.get(target)
        return here is not None and here.state not in ("suspect", "draining")

    def _take_of_host(
        self, seen: NodesChanged | Redeclared | HostClock | Taken | Silent | Disrupted | Landed | PodsReached
    ) -> None:
        if (event := event_of(self.view, seen)) is None:
            return
        self._emit(event)
        if isinstance(seen, Silent | Disrupted | Landed):
            self._state.queue.touch(seen.job)
        if not isinstance(seen, Silent | Disrupted | HostClock | PodsReached):
            self._state.place = True

    def _take_vitals(self, seen: GangVitals) -> None:
        if self._progress is None:  # most short runs end before the first look
            from unidle.control.gangs.progress_watch import ProgressWatch

            self._progress = ProgressWatch()
        stacks = self._services.stacks
        for said in self._progress.look(self.view, seen):
            self._emit(said)
            self._state.queue.touch(seen.job)
            if stacks is not None and isinstance(said, ev.VerdictReached) and said.kind in ("hang", "cut"):
                stacks.begin(said.job, self.view.jobs[said.job].attempts[-1], self._clock.now_ns())
        job = self.view.jobs.open.get(seen.job)
        if stacks is not None and self._progress.suspects and job is not None and job.live is not None:
            stacks.prepare(job.live, self._clock.now_ns())

    def _listen(self) -> None:
        """To those who watch nodes and look at running jobs."""
        services = self._services
        if services.detectors is not None:
            self._state.emit_all(services.detectors.take(self.view, self._clock.now_ns()))
        if services.profiler is not None:
            self._state.emit_all(services.profiler.take(self.view))
        if services.stacks is not None:
            for taken in services.stacks.take(self._clock.now_ns()):
                self._emit(taken)
                self._state.queue.touch(taken.job)

    def _look_after_nodes(self) -> None:
        for event in self._services.nodes.look(self.view, self._clock.now_ns()):
            self._emit(event)
            if isinstance(event, ev.StopAsked):
                job = self.view.jobs[event.job]
                self._commands.stop(job, job.attempts[-1])
            elif isinstance(event, ev.PreflightEnded) and event.ok:
                job = self.view.jobs[event.job]
                self._commands.start(job, job.attempts[-1])
            self._state.place = True

    def _decide(self) -> None:
        state, now = self._state, self._clock.now_ns()
        for filler in state.queue.due(now):
            state.decide_again(filler=filler)
        for job_id in state.idle.due(now):
            state.queue.touch(job_id)
        for job_id in state.queue.take():
            self._jobs.decide(self.view.jobs[job_id], now)
        if self._accepting and (state.place or state.fill):
            fillers_only = not state.place
            state.place = state.fill = False
            # after the decisions above, such as who waits again
            self._placement.decide(self._clock.now_ns(), fillers_only=fillers_only)

    def _retain(self, now: int) -> None:
        retention = self._services.retention
        if retention is not None and (events := retention.look(self.view, now)):
            self._state.emit_all(events)
            self._commands.call(lambda: retention.act(events))

    def _flush(self) -> None:
        """First the log, then the commands that follow from it."""
        self._recorder.flush()
        self._commands.send()
        self._services.nodes.act(self.view)

    def _next_ns(self, now: int) -> int | None:
        state, services = self._state, self._services
        if (
            state.queue.waits
            or self._commands.waits
            or (state.place and self._accepting and self.view.waiting)
            or ((state.place or state.fill) and self._accepting and self.view.fillers.waiting)
        ):
            return now
        times = [
            self.view.book.seen_ns + self._timing.sighting_every_ns,
            state.queue.next_ns,
            now + STACKS_EVERY_NS if services.stacks is not None and services.stacks.pending else None,
            state.idle.next_ns,
            services.nodes.next_ns,
            self._inbox.next_ns,
            services.notices.next_ns if services.notices is not None else None,
        ]
        return min(time for time in times if time is not None)
