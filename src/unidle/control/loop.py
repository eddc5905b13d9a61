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
from unidle.control import engine_commands
from unidle.control.elastic import ElasticSizes
from unidle.control.engine_commands import bad_checkpoint
from unidle.control.forecast import Forecaster
from unidle.control.gangs.idle import IdleWatch
from unidle.control.inbox import (
    INBOX_EVERY_NS,
    CancelRequest,
    Inbox,
    KeepRequest,
    RemoveRequest,
    SubmitRequest,
    refused,
)
from unidle.control.nodes import maintenance
from unidle.control.nodes.maintenance import NodeMaintenance
from unidle.control.recorder import Recorder, Watcher
from unidle.control.work_queue import WorkQueue
from unidle.engine.protocol import (
    CheckpointLook,
    Engine,
    HealthChange,
    StopGang,
    Utilised,
)
from unidle.errors import BadInput, StoreError
from unidle.events import types as ev
from unidle.fleet import as_declared
from unidle.guard import lifecycle
from unidle.jobs import JobSpec, Reason
from unidle.jobs.vitals import GangVitals
from unidle.place.policy import on_this_fleet
from unidle.place.protocol import Place, Plan, Policy, Stop
from unidle.store.protocol import Lease, Request, Store
from unidle.view import snapshot
from unidle.view.jobs import AttemptView, JobView
from unidle.view.state import View

if TYPE_CHECKING:
    from unidle.control.gangs.profiler import Profiler
    from unidle.control.gangs.progress_watch import ProgressWatch
    from unidle.control.gangs.stacks import GangStacks
    from unidle.control.nodes.detectors import Detectors
    from unidle.control.nodes.late_detectors import LateDetectors
    from unidle.control.retention.policy import Retention
    from unidle.notices.dispatcher import NoticeDispatcher

SIGHTING_EVERY_NS: Final = 10_000_000_000
REST_ABOVE: Final = 1_000  # open jobs from which on waiting ones are kept packed: below, that gains nothing
STACKS_EVERY_NS: Final = 20_000_000  # while a look at a gang that hangs is under way
HELD_AFTER_NS: Final = 60_000_000_000  # what was promised, after those who held it have to be gone


