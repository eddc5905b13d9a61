"""When to look at which holder, and whose utilisation to measure. The decision is ``unidle.share.idle``'s."""

from __future__ import annotations

import heapq
from collections.abc import Iterator

from unidle.engine.protocol import Utilised, WatchGang
from unidle.events import types as ev
from unidle.fleet import Fleet
from unidle.fleet.policies import IdleTerms
from unidle.share.idle import IdleHolder, IdlePlan, decide_idle, measure_every_ns
from unidle.view.idle_holders import holder_of, terms_of
from unidle.view.jobs import AttemptView, JobView
from unidle.view.state import View


class IdleWatch:
    """Checks a holder when its timer expires, when it has a new measurement, or while it has a notice.

    The cost of a check depends on the ranks and slices of the attempt, not on the size of the log.
    """

    def __init__(self, *, watch: bool = True) -> None:
        """Without ``watch`` no holder is checked."""
        self._watch = watch
        self._heap: list[tuple[int, str]] = []
        self._next: dict[str, int] = {}  # job -> when its live attempt is to be looked at by itself
        self._watched: set[str] = set()
        self._fleet: Fleet | None = None
        self._terms: dict[tuple[str, bool], IdleTerms | None] = {}

    @property
    def next_ns(self) -> int | None:
        """When :meth:`due` may have an answer."""
        return self._heap[0][0] if self._heap else None

    def due(self, now_ns: int) -> Iterator[str]:
        """Jobs whose time has come."""
        while self._heap and self._heap[0][0] <= now_ns:
            at_ns, job = heapq.heappop(self._heap)
            if self._next.get(job) == at_ns:
                yield job

    def begin(self, view: View, job: JobView, now_ns: int) -> None:
        """An attempt was placed: the first look is due when it could be quiet for a while."""
        self.forget(job.id)
        terms = self._terms_of(view, job)
        if terms is not None:
            every_ns = measure_every_ns(terms)
            self._look_at(
                job.id, (now_ns // every_ns + 2) * every_ns
            )  # with others that were placed about then

    def measured(self, view: View, seen: Utilised) -> ev.UtilisationSeen | None:
        """The event of a measurement; None if nothing changed, or if that attempt is not live."""
        job = view.jobs.open.get(seen.job)
        attempt = job.live if job is not None else None
        if attempt is None or attempt.number != seen.attempt:
            return None
        if (attempt.use.use, attempt.use.text) == (seen.use, seen.text):
            return None
        self._next.pop(seen.job, None)
        return ev.UtilisationSeen(seen.job, seen.attempt, seen.use, seen.since_ns, seen.text)

    def look(self, view: View, job: JobView, now_ns: int) -> tuple[list[ev.Event], WatchGang | None]:
        """What follows for the job's holder now, and what the engine is to measure from now on."""
        attempt = job.live
        if attempt is None or attempt.stop is not None or job.cancel_by is not None:
            self.forget(job.id)
            return [], None
        if attempt.silent:
            return (
                [],
                None,
            )  # who does not answer may be at work; the job is looked at when it answers again
        if attempt.notice is None and self._next.get(job.id, 0) > now_ns:
            return [], None
        terms = self._terms_of(view, job)
        if terms is None and attempt.notice is None:
            return [], self._measure(view, job, attempt, None)
        holder = holder_of(view, job, attempt, now_ns)
        plan = decide_idle(holder, terms, now_ns)
        if plan.again_ns is not None:
            self._look_at(job.id, plan.again_ns)
        else:
            self._next[job.id] = 1 << 63
        watched = terms if plan.watch else None
        return _events(job, holder, terms, plan), self._measure(view, job, attempt, watched)

    def forget(self, job: str) -> None:
        """The job's attempt has ended, or ends."""
        self._next.pop(job, None)
        self._watched.discard(job)

    def _look_at(self, job: str, at_ns: int) -> None:
        if self._next.get(job) != at_ns:
            self._next[job] = at_ns
            heapq.heappush(self._heap, (at_ns, job))

    def _measure(
        self, view: View, job: JobView, attempt: AttemptView, terms: IdleTerms | None
    ) -> WatchGang | None:
        if (terms is not None) == (job.id in self._watched):
            return None
        every_ns = 0 if terms is None else measure_every_ns(terms)
        (self._watched.discard if terms is None else self._watched.add)(job.id)
        return WatchGang(job.id, attempt.number, attempt.places, every_ns, view.fleet.idle.busy_ppm)

    def _terms_of(self, view: View, job: JobView) -> IdleTerms | None:
        if not job.spec.needs_devices or not self._watch:
            return None
        if view.fleet is not self._fleet:
            self._fleet, self._terms = view.fleet, {}
        key = (job.spec.queue, job.spec.idle_ok)
        if key not in self._terms:
            self._terms[key] = terms_of(view, job)
        return self._terms[key]


def _events(job: JobView, holder: IdleHolder, terms: IdleTerms | None, plan: IdlePlan) -> list[ev.Event]:
    if plan.step is None or plan.because is None:
        return []
    key, because = holder.attempt, plan.because
    if plan.step == "withdraw":
        return [ev.IdleOver(*key, because)]
    if plan.step == "tell":
        return [ev.IdleTold(*key, holder.since_ns, holder.evidence or "none", plan.notice_ns, because)]
    grace_ns = int(job.spec.grace_s * 1e9)
    requeue = terms is not None and terms.then == "requeue"
    return [ev.StopAsked(*key, "idle", grace_ns, because, requeue=requeue)]
