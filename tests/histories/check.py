"""Compares what clients were promised with the final log. Pure: the same history has the same violations.

The rules, each a kind of violation:

- ``lost_submit``: an acknowledged submit has no job. ``refused_submit``: a refused one has a job. ``double_submit``: one
  request became two jobs, or one job was submitted twice. ``altered_submit``: the job is not what was submitted.
- ``lost_cancel``: after an acknowledged cancel the job ran on to another end, or started again. A gang whose ranks all
  finish before the stop reaches them has succeeded.
- ``lost_mark``: a mark that was on the disk is not in the log. ``mark_order``: marks of a rank repeat, are left out,
  or are not in the order in which the rank made them.
- ``started_twice``: a rank of one attempt began twice. ``two_attempts``: two attempts of a job were live at once.
  ``shared_device``: two live ranks were on one device, by the log or by what the ranks themselves found.
- ``sequence``: events are missing. ``clock``: the log's time goes back. ``ledger``: it does not add up.
- ``not_drained``: a job has no end after the faults ended and the queue was drained.
- ``bad_exit``: a command ended with a code that is not documented for faults, or with a traceback.
- ``unsaid_loss``: a fault destroyed acknowledged data, and no command reported it with exit code 4.

What may be lost. A store whose write-ahead log was deleted loses what was acknowledged before; an operation that
was still under way counts as before. Then ``lost_submit``, ``lost_cancel`` and ``lost_mark`` are no violations, if the
loss was reported. Marks of a rank whose journal was deleted may be missing if the log has this rank as ``lost``.
A rank whose run directory was deleted may run again after its end: if the controller was killed before the log had a
mark of it, nothing is left that has its start. Two processes of it at once are a violation in any case.
An operation whose outcome is unknown may have happened or not. All other rules hold whatever the faults were.
"""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from typing import Final

from histories.record import History, Logged, Offsets, Op
from unidle.events import types as ev
from unidle.events.marks import Mark

Key = tuple[str, int, int]  # job, attempt, rank
SLACK_NS: Final = 10_000_000_000
"""A controller reads its inbox four times a second; on a machine under load this is far more than it needs."""
ALLOWED: Final = (0, 4, -9, -15)


@dataclass(frozen=True, slots=True)
class Violation:
    kind: str
    text: str

    def __str__(self) -> str:
        return f"{self.kind}: {self.text}"


@dataclass(slots=True)
class _Job:
    """One job in the log. Times are boot time; ``at`` are sequence numbers."""

    submitted: list[ev.JobSubmitted] = field(default_factory=list)
    placed: list[tuple[int, int]] = field(default_factory=list)  # time, attempt
    cancelled: tuple[int, int] | None = None  # seq, and time of the log
    ended: tuple[int, str] | None = None


@dataclass(slots=True)
class _Read:
    """The log, sorted by what it is about."""

    offsets: Offsets
    jobs: dict[str, _Job] = field(default_factory=lambda: defaultdict(_Job))
    marks: dict[Key, list[tuple[int, int, Mark]]] = field(default_factory=lambda: defaultdict(list))
    devices: dict[Key, frozenset[str]] = field(default_factory=dict)

    @classmethod
    def of(cls, history: History) -> _Read:
        found = cls(Offsets.of(history.log))
        for logged in history.log:
            found._take(logged)
        return found

    def _take(self, logged: Logged) -> None:
        event, seq = logged.event, logged.seq
        at_ns = self.offsets.boot_ns(seq, logged.time_ns)
        if isinstance(event, ev.JobSubmitted):
            self.jobs[event.job].submitted.append(event)
        elif isinstance(event, ev.CancelAsked):
            self.jobs[event.job].cancelled = self.jobs[event.job].cancelled or (seq, logged.time_ns)
        elif isinstance(event, ev.AttemptPlaced):
            self.jobs[event.job].placed.append((at_ns, event.attempt))
            for place in event.places:
                self.devices[event.job, event.attempt, place.rank] = frozenset(place.slices)
        elif isinstance(event, ev.JobEnded):
            self.jobs[event.job].ended = (seq, event.state)
        elif isinstance(event, ev.RankSaw):
            marks = self.marks[event.job, event.attempt, event.rank]
            marks += [(seq, event.first + k, mark) for k, mark in enumerate(event.marks)]

    def is_lost(self, key: Key) -> bool:
        return any(mark.k == "lost" for _, _, mark in self.marks.get(key, ()))


def check(history: History) -> list[Violation]:
    """Every violation, by rule; empty where all promises were kept."""
    read = _Read.of(history)
    rules: tuple[Callable[[History, _Read], Iterator[Violation]], ...] = (
        _submits, _cancels, _marks, _mark_order, _starts, _attempts, _devices, _log, _ends,
    )  # fmt: skip
    return [found for rule in rules for found in rule(history, read)]