class Controller:
    """Drives everything on one store. Call :meth:`start`, then :meth:`turn` until done, then :meth:`stop`."""

    def __init__(
        self, store: Store, lease: Lease, engine: Engine, policy: Policy, clock: Clock,
        *, inbox_every_ns: int | None = INBOX_EVERY_NS,
        sighting_every_ns: int = SIGHTING_EVERY_NS, watcher: Watcher | None = None, view: View | None = None,
        forecaster: Forecaster | None = None, care: NodeMaintenance | None = None, notices: NoticeDispatcher | None = None,
        detectors: Detectors | LateDetectors | None = None, profiler: Profiler | None = None,
        stacks: GangStacks | None = None, retention: Retention | None = None,
    ) -> None:  # fmt: skip
        self._store, self._engine = store, engine
        self._policy, self._clock = policy, clock
        self._sighting_every_ns = sighting_every_ns
        self._forecaster = forecaster
        self._notices = notices
        self._detectors = detectors
        self._profiler = profiler
        self._stacks = stacks
        self._retention = retention
        self.view = snapshot.load_view(store) if view is None else view
        self._recorder = Recorder(store, lease, clock, self.view, notices, watcher)
        self._emit = self._recorder.emit
        self._requests = Inbox(store, clock, self._recorder, inbox_every_ns)
        self._commands: list[Callable[[], None]] = []
        self._agenda = WorkQueue()
        self._holders = IdleWatch()
        self._guard: ProgressWatch | None = None
        self._sizes = ElasticSizes()
        self._care = care if care is not None else NodeMaintenance()
        self._place = True
        self._quiet: list[str] = []  # jobs that may rest after this turn
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
        covers_ns = 3 * self._sighting_every_ns
        pid = 0 if modelled else os.getpid()  # a simulation's log is the same in whichever process it runs
        self._emit(
            ev.ControllerStarted(purpose, pid, covers_ns, boot, clock_offset_ns, modelled, policy_name)
        )
        fleet = self._engine.fleet()
        if fleet != as_declared(self.view.fleet):
            self._emit(ev.FleetSeen(fleet))
        live = [job for job in self.view.jobs.open.awake() if job.live is not None]
        begun = [job for job in live if not self._is_held(job, job.attempts[-1])]
        self._engine.adopt([engine_commands.live_attempt(self.view, job, job.attempts[-1]) for job in begun])
        self._engine.keep(self.view.jobs.open.keys())
        for job in list(self.view.jobs.open.awake()):  # nothing is due for one that rests
            self._touch(job)
        for job in live:
            attempt = job.attempts[-1]
            if attempt.stop is not None:
                self._command_stop(job, attempt)
            elif not attempt.all_spawned:
                self._command_start(job, attempt)
        self._flush()

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
        waiting = any(self._policy.ever(self.view, spec) for spec in first)
        return not self.view.live and not waiting and not self._store.requests(1)

    @property
    def looks_again(self) -> bool:
        """Jobs wait, and the policy asked to be called again at a time of its own."""
        return bool(self.view.waiting) and self._agenda.calls_again

    # -- asked from outside ----------------------------------------------------------------------

    def submit(self, job: str, spec: JobSpec, by: str = "") -> None:
        if job not in self.view.jobs:
            spec = on_this_fleet(spec, self.view)
            self._emit(ev.JobSubmitted(job, spec, by))
            if self._forecaster is not None and (said := self._forecaster.run_time(job, spec)) is not None:
                self._emit(said)
            self._touch(self.view.jobs[job])
            self._quiet.append(job)
            self._place = True

    def cancel(self, job: str, by: str) -> None:
        """Ask for a job's end; a job that already ended stays as it is."""
        view = self.view.jobs.get(job)
        if view is None:
            raise BadInput("no such job", field="job", value=job, remedy="`unidle list` shows the jobs")
        if not view.terminal and view.cancel_by is None:
            self._emit(ev.CancelAsked(job, by))
            self._touch(view)

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
        view = self.view.jobs[job]
        if view.live is not None:
            command = StopGang(job, view.live.number, len(view.live.ranks), 0)
            self._commands.append(lambda: self._engine.stop(command))

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
                grace_ns = int(job.spec.grace_s * 1e9)
                self._emit(ev.StopAsked(job_id, attempt.number, "service_stopped", grace_ns, because))
                self._command_stop(job, attempt)

    # -- the loop --------------------------------------------------------------------------------

    def turn(self) -> int | None:
        """Do all that can be done now. Returns when to look again without a sign from the engine."""
        self._observe()
        self._requests.take(self._take_request)
        self._look_after_nodes()
        self._decide()
        self._look_after_nodes()  # of those that a gang has left
        now = self._clock.now_ns()
        self._retain(now)
        if now - self.view.book.seen_ns >= self._sighting_every_ns:
            self._emit(ev.Sighted())
        self._flush()
        self._let_rest()
        self._recorder.snapshot()
        return self._next_ns(now)

    def run(self, until: Callable[[], bool]) -> None:
        """Turn until ``until()`` holds."""
        while True:
            wake_ns = self.turn()
            if until():
                return
            self._engine.wait(wake_ns)

    def _observe(self) -> None:
        for seen in self._engine.poll():
            if isinstance(seen, HealthChange):
                if seen.health != self.view.health.get(seen.target, "healthy"):
                    self._emit(ev.HealthSet(seen.target, seen.health, seen.because))
                    self._place = True
            elif isinstance(seen, Utilised):
                if (event := self._holders.measured(self.view, seen)) is not None:
                    self._emit(event)
                    self._agenda.touch(seen.job)
            elif isinstance(seen, CheckpointLook):
                if seen.job in self.view.jobs:
                    self._emit(bad_checkpoint(seen))
            elif isinstance(seen, GangVitals):
                self._take_vitals(seen)
            else:
                self._recorder.emit_marks(seen)
                self._agenda.touch(seen.job)
                if seen.marks and seen.marks[-1].last is not None:
                    self._set_timers(self.view.jobs[seen.job])  # a failure that may be another's, or not
        self._listen()

    def _listen(self) -> None:
        """To those who watch nodes and look at running jobs."""
        if self._detectors is not None:
            for said in self._detectors.take(self.view, self._clock.now_ns()):
                self._emit(said)
        if self._profiler is not None:
            for found in self._profiler.take(self.view):
                self._emit(found)
        if self._stacks is not None:
            for taken in self._stacks.take(self._clock.now_ns()):
                self._emit(taken)
                self._agenda.touch(taken.job)

    def _take_vitals(self, seen: GangVitals) -> None:
        if self._guard is None:  # most short runs end before the first look
            from unidle.control.gangs.progress_watch import ProgressWatch

            self._guard = ProgressWatch()
        for said in self._guard.look(self.view, seen):
            self._emit(said)
            self._agenda.touch(seen.job)
            if (
                self._stacks is not None
                and isinstance(said, ev.VerdictReached)
                and said.kind in ("hang", "cut")
            ):
                attempt = self.view.jobs[said.job].attempts[-1]
                self._stacks.begin(said.job, attempt, self._clock.now_ns())
        if self._stacks is not None and self._guard.suspects:
            self._stacks.prepare(self._clock.now_ns())

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
            for event in self._care.asked(self.view, request.body, self._clock.now_ns()):
                self._emit(event)
            self._place = True
        else:
            self._emit(ev.RequestRefused(request.kind, Reason("unknown", "a request of an unknown kind")))

    def _look_after_nodes(self) -> None:
        for event in self._care.look(self.view, self._clock.now_ns()):
            self._emit(event)
            if isinstance(event, ev.StopAsked):
                job = self.view.jobs[event.job]
                self._command_stop(job, job.attempts[-1])
            elif isinstance(event, ev.PreflightEnded) and event.ok:
                job = self.view.jobs[event.job]
                self._command_start(job, job.attempts[-1])
            self._place = True

    def _retain(self, now: int) -> None:
        if self._retention is None:
            return
        retention, events = self._retention, self._retention.look(self.view, now)
        for event in events:
            self._emit(event)
        if events:
            self._commands.append(lambda: retention.act(events))

    def _decide(self) -> None:
        now = self._clock.now_ns()
        if self._agenda.due(now):
            self._place = True
        for job_id in self._holders.due(now):
            self._agenda.touch(job_id)
        for job_id in self._agenda.take():
            self._decide_job(self.view.jobs[job_id], now)
        if self._place and self._accepting:
            self._place = False
            self._decide_places(self._clock.now_ns())  # after what was decided above, such as who waits again

    def _decide_job(self, job: JobView, now: int) -> None:
        for decided in lifecycle.decide(job, now):
            event = self._care.excuse(self.view, job, decided)
            attempt = job.attempts[-1] if job.attempts else None
            if self._looks_first(job, event, now):
                continue  # the look touches the job when it ends
            self._emit(event)
            if isinstance(event, ev.StopAsked) and attempt is not None:
                self._command_stop(job, attempt)
            elif isinstance(event, ev.AttemptEnded) and attempt is not None:
                for cut in engine_commands.left(self.view, attempt):
                    self._emit(cut)
                self._commands.append(lambda e=event: self._engine.release(e.job, e.attempt))  # type: ignore[misc]
                self._place = True
            elif isinstance(event, ev.RetryPlanned | ev.Requeued):
                self._set_timers(job)
            elif isinstance(event, ev.JobEnded):
                self._commands.append(lambda e=event: self._engine.finish(e.job))  # type: ignore[misc]
                if self._forecaster is not None:
                    self._forecaster.learn(job)
                if self._retention is not None:
                    self._retention.ended(self.view, job.id)
        if self._forecaster is not None:
            for said in self._forecaster.stepped(self.view, job):
                self._emit(said)
        self._look_for_idle(job, now)

    def _looks_first(self, job: JobView, event: ev.Event, now: int) -> bool:
        """Whether the stop waits for a profile of the ranks: for a gang that hangs or has reached its time limit."""
        wanted = isinstance(event, ev.StopAsked) and event.why in ("hung", "timeout")
        return wanted and self._stacks is not None and self._stacks.holds(job.id, job.attempts[-1], now)

    def _look_for_idle(self, job: JobView, now: int) -> None:
        events, watch = self._holders.look(self.view, job, now)
        for event in events:
            self._emit(event)
            if isinstance(event, ev.StopAsked):
                self._command_stop(job, job.attempts[-1])
        if watch is not None:
            self._commands.append(lambda: self._engine.watch(watch))

    def _decide_places(self, now: int) -> None:
        if not self.view.waiting:
            return
        for resized in self._sizes.choose(self.view, self._policy, now):
            self._emit(resized)
        if clear := self._carry_out(self._policy.decide(self.view, now), now):
            with self.view.keeping_off(clear):  # what would run into maintenance there is placed elsewhere
                self._carry_out(self._policy.decide(self.view, now), now)

    def _carry_out(self, plan: Plan, now: int) -> set[str]:
        """Do what was planned, but for gangs that would run into maintenance; the nodes that those are kept off."""
        late = {
            place.job: clash
            for place in plan.places
            if (clash := maintenance.in_the_way(self.view, place, now))
        }
        for cut in plan.cuts:
            if not any(part.job in late for part in cut.cut.parts):
                self._emit(ev.DeviceCut(cut.device, cut.cut, cut.because))
        for place in plan.places:
            if place.job not in late:
                self._place_gang(place, now)
        for wait in plan.waits:
            self._emit(ev.JobJudged(wait.job, wait.because))
            self._quiet.append(wait.job)
        for stop in plan.stops:
            self._preempt(stop)
        for keep in plan.keeps:
            expires_ns = max(keep.expires_ns, free_by_ns(self.view, plan.stops, now) + HELD_AFTER_NS)
            self._emit(ev.Promised(keep.job, keep.kind, keep.devices, expires_ns, keep.because))
        if self._forecaster is not None and plan.waits:
            for said in self._forecaster.starts(self.view, now, [wait.job for wait in plan.waits]):
                self._emit(said)
        if plan.again_ns is not None and plan.again_ns <= now:
            self._place = True
        elif plan.again_ns is not None:
            self._agenda.call_again(plan.again_ns)
        return {node for clash in late.values() for node in clash}

    def _place_gang(self, place: Place, now: int) -> None:
        job = self.view.jobs[place.job]
        self._emit(ev.AttemptPlaced(job.id, len(job.attempts) + 1, place.places, place.because))
        if self._forecaster is not None:
            for said in self._forecaster.placed(self.view, job):
                self._emit(said)
        self._command_start(job, job.attempts[-1])
        self._set_timers(job)
        self._holders.begin(self.view, job, now)

    def _preempt(self, stop: Stop) -> None:
        job = self.view.jobs[stop.job]
        attempt = job.live
        if attempt is not None and attempt.stop is None:
            grace_ns = int(job.spec.grace_s * 1e9)
            if stop.grace_ns is not None:
                grace_ns = min(grace_ns, stop.grace_ns)
            self._emit(
                ev.StopAsked(job.id, attempt.number, stop.why, grace_ns, stop.because, for_job=stop.for_job)
            )
            self._command_stop(job, attempt)

    # -- log and commands ------------------------------------------------------------------------

    def _flush(self) -> None:
        self._recorder.flush()
        commands, self._commands = self._commands, []
        for command in commands:
            command()
        self._care.act(self.view)

    def _let_rest(self) -> None:
        """Keep packed what was only added to a long queue, or judged."""
        if len(self.view.jobs.open) > REST_ABOVE:
            for job in self._quiet:
                self.view.jobs.rest(job)
        self._quiet = []

    def _command_start(self, job: JobView, attempt: AttemptView) -> None:
        if self._is_held(job, attempt):
            return
        command = engine_commands.start_of(self.view, job, attempt)
        self._commands.append(lambda: self._engine.start(command))

    def _is_held(self, job: JobView, attempt: AttemptView) -> bool:
        """Whether its nodes are checked first: none of its ranks has begun then."""
        starts = attempt.stop is None and not attempt.all_spawned
        return starts and self._care.holds(self.view, job, attempt)

    def _command_stop(self, job: JobView, attempt: AttemptView) -> None:
        if attempt.stop is not None:
            passed_ns = self._clock.now_ns() - (attempt.stop_ns or 0)
            grace_ns = max(attempt.stop.grace_ns - passed_ns, 0)
            command = StopGang(job.id, attempt.number, len(attempt.ranks), grace_ns)
            self._commands.append(lambda: self._engine.stop(command))

    def _touch(self, job: JobView) -> None:
        self._agenda.touch(job.id)
        self._sizes.add(job)
        self._set_timers(job)

    def _set_timers(self, job: JobView) -> None:
        """Look at the job again when its state may call for something though nothing happened."""
        times: Iterable[int | None] = (lifecycle.next_deadline_ns(job), job.not_before_ns or None)
        for time_ns in times:
            if time_ns is not None and time_ns > self._clock.now_ns():
                self._agenda.at(time_ns, job.id)

    def _next_ns(self, now: int) -> int | None:
        if self._agenda.waits or self._commands or (self._place and self._accepting and self.view.waiting):
            return now
        times = [self.view.book.seen_ns + self._sighting_every_ns]
        if (agenda_ns := self._agenda.next_ns) is not None:
            times.append(agenda_ns)
        if self._stacks is not None and self._stacks.pending:
            times.append(now + STACKS_EVERY_NS)
        if self._holders.next_ns is not None:
            times.append(self._holders.next_ns)
        if (care_ns := self._care.next_ns) is not None:
            times.append(care_ns)
        if (inbox_ns := self._requests.next_ns) is not None:
            times.append(inbox_ns)
        if self._notices is not None and (due_ns := self._notices.next_ns) is not None:
            times.append(due_ns)
        return min(times)


def free_by_ns(view: View, stops: Iterable[Stop], now_ns: int) -> int:
    """When all that is being stopped, and these too, have left: killed, where their grace is over before."""
    graces = [int(view.jobs[stop.job].spec.grace_s * 1e9) for stop in stops]
    attempts = (view.jobs[job].attempts[-1] for job in view.live)
    leaving = [(a.stop_ns or now_ns) + a.stop.grace_ns for a in attempts if a.stop is not None]
    return max([now_ns + max(graces, default=0), *leaving])
