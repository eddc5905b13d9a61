"""Histories without a fault, written event by event, for the tests of the checker."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, field, replace
from typing import TypeVar

from histories.record import History, Logged, Op, Start
from unidle.events import types as ev
from unidle.events.marks import Mark
from unidle.jobs import JobSpec, RankPlace, Reason

WHY = Reason("test", "as planned")
S = 1_000_000_000
OFFSET = 1_000_000 * S  # of the log's clock to boot time
E = TypeVar("E", bound=ev.Event)


@dataclass
class Made:
    """A run under way: each call adds what clients recorded and what the log got. Times are boot time."""

    now_ns: int = S
    events: list[tuple[int, ev.Event]] = field(default_factory=list)
    ops: list[Op] = field(default_factory=list)
    starts: list[Start] = field(default_factory=list)

    def __post_init__(self) -> None:
        self.log(ev.ControllerStarted("test", 1, 10 * S, clock_offset_ns=OFFSET))

    def log(self, event: ev.Event) -> None:
        self.now_ns += S // 10
        self.events.append((self.now_ns + OFFSET, event))

    def op(self, kind: str, outcome: str = "acknowledged", **more: object) -> None:
        start_ns, self.now_ns = self.now_ns, self.now_ns + S // 10
        self.ops.append(Op("c0", kind, start_ns, self.now_ns, outcome, **more))  # type: ignore[arg-type]

    def submit(self, name: str, priority: int = 0) -> None:
        self.op("submit", job=f"{name}-1", name=name, priority=priority)
        self.log(ev.JobSubmitted(f"{name}-1", JobSpec(("true",), name=name, priority=priority)))

    def attempt(self, name: str, number: int, *, steps: int, device: str, outcome: str = "succeeded") -> None:
        """One rank, from its place to its end, with a checkpoint at its last step."""
        job, place = f"{name}-1", (RankPlace(0, "n0", (device,)),)
        self.log(ev.AttemptPlaced(job, number, place, WHY))
        self.starts.append(Start(job, number, 0, 100 + len(self.starts)))
        self.see(job, number, 0, Mark("spawn", self.now_ns, pid=1))
        count = 1
        for step in range(1, steps + 1):
            self.mark(job, number, count, "step", step)
            count += 1
        self.mark(job, number, count, "saved", steps)
        self.mark(job, number, count + 1, "exit", 0 if outcome == "succeeded" else 1)
        self.log(ev.AttemptEnded(job, number, outcome, WHY))  # type: ignore[arg-type]

    def mark(self, job: str, attempt: int, first: int, kind: str, n: int) -> None:
        self.op("mark", job=job, attempt=attempt, mark=kind, n=n)
        what = {"code": n} if kind == "exit" else {"n": n}
        self.see(job, attempt, first, Mark(kind, self.now_ns, **what))

    def see(self, job: str, attempt: int, first: int, mark: Mark) -> None:
        self.log(ev.RankSaw(job, attempt, 0, first, (mark,)))

    def cancel(self, name: str, state: str = "") -> None:
        self.op("cancel", job=f"{name}-1", state=state)
        self.log(ev.CancelAsked(f"{name}-1", "test"))

    def end(self, name: str, state: str) -> None:
        self.log(ev.JobEnded(f"{name}-1", state, WHY))  # type: ignore[arg-type]

    def history(self) -> History:
        log = tuple(Logged(k, time_ns, event) for k, (time_ns, event) in enumerate(self.events, 1))
        return History(tuple(self.ops), log, tuple(self.starts))


def sound() -> History:
    """A job that succeeds, one that fails once, one that is cancelled while it runs, and one that is refused."""
    made = Made()
    made.submit("good", 3)
    made.attempt("good", 1, steps=3, device="n0/0")
    made.end("good", "succeeded")
    made.submit("again")
    made.attempt("again", 1, steps=2, device="n0/0", outcome="failed")
    made.attempt("again", 2, steps=4, device="n0/1")
    made.end("again", "succeeded")
    made.submit("long")
    made.log(ev.AttemptPlaced("long-1", 1, (RankPlace(0, "n0", ("n0/0",)),), WHY))
    made.starts.append(Start("long-1", 1, 0, 99))
    made.see("long-1", 1, 0, Mark("spawn", made.now_ns, pid=1))
    made.cancel("long", "cancelled")
    made.see("long-1", 1, 1, Mark("exit", made.now_ns, code=-15))
    made.log(ev.AttemptEnded("long-1", 1, "cancelled", WHY))
    made.end("long", "cancelled")
    made.op("submit", "refused", name="bad")
    made.op("submit", "unknown", name="perhaps")
    return made.history()


def without(history: History, gone: Callable[[ev.Event], bool]) -> History:
    """The history, with a log in which such events never were."""
    return relogged(history, [(e.time_ns, e.event) for e in history.log if not gone(e.event)])


def changed(history: History, kind: type[E], change: Callable[[E], Sequence[ev.Event]]) -> History:
    """The history, with the last event of that kind replaced by others."""
    at = max(k for k, e in enumerate(history.log) if isinstance(e.event, kind))
    found: list[tuple[int, ev.Event]] = []
    for k, logged in enumerate(history.log):
        new = change(logged.event) if k == at else (logged.event,)  # type: ignore[arg-type]
        found += [(logged.time_ns, event) for event in new]
    return relogged(history, found)


def relogged(history: History, events: Iterable[tuple[int, ev.Event]]) -> History:
    return replace(history, log=tuple(Logged(k, *event) for k, event in enumerate(events, 1)))
