"""From the log to the channels' queues, with a bookmark in the store: at least once, also after ``kill -9``.

The bookmark holds how far the log was read and what each channel has still to deliver. It is stored
after the events and before anything depends on it. What a killed controller had not stored is derived again
from the log, with the same ids.
"""

from __future__ import annotations

import time
from collections.abc import Mapping, Sequence
from typing import Final

import msgspec

from unidle.errors import StoreDamaged
from unidle.events import types as ev
from unidle.files.fleet_notices import NoticeChannel
from unidle.notices import derive
from unidle.notices.dedup import Deduplicator
from unidle.notices.model import Notice
from unidle.notices.send_queue import DeliveryRecord, SendQueue
from unidle.notices.sender import Send, SenderThreads, in_flight_most
from unidle.store.protocol import Bookmark, Lease, Store

NAME: Final = "notices"
KEEP_EVERY_NS: Final = 1_000_000_000
"""How long a delivery may wait to be kept: a controller that is killed meanwhile sends it again."""
_SEQ_EVERY: Final = 20_000
_CATCH_UP_MOST: Final = 500_000
_CHANNELS_KEPT: Final = 64


class ChannelState(msgspec.Struct):
    """One channel in the bookmark."""

    temper: Deduplicator
    pending: list[Notice] = []
    record: DeliveryRecord = msgspec.field(default_factory=DeliveryRecord)


class NoticeBookmark(msgspec.Struct):
    """The bookmark's body."""

    known: derive.DerivationState
    channels: dict[str, ChannelState] = {}
    v: int = 1


class _Outlet(msgspec.Struct):
    channel: NoticeChannel
    dedup: Deduplicator
    queue: SendQueue
    threads: SenderThreads


class NoticeDispatcher:
    """Sends notices of the events of a store, which this process holds, to the channels."""

    def __init__(
        self,
        store: Store,
        lease: Lease,
        channels: Sequence[tuple[NoticeChannel, Send]],
        health: Mapping[str, str],
    ) -> None:
        """``health``: of the nodes and devices that are not healthy now. Errors: :class:`unidle.errors.StoreError`."""
        self._store, self._lease = store, lease
        book, self._seq = load(store)
        if self._seq == store.last()[0]:  # also where there is no bookmark yet
            book.known.health = dict(health)
        self._known = book.known
        self._others = {
            name: kept for name, kept in book.channels.items() if name not in {c.name for c, _ in channels}
        }
        self._outlets = [
            _outlet(channel, send, book.channels.get(channel.name)) for channel, send in channels
        ]
        self._seen: list[tuple[ev.Event, int, int]] = []
        self._kept = (self._seq, -1)
        self._keep_ns = 0
        self._catch_up()
        for outlet in self._outlets:
            outlet.threads.wake(len(outlet.queue.snapshot()[1]))

    @property
    def next_ns(self) -> int | None:
        """When :meth:`turn` may have something to do by itself, on the log's clock."""
        times = [at for outlet in self._outlets if (at := outlet.dedup.next_ns()) is not None]
        if self._changes() != self._kept[1]:
            times.append(self._keep_ns + KEEP_EVERY_NS)
        return min(times, default=None)

    def saw(self, event: ev.Event, seq: int, time_ns: int) -> None:
        """An event that will be in the log before the next :meth:`turn`."""
        if type(event) in derive.TYPES:
            self._seen.append((event, seq, time_ns))
        if seq == 1:
            self._known.source = str(time_ns)

    def turn(self, seq: int, now_ns: int) -> None:
        """Put what follows from the events up to ``seq``, which are in the log, before the channels."""
        seen, self._seen = self._seen, []
        self._seq = seq
        told = 0
        for event, number, time_ns in seen:
            told += self._tell(derive.derive(self._known, event, number, time_ns))
        for outlet in self._outlets:
            told += _put(outlet, list(outlet.dedup.due(now_ns)))
        changed = self._changes() != self._kept[1] and now_ns - self._keep_ns >= KEEP_EVERY_NS
        if told or changed or seq - self._kept[0] >= _SEQ_EVERY:
            self._keep(now_ns)

    def close(self, now_ns: int, wait_s: float = 5.0) -> None:
        """Give what waits a last chance, and keep the rest for the next controller."""
        until_s = time.monotonic() + wait_s
        for outlet in self._outlets:
            outlet.queue.drain(until_s)
        if self._changes() != self._kept[1] or self._seq != self._kept[0]:
            self._keep(now_ns)

    def abandon(self) -> None:
        """Stop without a word, as where the store has failed."""
        for outlet in self._outlets:
            outlet.queue.drain(0.0)

    def _tell(self, notice: Notice | None) -> int:
        if notice is None:
            return 0
        return sum(
            _put(outlet, outlet.dedup.add(notice))
            for outlet in self._outlets
            if notice.kind in outlet.channel.on
        )

    def _catch_up(self) -> None:
        """Derive the missing notices: those of events that an earlier controller logged without a notice."""
        last, _ = self._store.last()
        first = next(self._store.read(limit=1), None)
        if first is not None:
            self._known.source = str(first.time_ns)
        for stored in self._store.read(after=max(self._seq, last - _CATCH_UP_MOST)):
            if stored.kind in derive.KINDS:
                event = ev.decode(stored.kind, stored.body, stored.seq)
                self._tell(derive.derive(self._known, event, stored.seq, stored.time_ns))
        self._seq = last
        self._keep(0)

    def _changes(self) -> int:
        return sum(outlet.queue.changes for outlet in self._outlets)

    def _keep(self, now_ns: int) -> None:
        changes, channels = 0, dict(list(self._others.items())[-_CHANNELS_KEPT:])
        for outlet in self._outlets:
            number, pending, record = outlet.queue.snapshot()
            changes += number
            channels[outlet.channel.name] = ChannelState(outlet.dedup, pending, record)
        body = msgspec.json.encode(NoticeBookmark(self._known, channels))
        self._store.save_bookmark(self._lease, Bookmark(NAME, self._seq, body))
        self._kept, self._keep_ns = (self._seq, changes), now_ns


def load(store: Store) -> tuple[NoticeBookmark, int]:
    """The content of the bookmark, and the last event that it covers; a new one begins at the log's end.

    A bookmark that cannot be read counts as none (`unidle store check` names it).
    """
    try:
        found = store.load_bookmark(NAME)
        if found is not None:
            return msgspec.json.decode(found.body, type=NoticeBookmark), found.seq
    except (StoreDamaged, msgspec.MsgspecError):
        pass
    return NoticeBookmark(derive.DerivationState()), store.last()[0]


def _outlet(channel: NoticeChannel, send: Send, kept: ChannelState | None) -> _Outlet:
    kept = kept or ChannelState(Deduplicator(channel.window_ns))
    kept.temper.window_ns = channel.window_ns
    queue = SendQueue(kept.pending, kept.record)
    return _Outlet(
        channel, kept.temper, queue, SenderThreads(channel.name, queue, send, in_flight_most(channel))
    )


def _put(outlet: _Outlet, notices: list[Notice]) -> int:
    for notice in notices:
        outlet.queue.put(notice)
    if notices:
        outlet.threads.wake(len(outlet.queue.snapshot()[1]))
    return len(notices)