def _may_be_lost(history: History, op: Op) -> bool:
    """Whether a fault of the store that was reported may have taken it."""
    return any(loss.what == "store" and loss.said and op.start_ns <= loss.until_ns for loss in history.losses)


def _submits(history: History, read: _Read) -> Iterator[Violation]:
    by_name: dict[str, list[str]] = defaultdict(list)
    for job_id, job in read.jobs.items():
        for event in job.submitted:
            by_name[event.spec.name].append(job_id)
    for op in history.ops:
        if op.kind != "submit":
            continue
        jobs = by_name.get(op.name, [])
        if len(jobs) > 1:
            yield Violation("double_submit", f"{op.name} of {op.client} became {', '.join(jobs)}")
        if op.outcome == "refused" and jobs:
            yield Violation("refused_submit", f"{op.name} was refused, and {jobs[0]} is in the log")
        if op.outcome != "acknowledged":
            continue
        submitted = read.jobs[op.job].submitted if op.job in read.jobs else []
        if not submitted:
            if not _may_be_lost(history, op):
                yield Violation(
                    "lost_submit", f"{op.job} of {op.client} was acknowledged; it is not in the log"
                )
        elif (submitted[0].spec.name, submitted[0].spec.priority) != (op.name, op.priority):
            yield Violation("altered_submit", f"{op.job}: {op.name} of priority {op.priority} was submitted")


def _cancels(history: History, read: _Read) -> Iterator[Violation]:
    for op in history.ops:
        if op.kind != "cancel" or op.outcome != "acknowledged" or _may_be_lost(history, op):
            continue
        job = read.jobs.get(op.job)
        if job is None or not job.submitted:
            continue  # a lost submit, where it was acknowledged
        if (why := _ran_on(history, read, op, job)) is not None:
            yield Violation("lost_cancel", f"{op.job}, cancelled by {op.client}: {why}")


def _ran_on(history: History, read: _Read, op: Op, job: _Job) -> str | None:
    if job.ended is None:
        return "has no end"
    if op.state and op.state != job.ended[1]:
        return f"{op.state} was reported, but it ended as {job.ended[1]}"
    if job.ended[1] == "cancelled":
        return None
    if late := [attempt for at_ns, attempt in job.placed if at_ns > op.end_ns + SLACK_NS]:
        return f"attempt {late[0]} started long after it"
    if job.cancelled is not None:
        return _end_after_cancel(read, op.job, job)
    if job.ended[0] < _taken_at(history, read, op):
        return None
    return f"{job.ended[1]}, and no controller took the request"


def _end_after_cancel(read: _Read, job_id: str, job: _Job) -> str | None:
    """A gang that finishes before its stop reaches it has succeeded: it did so soon, and every rank exited with 0."""
    assert job.cancelled is not None
    assert job.ended is not None
    cancel_at, cancel_ns = job.cancelled
    if job.ended[0] < cancel_at:
        return None
    if job.ended[1] != "succeeded":
        return f"ended as {job.ended[1]}"
    for (name, attempt, rank), marks in read.marks.items():
        if name != job_id or attempt != len(job.placed):
            continue
        ends = [mark for _, _, mark in marks if mark.k in ("exit", "lost")]
        if not ends or ends[-1].code != 0 or ends[-1].t > cancel_ns + SLACK_NS:
            return f"succeeded although rank {rank} was at work"
    return None


def _taken_at(history: History, read: _Read, op: Op) -> int:
    """The event by which a controller has read every request that was in the inbox at the operation's end."""
    for logged in history.log:
        if read.offsets.boot_ns(logged.seq, logged.time_ns) > op.end_ns + SLACK_NS:
            return logged.seq
    return history.log[-1].seq + 1 if history.log else 0


def _marks(history: History, read: _Read) -> Iterator[Violation]:
    damaged = {(loss.job, loss.attempt, loss.rank) for loss in history.losses if loss.what == "run_directory"}
    present = {
        key: Counter((mark.k, mark.code if mark.k == "exit" else mark.n) for _, _, mark in marks)
        for key, marks in read.marks.items()
    }
    for op in history.ops:
        if op.kind != "mark" or op.outcome != "acknowledged":
            continue
        key = (op.job, op.attempt, op.rank)
        if present.get(key, Counter())[op.mark, op.n] or _may_be_lost(history, op):
            continue
        if key in damaged and read.is_lost(key):
            continue
        yield Violation(
            "lost_mark", f"{op.mark} {op.n} of {_words(key)} was on the disk; it is not in the log"
        )


