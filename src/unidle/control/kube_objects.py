"""Jobs as objects of a cluster: what is applied is submitted, what is deleted is cancelled, and objects show how jobs are.

The log is the truth: an object that was changed by hand gets its status again, and one that was deleted while no controller ran
is missed at the next start. So no finalizer is needed, and none can keep a namespace from being deleted.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from datetime import UTC, datetime
from typing import TYPE_CHECKING, Any, Final

from unidle.control.host_reports import known_id
from unidle.control.queries.describe import reason_now
from unidle.engine.protocol import JobArrived
from unidle.errors import BadInput
from unidle.events import types as ev
from unidle.files.job import job_from_mapping
from unidle.jobs import NEVER, JobSpec, Reason
from unidle.jobs.pod import NO_CPUS
from unidle.kube.objects import UNIDLE_JOBS, RawObject
from unidle.kube.protocol import Emit, KubeWriter, Patch, Put, Synced, Vanished, Watch
from unidle.view.jobs import JobView
from unidle.view.state import View

if TYPE_CHECKING:
    from unidle.control.loop import Controller

_STEPS_EVERY_NS: Final = 5_000_000_000
_EVENTS_KEPT: Final = 10_000  # keys of Events that were sent
Plain = dict[str, Any]


class KubeObjects:
    """The Jobs of one namespace. It belongs to the thread of the loop. ``may_write``: whether the store's lease surely holds."""

    def __init__(
        self, jobs: Watch[RawObject], writer: KubeWriter, namespace: str, allow: Callable[[KubeWriter], None]
    ) -> None:
        self._jobs, self._writer, self._allow = jobs, writer, allow
        self._source = f"kubernetes/{namespace}"
        self._ids: dict[str, str] = {}  # of jobs, by the UID of their objects
        self._objects: dict[str, str] = {}  # the other way round
        self._refused: dict[str, str] = {}  # why an object is no job, by UID
        self._arrived: dict[str, JobArrived] = {}  # by UID, that no id is known of
        self._dirty: set[str] = set()  # UIDs
        self._gone: list[str] = []
        self._listed = False
        self._looked_ns = 0
        self._sent: dict[str, None] = {}

    @property
    def wake_fds(self) -> list[int]:
        return [self._jobs.wake_fd, self._writer.wake_fd]

    def arrivals(self) -> list[JobArrived]:
        """Jobs of objects that came. Never blocks."""
        found: list[JobArrived] = []
        for event in self._jobs.poll():
            if isinstance(event, Put):
                found += self._put(event.object)
            elif isinstance(event, Vanished):
                self._gone.append(event.object.metadata.uid)
            elif isinstance(event, Synced):
                self._listed = True
        return found

    def heard(self, event: ev.Event) -> None:
        """An event of the log: the job that it is about is read again."""
        job = getattr(event, "job", None)
        if isinstance(job, str) and job in self._objects:
            self._dirty.add(self._objects[job])

    def turn(self, controller: Controller, now_ns: int) -> None:
        """After a turn of the loop: cancel what was deleted, and write what changed."""
        view = controller.view
        self._allow(self._writer)
        self._writer.poll()  # a status that was refused is written again with the next change
        self._learn(view)
        if self._listed:
            self._listed = False
            self._miss(view)
        gone, self._gone = self._gone, []
        for uid in gone:
            self._cancel(controller, uid)
        if now_ns - self._looked_ns >= _STEPS_EVERY_NS:
            self._looked_ns = now_ns
            self._dirty |= {self._objects[job] for job in view.live if job in self._objects}
        dirty, self._dirty = self._dirty, set()
        for uid in dirty:
            self._write(view, uid)

    def close(self) -> None:
        self._jobs.close()
        self._writer.close(drain_s=1.0)

    def _put(self, found: RawObject) -> Iterator[JobArrived]:
        uid = found.metadata.uid
        self._dirty.add(uid)
        if (
            uid in self._ids
            or uid in self._arrived
            or uid in self._refused
            or found.metadata.deletion_timestamp
        ):
            return
        try:
            spec = spec_of(found)
        except BadInput as error:
            self._refused[uid] = str(error)
            return
        arrived = JobArrived(self._source, uid, found.metadata.name, spec, spec.user)
        self._arrived[uid] = arrived
        yield arrived

    def _learn(self, view: View) -> None:
        """Ids of the jobs that were submitted in this turn, or long ago."""
        for uid, arrived in list(self._arrived.items()):
            job = known_id(view, arrived)
            if job is not None:
                del self._arrived[uid]
                self._ids[uid], self._objects[job] = job, uid
                self._dirty.add(uid)

    def _miss(self, view: View) -> None:
        """After a list: jobs whose objects are there no more."""
        for job in view.jobs.open.awake():
            if job.source == self._source and job.identity not in self._jobs.objects:
                self._ids[job.identity], self._objects[job.id] = job.id, job.identity
                self._gone.append(job.identity)

    def _cancel(self, controller: Controller, uid: str) -> None:
        self._refused.pop(uid, None)
        self._arrived.pop(uid, None)
        job_id = self._ids.pop(uid, None)
        if job_id is None:
            return
        self._objects.pop(job_id, None)
        job = controller.view.jobs.get(job_id)
        if job is not None and not job.terminal and job.cancel_by is None:
            controller.cancel(job_id, "the deletion of its object")

    def _write(self, view: View, uid: str) -> None:
        found = self._jobs.objects.get(uid)
        if found is None:
            return
        meta = found.metadata
        job = view.jobs.get(self._ids.get(uid, ""))
        if job is None and uid not in self._refused:
            return
        status = (
            refused_status(self._refused[uid], found) if job is None else job_status(job, meta.generation)
        )
        if any(found.status.get(name) != value for name, value in status.items()):
            body = {"status": status}
            self._writer.write(Patch(UNIDLE_JOBS, meta.namespace, meta.name, body, uid=uid, sub="status"))
        for event in events_of(found, job, self._refused.get(uid, "")):
            if f"{uid} {event.key}" not in self._sent:
                self._sent[f"{uid} {event.key}"] = None
                self._writer.write(event)
        while len(self._sent) > _EVENTS_KEPT:
            del self._sent[next(iter(self._sent))]


