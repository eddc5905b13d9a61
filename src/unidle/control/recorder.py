"""Records the loop's events: in the view immediately, in the log with one transaction per turn."""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING, Final

from unidle.clock import Clock
from unidle.control.heap import return_freed
from unidle.engine.protocol import RankMarks
from unidle.events import types as ev
from unidle.store.protocol import Lease, NewEvent, Store
from unidle.view.fold import apply
from unidle.view.source import save_snapshot
from unidle.view.state import View

if TYPE_CHECKING:
    from unidle.notices.dispatcher import NoticeDispatcher

SNAPSHOT_AFTER_EVENTS: Final = 2_000  # a reader folds half as many on average
_BYTES_PER_EVENT: Final = 1_000
"""A large snapshot is kept less often: so many of its bytes are written for each event of the log at most."""
_SNAPSHOT_MOST_EVENTS: Final = 10_000

Watcher = Callable[[ev.Event, int], None]


class Recorder:
    """Writes the log of one store, and keeps its view. ``watcher(event, time_ns)`` is called for every event."""

    def __init__(
        self, store: Store, lease: Lease, clock: Clock, view: View, notices: NoticeDispatcher | None
    ) -> None:
        self._store, self._lease, self._clock, self._view = store, lease, clock, view
        self._notices = notices
        self.watcher: Watcher | None = None
        self._new: list[NewEvent] = []
        self._done_requests: list[int] = []
        self._snapshot_seq = view.seq
        self._snapshot_after = SNAPSHOT_AFTER_EVENTS

    def emit(self, event: ev.Event, source: str = "control", source_seq: int | None = None) -> None:
        """Say one event, now. ``source_seq``: its number at its source, where that counts its own."""
        view = self._view
        seq = view.seq + 1
        apply(view, event, seq, self._clock.now_ns())
        kind, body = ev.encode(event)
        number = seq if source_seq is None else source_seq
        self._new.append(NewEvent(view.time_ns, source, number, kind, body))
        if self._notices is not None:
            self._notices.saw(event, seq, view.time_ns)
        if self.watcher is not None:
            self.watcher(event, view.time_ns)

    def emit_marks(self, seen: RankMarks) -> None:
        """Say what a rank left, numbered as the rank did."""
        event = ev.RankSaw(seen.job, seen.attempt, seen.rank, seen.first, seen.marks)
        self.emit(event, f"rank:{seen.job}/{seen.attempt}/{seen.rank}", seen.first)

    def request_done(self, request: int) -> None:
        """Remove the request, by its id, from the inbox in the same transaction as its events."""
        self._done_requests.append(request)

    def flush(self) -> None:
        """Write all recorded events to the log. Without any, see that the lease holds: commands follow in both cases.

        Errors: :class:`unidle.errors.LeaseLost`, else :class:`unidle.errors.StoreError`.
        """
        if self._new or self._done_requests:
            self._store.append(self._lease, self._new, done_requests=self._done_requests)
            self._new, self._done_requests = [], []
        else:
            self._store.confirm(self._lease)
        if self._notices is not None:
            self._notices.turn(self._view.seq, self._clock.now_ns())

    def snapshot(self, after_events: int | None = None) -> None:
        """Keep the view, if so many events came since the last time; None: as many as are worth its size."""
        due = after_events if after_events is not None else self._snapshot_after
        if self._view.seq - self._snapshot_seq >= due:
            sealed = len(self._view.book.segments)
            size = save_snapshot(self._store, self._lease, self._view)
            if len(self._view.book.segments) > sealed:
                return_freed()
            self._snapshot_seq = self._view.seq
            worth = size // _BYTES_PER_EVENT
            self._snapshot_after = min(max(worth, SNAPSHOT_AFTER_EVENTS), _SNAPSHOT_MOST_EVENTS)