def _mark_order(history: History, read: _Read) -> Iterator[Violation]:
    for key, marks in read.marks.items():
        numbers = [number for _, number, _ in marks]
        if numbers != list(range(len(numbers))):
            yield Violation("mark_order", f"the marks of {_words(key)} have the numbers {numbers}")
        kinds = [mark.k for _, _, mark in marks]
        ends = [k for k, kind in enumerate(kinds) if kind in ("exit", "lost")]
        if len(ends) > 1 or (ends and any(kind in ("step", "saved") for kind in kinds[ends[0] :])):
            yield Violation("mark_order", f"{_words(key)} has marks after its end: {kinds}")
        for kind in ("step", "saved"):
            steps = [mark.n for _, _, mark in marks if mark.k == kind]
            if steps != sorted(steps, key=lambda n: n or 0):
                yield Violation("mark_order", f"{kind} of {_words(key)} in the order {steps}")


def _starts(history: History, read: _Read) -> Iterator[Violation]:
    seen = Counter((start.job, start.attempt, start.rank) for start in history.starts)
    for key, marks in read.marks.items():
        spawned = sum(mark.k == "spawn" for _, _, mark in marks)
        if spawned > 1:
            yield Violation("started_twice", f"{_words(key)} has {spawned} spawn marks")
    damaged = {(loss.job, loss.attempt, loss.rank) for loss in history.losses if loss.what == "run_directory"}
    at_once = {
        key for start in history.starts if (key := (start.job, start.attempt, start.rank)) in start.found
    }
    for key, times in seen.items():
        if times > 1 and (key in at_once or key not in damaged):
            yield Violation("started_twice", f"{_words(key)} ran {times} times")


def _attempts(history: History, read: _Read) -> Iterator[Violation]:
    live: dict[str, int] = {}
    for logged in history.log:
        event = logged.event
        if isinstance(event, ev.JobSubmitted) and len(read.jobs[event.job].submitted) > 1:
            yield Violation("double_submit", f"{event.job} is in the log more than once")
            read.jobs[event.job].submitted = read.jobs[event.job].submitted[:1]
        elif isinstance(event, ev.AttemptPlaced):
            if event.job in live:
                text = f"attempt {event.attempt} of {event.job} while {live[event.job]} is live"
                yield Violation("two_attempts", text)
            live[event.job] = event.attempt
        elif isinstance(event, ev.AttemptEnded):
            live.pop(event.job, None)
    for start in history.starts:
        for job, attempt, rank in start.found:
            if job == start.job and attempt != start.attempt:
                me, other = (start.job, start.attempt, start.rank), (job, attempt, rank)
                yield Violation("two_attempts", f"{_words(me)} began while {_words(other)} ran")


def _devices(history: History, read: _Read) -> Iterator[Violation]:
    taken: dict[str, Key] = {}
    for logged in history.log:
        event = logged.event
        if isinstance(event, ev.AttemptPlaced):
            for place in event.places:
                for device in place.slices:
                    key = (event.job, event.attempt, place.rank)
                    if device in taken:
                        yield Violation(
                            "shared_device", f"{device}: {_words(taken[device])} and {_words(key)}"
                        )
                    taken[device] = key
        elif isinstance(event, ev.AttemptEnded):
            ended = (event.job, event.attempt)
            taken = {device: key for device, key in taken.items() if key[:2] != ended}
    for start in history.starts:
        me = (start.job, start.attempt, start.rank)
        for other in start.found:
            if both := read.devices.get(me, frozenset()) & read.devices.get(other, frozenset()):
                text = f"{min(both)}: {_words(me)} began while {_words(other)} ran"
                yield Violation("shared_device", text)


def _log(history: History, read: _Read) -> Iterator[Violation]:
    before: Logged | None = None
    for number, logged in enumerate(history.log, 1):
        if logged.seq != number:
            yield Violation("sequence", f"event {number} is missing: {logged.seq} is in its place")
            break
    for logged in history.log:
        if before is not None and logged.time_ns < before.time_ns:
            yield Violation("clock", f"event {logged.seq} is older than event {before.seq}")
        before = logged
    yield from (Violation("ledger", problem) for problem in history.ledger)


def _ends(history: History, read: _Read) -> Iterator[Violation]:
    for job_id, job in read.jobs.items():
        if job.submitted and job.ended is None:
            yield Violation("not_drained", f"{job_id} has no end")
    for ended in history.ended:
        if ended.code not in ALLOWED or "Traceback" in ended.stderr:
            yield Violation("bad_exit", f"{ended.what} ended with {ended.code}: {ended.stderr[-1500:]}")
    for loss in history.losses:
        if loss.what == "store" and not loss.said:
            yield Violation("unsaid_loss", "the store lost acknowledged data, and no command reported it")


def _words(key: Key) -> str:
    return f"rank {key[2]} of attempt {key[1]} of {key[0]}"
