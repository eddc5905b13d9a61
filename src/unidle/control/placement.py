"""Calls the placement policy, and carries out its plan: gangs start, stop or wait, and devices are kept."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Final

from msgspec import structs

from unidle.control.loop_state import LoopState
from unidle.control.nodes import maintenance
from unidle.events import types as ev
from unidle.jobs import Reason
from unidle.place import fillers
from unidle.place.fillers import FillerPolicy
from unidle.place.protocol import Keep, Place, Plan, Policy, Stop
from unidle.view.jobs import JobView, in_full
from unidle.view.state import View

HELD_AFTER_NS: Final = 60_000_000_000  # what was promised, after those who held it have to be gone


class Placement:
    """The policy of one controller."""

    def __init__(self, policy: Policy, state: LoopState) -> None:
        self._policy, self._state = policy, state
        self._fillers = FillerPolicy()

    def decide(self, now: int, *, fillers_only: bool = False) -> None:
        """Place what waits, and then fillers on what is left."""
        view = self._state.view
        if view.waiting and not fillers_only:
            self._place(view, now)
        if view.fillers.waiting:
            plan = self._fillers.decide(view, now)
            for place in plan.places:
                self._start(place, now)
            for wait in plan.waits:
                self._state.emit(ev.JobJudged(wait.job, wait.because))

    def _place(self, view: View, now: int) -> None:
        """What would run into maintenance on some nodes is placed elsewhere."""
        self._state.emit_all(self._state.sizes.choose(view, self._policy, now))
        if clear := self._carry_out(self._policy.decide(view, now), now):
            with view.keeping_off(clear):
                self._carry_out(self._policy.decide(view, now), now)

    def _carry_out(self, plan: Plan, now: int) -> set[str]:
        """Do what was planned, but for gangs that would run into maintenance; the nodes that those are kept off."""
        state, view = self._state, self._state.view
        late = {
            place.job: clash for place in plan.places if (clash := maintenance.in_the_way(view, place, now))
        }
        for cut in plan.cuts:
            if not any(part.job in late for part in cut.cut.parts):
                whose = [part.job for part in cut.cut.parts if part.job]
                self._clear(fillers.on_device(view, cut.device), view.jobs[whose[-1]] if whose else None)
                state.emit(ev.DeviceCut(cut.device, cut.cut, cut.because))
        for place in plan.places:
            if place.job not in late:
                self._start(place, now)
        for wait in plan.waits:
            state.emit(ev.JobJudged(wait.job, wait.because))
            state.rest_after_turn(wait.job)
        for stop in plan.stops:
            self._preempt(stop)
        for keep in plan.keeps:
            self._promise(keep, plan, now)
        if state.services.forecaster is not None and plan.waits:
            jobs = [wait.job for wait in plan.waits]
            state.emit_all(state.services.forecaster.starts(view, now, jobs))
        self._call_again(plan.again_ns, now)
        return {node for clash in late.values() for node in clash}

    def _start(self, place: Place, now: int) -> None:
        state = self._state
        job = state.view.jobs[place.job]
        self._clear(list(fillers.in_the_way(state.view, job, place.places)), job)
        state.emit(ev.AttemptPlaced(job.id, len(job.attempts) + 1, place.places, place.because))
        if state.services.forecaster is not None:
            state.emit_all(state.services.forecaster.placed(state.view, job))
        state.commands.start(job, job.attempts[-1])
        state.set_timers(job)
        state.idle.begin(state.view, job, now)

    def _clear(self, names: Iterable[str], job: JobView | None) -> None:
        """Stop these fillers at once; from now on their devices are the job's."""
        state = self._state
        for name in tuple(names):
            filler = state.view.jobs.open[name]
            attempt = filler.attempts[-1]
            grace_ns = fillers.grace_ns(filler.spec)
            for_job = job.id if job is not None else name
            whom = in_full(job) if job is not None else "others"
            text = f"stopped to make room for {whom}: it is a filler, which leaves at once"
            because = Reason("filler_yields", text)
            if attempt.stop is None:
                state.stop_gang(filler, attempt, "preempted", because, most_ns=grace_ns, for_job=for_job)
            else:  # it was leaving, with more time
                state.emit(structs.replace(attempt.stop, grace_ns=grace_ns, for_job=for_job))
                state.commands.kill(filler)

    def _preempt(self, stop: Stop) -> None:
        job = self._state.view.jobs[stop.job]
        if job.live is not None and job.live.stop is None:
            self._state.stop_gang(
                job, job.live, stop.why, stop.because, most_ns=stop.grace_ns, for_job=stop.for_job
            )

    def _promise(self, keep: Keep, plan: Plan, now: int) -> None:
        expires_ns = max(keep.expires_ns, free_by_ns(self._state.view, plan.stops, now) + HELD_AFTER_NS)
        self._state.emit(ev.Promised(keep.job, keep.kind, keep.devices, expires_ns, keep.because))

    def _call_again(self, again_ns: int | None, now: int) -> None:
        if again_ns is not None and again_ns <= now:
            self._state.place = True
        elif again_ns is not None:
            self._state.queue.call_again(again_ns)


def free_by_ns(view: View, stops: Iterable[Stop], now_ns: int) -> int:
    """When all that is being stopped, and these too, have left: killed, where their grace is over before."""
    graces = [int(view.jobs[stop.job].spec.grace_s * 1e9) for stop in stops]
    attempts = (view.jobs[job].attempts[-1] for job in view.live)
    leaving = [(a.stop_ns or now_ns) + a.stop.grace_ns for a in attempts if a.stop is not None]
    return max([now_ns + max(graces, default=0), *leaving])
