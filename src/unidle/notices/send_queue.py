"""What one channel has still to deliver: in order per subject, bounded, with back-off. For many threads."""

from __future__ import annotations

import random
import threading
import time
from collections import deque
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Final, Literal

import msgspec

from unidle.notices.dedup import summary
from unidle.notices.model import Notice

PENDING_MOST: Final = 256
"""More than these that wait for a channel that is down are summed up, the oldest first."""
_RECENT: Final = 20
_FIRST_S: Final = 1.0
_LONGEST_S: Final = 600.0
_ASKED_MOST_S: Final = 6 * 3600.0

Outcome = Literal["done", "again", "refused"]


@dataclass(frozen=True, slots=True)
class Delivery:
    """The outcome of a delivery. ``text`` describes it without secrets; ``after_s``: the wait that the receiver requests."""

    outcome: Outcome
    text: str = ""
    after_s: float = 0.0


class PastNotice(msgspec.Struct, frozen=True):
    """A notice that needs no more delivery."""

    id: str
    kind: str
    state: str
    subject: str
    at_ns: int
    outcome: str


class DeliveryRecord(msgspec.Struct):
    """What became of a channel's notices. Times are of the wall clock."""

    sent: int = 0
    refused: int = 0
    tries: int = 0
    sent_ns: int | None = None
    error: str = ""
    error_ns: int | None = None
    recent: list[PastNotice] = []


@dataclass(slots=True)
class QueuedNotice:
    notice: Notice
    busy: bool = False
    tries: int = 0
    begun_s: float = 0.0


@dataclass(slots=True)
class _State:
    entries: deque[QueuedNotice] = field(default_factory=deque)
    failures: int = 0
    not_before_s: float = 0.0
    failed_s: float = -1.0
    changes: int = 0
    closed: bool = False


def backoff_s(failures: int, chance: float) -> float:
    """Seconds until the next try after so many failures (from 1): doubling to ten minutes, less up to a half by ``chance``."""
    return min(_FIRST_S * 2.0 ** min(failures - 1, 30), _LONGEST_S) * (1.0 - chance / 2)


class SendQueue:
    """Workers :meth:`take` a notice, deliver it, and :meth:`settle` it. A failing channel is tried one at a time."""

    def __init__(
        self, pending: list[Notice], record: DeliveryRecord, *,
        clock: Callable[[], float] = time.monotonic, chance: Callable[[], float] = random.random,
    ) -> None:  # fmt: skip
        self._now, self._chance = clock, chance
        self._changed = threading.Condition()
        self._state = _State(deque(QueuedNotice(one) for one in pending))
        self._record = record

    def put(self, notice: Notice) -> None:
        with self._changed:
            self._state.entries.append(QueuedNotice(notice))
            self._collapse()
            self._state.changes += 1
            self._changed.notify_all()

    def take(self) -> QueuedNotice | None:
        """The next notice, once there is one that may be sent; None when the queue is closed."""
        with self._changed:
            while not self._state.closed:
                entry, wait_s = self._next()
                if entry is not None:
                    entry.busy, entry.begun_s = True, self._now()
                    return entry
                self._changed.wait(wait_s)
            return None

    def settle(self, entry: QueuedNotice, answer: Delivery) -> None:
        """Say how the delivery of what was taken went."""
        with self._changed:
            state, record, notice = self._state, self._record, entry.notice
            state.changes += 1
            record.tries += 1
            entry.busy = False
            entry.tries += 1
            if answer.outcome == "again":
                self._failed(entry, answer)
            else:
                state.entries.remove(entry)
                state.failures, state.not_before_s = 0, 0.0
                now_ns = time.time_ns()
                if answer.outcome == "done":
                    record.sent, record.sent_ns = record.sent + 1, now_ns
                else:
                    record.refused += 1
                    record.error, record.error_ns = answer.text, now_ns
                past = PastNotice(
                    notice.id, notice.kind, notice.state, notice.subject, now_ns, answer.outcome
                )
                record.recent = [*record.recent, past][-_RECENT:]
            self._changed.notify_all()

    def snapshot(self) -> tuple[int, list[Notice], DeliveryRecord]:
        """A number that grows with each change, what is not delivered yet, and the record."""
        with self._changed:
            return (
                self._state.changes,
                [e.notice for e in self._state.entries],
                msgspec.structs.replace(self._record),
            )

    @property
    def changes(self) -> int:
        return self._state.changes

    def drain(self, until_s: float) -> None:
        """Wait until nothing is left, the channel fails, or it is ``until_s``; then let no one take any more."""
        with self._changed:
            while self._state.entries and not self._state.failures and (left_s := until_s - self._now()) > 0:
                self._changed.wait(left_s)
            self._state.closed = True
            self._changed.notify_all()

    def _failed(self, entry: QueuedNotice, answer: Delivery) -> None:
        state = self._state
        now_s = self._now()
        if entry.begun_s >= state.failed_s:  # those that were under way at the same time are one failure
            state.failures += 1
            state.failed_s = now_s
        wait_s = max(backoff_s(state.failures, self._chance()), min(answer.after_s, _ASKED_MOST_S))
        state.not_before_s = max(state.not_before_s, now_s + wait_s)
        self._record.error, self._record.error_ns = answer.text, time.time_ns()

    def _next(self) -> tuple[QueuedNotice | None, float | None]:
        """What may be sent now, else for how long to wait (None: until something changes)."""
        state = self._state
        if not state.entries:
            return None, None
        busy = any(entry.busy for entry in state.entries)
        if state.failures:
            wait_s = state.not_before_s - self._now()
            if busy or wait_s > 0:
                return None, None if busy else wait_s
        subjects: set[str] = set()
        ready: list[QueuedNotice] = []
        for k, entry in enumerate(state.entries):
            if entry.notice.kind == "summary":  # of many subjects: what is older precedes it, newer after it
                ready += [entry] if k == 0 and not entry.busy else []
                break
            if not entry.busy and entry.notice.subject not in subjects:
                ready.append(entry)
            subjects.add(entry.notice.subject)
        # what a receiver does not take must not keep it from what it would take
        return min(ready, key=lambda one: one.tries, default=None), None

    def _collapse(self) -> None:
        entries = self._state.entries
        if len(entries) <= PENDING_MOST:
            return
        old = [e for e in entries if not e.busy][: PENDING_MOST // 2]
        gone = set(map(id, old))
        left = [e for e in entries if id(e) not in gone]
        busy = next((k for k, e in enumerate(left) if not e.busy), len(left))
        left.insert(busy, QueuedNotice(summary([e.notice for e in old], "sent late")))
        self._state.entries = deque(left)