def spec_of(found: RawObject) -> JobSpec:
    """The job that an object describes; without a name or a user it has those of the object and its namespace. Errors: BadInput."""
    meta = found.metadata
    given = {name: value for name, value in found.spec.items() if value is not None}
    return job_from_mapping(
        {"name": meta.name, "user": meta.namespace, **given}, f"job {meta.namespace}/{meta.name}", "/"
    )


def job_status(job: JobView, generation: int) -> Plain:
    """What an object shows of its job."""
    because = reason_now(job)
    live = job.live
    up = 0 if live is None else sum(rank.spawn_ns is not None and not rank.ended for rank in live.ranks)
    return {
        "job": job.id,
        "state": job.state,
        "attempt": len(job.attempts),
        "ranks": f"{up}/{job.spec.ranks}",
        "step": job.steps(),
        "message": "" if because is None else because.text,
        "startedAt": kube_time(job.attempts[0].placed_ns) if job.attempts else None,
        "endedAt": None if job.ended_ns is None else kube_time(job.ended_ns),
        "observedGeneration": generation,
        "conditions": list(_conditions(job, because, generation)),
    }


def refused_status(why: str, found: RawObject) -> Plain:
    """Of an object that is no job. The time of its condition is that of the object."""
    generation = found.metadata.generation
    refused = condition_of("Accepted", False, "Invalid", why, found.metadata.creation_timestamp, generation)
    return {"state": "refused", "message": why, "observedGeneration": generation, "conditions": [refused]}


def _conditions(job: JobView, because: Reason | None, generation: int) -> Iterator[Plain]:
    """As of Jobs of Kubernetes, so that ``kubectl wait --for=condition=Complete`` works."""
    submitted = kube_time(job.submitted_ns)
    yield condition_of("Accepted", True, "Submitted", f"the job is {job.id}", submitted, generation)
    reason = camel("waits" if because is None else because.code)
    text = "" if because is None else because.text
    last = job.attempts[-1] if job.attempts else None
    running = last is not None and last.live
    since_ns = job.submitted_ns if last is None else last.ended_ns or last.placed_ns
    yield condition_of("Running", running, reason, text, kube_time(since_ns), generation)
    if job.terminal and job.ended_ns is not None:
        done = "Complete" if job.state == "succeeded" else "Failed"
        yield condition_of(done, True, reason, text, kube_time(job.ended_ns), generation)


def condition_of(kind: str, holds: bool, reason: str, text: str, since: str, generation: int) -> Plain:
    return {
        "type": kind, "status": "True" if holds else "False", "reason": reason, "message": text[:32768],
        "lastTransitionTime": since, "observedGeneration": generation,
    }  # fmt: skip


def events_of(found: RawObject, job: JobView | None, refused: str) -> Iterator[Emit]:
    """What ``kubectl describe`` shows: the reasons of ``unidle explain``, each once."""
    meta = found.metadata
    about = {
        "apiVersion": "unidle.dev/v1alpha1", "kind": "Job", "namespace": meta.namespace, "name": meta.name, "uid": meta.uid
    }  # fmt: skip
    if job is None:
        yield Emit(about, "Invalid", refused, "refused", action="Submit", warning=True)
        return
    yield Emit(about, "Submitted", f"The job is {job.id}.", "submitted", action="Submit")
    if not job.spec.requests.cpu_milli:
        yield Emit(about, "NoCpuRequest", NO_CPUS, "no cpus", action="Submit", warning=True)
    if job.verdict is not None and not job.terminal:
        key = f"wait {len(job.attempts)} {job.verdict.code}"
        warning = job.verdict.code in NEVER
        yield Emit(about, camel(job.verdict.code), job.verdict.text, key, warning=warning)
    for attempt in job.attempts[-3:]:
        text = f"Attempt {attempt.number}: {attempt.because.text}"
        yield Emit(about, "Placed", text, f"placed {attempt.number}")
        if attempt.why is not None:
            failed = attempt.outcome not in ("succeeded", None)
            text = f"Attempt {attempt.number}: {attempt.why.text}"
            yield Emit(
                about, camel(attempt.why.code), text, f"ended {attempt.number}", action="Run", warning=failed
            )
    if job.terminal and job.because is not None:
        warning = job.state == "failed"
        yield Emit(about, job.state.capitalize(), job.because.text, "ended", action="Run", warning=warning)


def camel(code: str) -> str:
    """``no_room`` as ``NoRoom``: reasons of Kubernetes are one word."""
    return "".join(part[:1].upper() + part[1:] for part in code.split("_")) or "Unknown"


def kube_time(ns: int) -> str:
    return datetime.fromtimestamp(ns // 1_000_000_000, UTC).strftime("%Y-%m-%dT%H:%M:%SZ")
